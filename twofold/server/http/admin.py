"""Administration: loading and unloading of models, their replicas (which GET /v1/twofold/server shows, too), and
shutdown. Handlers raise ForbiddenError for a key without admin rights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal

from msgspec import Meta, structs

from twofold.api.body import NonNegativeFloat, NonNegativeInt, ReplyObject, RequestObject
from twofold.core.errors import ForbiddenError
from twofold.fleet.fleet import Fleet
from twofold.fleet.joining import MAX_REPLICAS
from twofold.fleet.replica import FleetReplica
from twofold.fleet.routing.router import Role
from twofold.fleet.scale import ScaleDecision, ScaleForecast
from twofold.observe.metrics.replicas import ReplicaFigures
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.http.generating import LOADING
from twofold.server.http.status import ServerStatus
from twofold.server.models.registry import ModelRegistry, ModelState, ServedModel
from twofold.server.openapi import rules
from twofold.server.openapi.route import get, post


class ModelUseReply(ReplyObject, kw_only=True):
    """The state of a model and its requests."""

    id: str
    object: Literal["twofold.model"] = "twofold.model"
    names: Annotated[Sequence[str], Meta(min_length=1)]
    state: ModelState
    bytes: NonNegativeInt
    context: NonNegativeInt | None
    running: NonNegativeInt
    waiting: NonNegativeInt
    idle_s: NonNegativeFloat | None
    unloads_in_s: NonNegativeFloat | None
    error: str | None


class ModelUseList(ReplyObject, kw_only=True):
    """All models."""

    object: Literal["list"] = "list"
    data: list[ModelUseReply]


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


def _registry(asked: EndpointRequest) -> ModelRegistry:
    """The models, for an administrator. Raises ForbiddenError."""
    if not asked.caller.admin:
        raise ForbiddenError("This key has no admin rights.", hint="twofold keys add NAME --admin makes one.")
    return asked.services.registry


@get("/v1/twofold/models")
async def list_model_use(asked: EndpointRequest) -> ModelUseList:
    """Lists states and use of the models. Needs a key with admin rights, like loading, unloading and shutdown."""
    return ModelUseList(data=[_model_use(model) for model in _registry(asked).models])


@post("/v1/twofold/models/{model:path}/load", failures=LOADING)
async def load_model(asked: EndpointRequest) -> ModelUseReply:
    """Loads a model, and replies once it is loaded."""
    return _model_use(await _registry(asked).load(asked.path["model"]))


@post("/v1/twofold/models/{model:path}/unload")
async def unload_model(asked: EndpointRequest) -> ModelUseReply:
    """Unloads a model, at the end of its last request. Later requests load it again.

    Responds once the model is unloaded; at once if requests use it, which delay the unloading until they end."""
    return _model_use(await _registry(asked).unload(asked.path["model"]))


@post("/v1/twofold/models/{model:path}/replicas", failures=LOADING, body=ScaleOrder, rules=(rules.REPLICAS,))
async def scale_model(asked: EndpointRequest) -> FleetReply:
    """Starts or drains replicas, and replies once they are ready, gone, or wait for room on the Ray cluster.

    The reply has the replicas afterwards, as those of the next two have."""
    registry, order = _registry(asked), await asked.read(ScaleOrder.read)
    return fleet_reply(await registry.scale(asked.path["model"], order.replicas))


@post("/v1/twofold/models/{model:path}/replicas/drain", failures=LOADING, body=DrainOrder, rules=(rules.DRAINED,))
async def drain_replica(asked: EndpointRequest) -> FleetReply:
    """Moves the requests of a replica to others and ends it; a node leaves."""
    registry, order = _registry(asked), await asked.read(DrainOrder.read)
    return fleet_reply(await registry.drain(asked.path["model"], order.replica))


@post("/v1/twofold/models/{model:path}/replicas/restart", failures=LOADING, rules=(rules.LOADED,))
async def restart_replicas(asked: EndpointRequest) -> RestartReply:
    """Replaces the model's replicas one after the other, and replies when all are ready."""
    registry, name = _registry(asked), asked.path["model"]
    room = await registry.restart(name)
    return RestartReply(**structs.asdict(fleet_reply(registry.fleet(name))), in_place=not room)


@post("/v1/twofold/shutdown")
async def stop_server(asked: EndpointRequest) -> ServerStatus:
    """Stops the server like SIGTERM: running requests may finish within --shutdown-timeout.

    Responds before the server ends."""
    _registry(asked)
    asked.services.stop()
    return ServerStatus("stopping")


def _model_use(model: ServedModel) -> ModelUseReply:
    waiting = 0 if model.worker is None else model.worker.queued
    return ModelUseReply(
        id=model.names[0],
        names=model.names,
        state=model.state,
        bytes=model.bytes,
        context=model.context,
        running=0 if model.worker is None else model.worker.under_way - waiting,
        waiting=waiting,
        idle_s=model.idle_s,
        unloads_in_s=model.unloads_in_s,
        error=None if model.error is None else str(model.error),
    )


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


ROUTES: Final = (
    list_model_use,
    load_model,
    unload_model,
    scale_model,
    drain_replica,
    restart_replicas,
    stop_server,
)
