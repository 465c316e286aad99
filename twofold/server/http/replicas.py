"""The replicas of a model: their states, for GET /v1/twofold/server, and handlers that drain, replace, start and end
them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, structs

from twofold.api.body import NonNegativeFloat, NonNegativeInt, ReplyObject, RequestObject
from twofold.fleet.fleet import Fleet
from twofold.fleet.joining import MAX_REPLICAS
from twofold.fleet.replica import FleetReplica
from twofold.fleet.routing.router import Role
from twofold.fleet.scale import ScaleDecision, ScaleForecast
from twofold.observe.metrics.replicas import ReplicaFigures
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.http.status import check_admin
from twofold.server.models.registry import ModelRegistry


class ReplicaBlocks(ReplyObject):
    """Blocks of a KV cache: free, unused but findable, and held by sequences."""

    free: NonNegativeInt
    cached: NonNegativeInt
    held: NonNegativeInt


class ReplicaReply(ReplyObject, kw_only=True):
    """A replica of a model. ``node`` and ``pid``: the machine that has joined, or the process on this one; ``state``:
    loading, ready, silent, failed, or draining. ``requests`` were sent to it, and ``waiting`` sequences wait there.
    ``step_s`` is the time of its last step, ``step_time_error`` the recent mean error of its step-time model. These and
    ``blocks`` are null until it has reported them."""

    number: NonNegativeInt
    role: Role
    node: str | None
    pid: NonNegativeInt | None
    state: str
    requests: NonNegativeInt
    waiting: NonNegativeInt
    blocks: ReplicaBlocks | None
    step_s: NonNegativeFloat | None
    step_time_error: NonNegativeFloat | None
    restarts: NonNegativeInt
    error: str | None


class ScaleReply(ReplyObject, kw_only=True):
    """The last decision of the autoscaler, ``at`` seconds since 1970: the ``wanted`` replicas, from ``minimum`` to
    ``maximum``, and why. ``attainment``: the share of the last minutes' ``requests`` that would meet their objective,
    by number of replicas; ``measured``: the share of those that ended which did. ``hopeless`` ones miss it on an idle
    replica, too. ``cut``: what the simulation omits; ``problem``: why the decision was not followed."""

    wanted: NonNegativeInt
    minimum: NonNegativeInt
    maximum: NonNegativeInt
    reason: str
    attainment: dict[str, float]
    measured: float | None
    requests: NonNegativeInt
    hopeless: NonNegativeInt
    cut: str | None
    at: NonNegativeFloat
    problem: str | None


class FleetReply(ReplyObject, kw_only=True):
    """The replicas of a model; ``waiting`` requests have no replica yet. ``problem`` says which replicas wait for room
    on the Ray cluster, and is null otherwise. ``autoscale`` is null without --autoscale, and before its first decision.
    """

    router: str
    waiting: NonNegativeInt
    replicas: list[ReplicaReply]
    problem: str | None
    autoscale: ScaleReply | None


class RestartReply(FleetReply, kw_only=True):
    """The replicas of a model after a restart. ``in_place``: an old one ended before the new one was ready, because
    there was no room for one more beside them, or because of a KV store."""

    in_place: bool


class ScaleOrder(RequestObject):
    """The number of replicas that the server starts, on its machine or on its Ray cluster."""

    replicas: Annotated[int, Meta(ge=1, le=MAX_REPLICAS)]


class DrainOrder(RequestObject):
    """The number of a replica."""

    replica: NonNegativeInt


class ReplicasEndpoint:
    """Handlers for administrators. Each responds when it is done, with the replicas afterwards."""

    def __init__(self, registry: ModelRegistry) -> None:
        self._registry = registry

    async def drain(self, asked: EndpointRequest) -> FleetReply:
        check_admin(asked)
        order = await asked.read(DrainOrder.read)
        return fleet_reply(await self._registry.drain(asked.path["model"], order.replica))

    async def restart(self, asked: EndpointRequest) -> RestartReply:
        check_admin(asked)
        name = asked.path["model"]
        room = await self._registry.restart(name)
        return RestartReply(**structs.asdict(fleet_reply(self._registry.fleet(name))), in_place=not room)

    async def scale(self, asked: EndpointRequest) -> FleetReply:
        check_admin(asked)
        order = await asked.read(ScaleOrder.read)
        return fleet_reply(await self._registry.scale(asked.path["model"], order.replicas))


def fleet_reply(fleet: Fleet) -> FleetReply:
    return FleetReply(
        router=fleet.router.name,
        waiting=fleet.requests.waiting,
        replicas=[_replica(each) for _, each in sorted(fleet.replicas.items())],
        problem=fleet.lifecycle.problem,
        autoscale=None if fleet.decision is None else _decision(fleet.decision),
    )


def _decision(last: ScaleDecision) -> ScaleReply:
    found = last.forecast or ScaleForecast(last.wanted, {}, spare=False)
    return ScaleReply(
        wanted=last.wanted,
        minimum=last.minimum,
        maximum=last.maximum,
        reason=last.reason,
        attainment={str(replicas): share for replicas, share in found.attainment.items()},
        measured=last.measured,
        requests=found.requests,
        hopeless=found.hopeless,
        cut=found.cut,
        at=last.at,
        problem=last.problem,
    )


def replica_figures(registry: ModelRegistry) -> list[ReplicaFigures]:
    """The replicas of all loaded models, for metrics."""
    return [
        ReplicaFigures(model.names[0], number, "" if each.node is None else each.node.name, _state(each), each.requests)
        for model in registry.models
        if model.worker is not None
        for number, each in sorted(model.worker.replicas.items())
    ]


def _state(replica: FleetReplica) -> str:
    return "draining" if replica.draining else replica.state


def _replica(replica: FleetReplica) -> ReplicaReply:
    last = replica.snapshot
    return ReplicaReply(
        number=replica.number,
        role=replica.role,
        node=None if replica.node is None else replica.node.name,
        pid=replica.pid,
        state=_state(replica),
        requests=replica.requests,
        waiting=replica.waiting,
        blocks=None if last is None else ReplicaBlocks(last.blocks.free, last.blocks.cached, last.blocks.held),
        step_s=replica.step_s,
        step_time_error=None if last is None else last.prediction_error,
        restarts=replica.restarts,
        error=None if replica.error is None else str(replica.error),
    )
