"""GET /v1/twofold/server: what a client of this server can ask for. The page at / reads it once, after it has a key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from twofold.api.base import ServiceTier, TierName
from twofold.api.body import NonEmptyText, NonNegativeFloat, NonNegativeInt, ReplyObject
from twofold.core.params import MAX_LOGPROBS, MAX_N
from twofold.host.versions import twofold_version
from twofold.observe.metrics.requests import NO_OBJECTIVE, Objective
from twofold.server.admission import Tier, Tiers
from twofold.server.config import ServerConfig
from twofold.server.edge.keys import MetricsView
from twofold.server.edge.middleware import ABOUT_PATH
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.http.replicas import FleetReply, fleet_reply
from twofold.server.models.registry import ModelRegistry, ModelState, ServedModel

OWN_PATHS: Final = "/v1/twofold/"
FOR_ADMINISTRATORS: Final = frozenset({"models", "shutdown"})
"""Features that need a key with admin rights."""


class LoadTimes(ReplyObject):
    """Seconds that loading a model took: reading its file, compiling its kernels, and generating one token."""

    read_s: NonNegativeFloat
    compile_s: NonNegativeFloat
    test_s: NonNegativeFloat


class AboutModel(ReplyObject, kw_only=True):
    """A model. ``parameters``, ``quantization``, ``sampling`` (its defaults), ``tools`` and ``thinking`` are null until
    its file was read, ``context`` and ``load`` until it is loaded. ``fleet`` is for administrators."""

    id: str
    names: Sequence[str]
    state: ModelState
    context: NonNegativeInt | None
    bytes: NonNegativeInt
    parameters: NonNegativeInt | None
    quantization: str | None
    sampling: dict[str, float] | None
    tools: bool | None
    thinking: bool | None
    load: LoadTimes | None
    fleet: FleetReply | None
    error: str | None


class AboutTier(ReplyObject, kw_only=True):
    """A service tier: the TPOT that the engine keeps, how long requests wait at most, and the objectives by which
    goodput is counted; null: no limit."""

    tpot_target_s: NonNegativeFloat | None
    queue_limit_s: NonNegativeFloat | None
    ttft_s: NonNegativeFloat | None
    tpot_s: NonNegativeFloat | None
    e2e_s: NonNegativeFloat | None


class AboutLimits(ReplyObject, kw_only=True):
    """Maximum values of fields, bytes of a body, and seconds of a request."""

    n: NonNegativeInt
    logprobs: NonNegativeInt
    body_bytes: NonNegativeInt
    seconds: NonNegativeFloat


class AboutPrices(ReplyObject):
    """The currency of the server's price sheet (null without one), and the models of other providers whose prices
    "compare_prices" knows."""

    currency: str | None
    reference: Sequence[str]


class AboutServer(ReplyObject, kw_only=True):
    """The server as this caller may use it. ``sees``: whether the live view shows it all tenants or its own.
    ``can``: the paths under /v1/twofold that it may use."""

    schema: Literal["twofold.server/1"] = "twofold.server/1"
    version: NonEmptyText
    keyed: bool
    sees: MetricsView
    models: list[AboutModel]
    tiers: dict[TierName, AboutTier]
    limits: AboutLimits
    prices: AboutPrices
    can: list[str]


class KeyedServer(ReplyObject, kw_only=True):
    """The same for a request without a key to a server with keys."""

    schema: Literal["twofold.server/1"] = "twofold.server/1"
    keyed: Literal[True] = True


@dataclass(frozen=True, slots=True)
class AboutEndpoint:
    """The handler. ``references`` are the models whose prices are known."""

    config: ServerConfig
    registry: ModelRegistry
    references: Sequence[str]

    async def get(self, features: Sequence[str], asked: EndpointRequest) -> AboutServer | KeyedServer:
        """``features`` are those of all callers and of administrators."""
        caller, config = asked.context.caller, self.config
        if caller.anonymous:
            return KeyedServer()
        return AboutServer(
            version=twofold_version(),
            keyed=bool(caller.id),
            sees=caller.sees,
            models=[_model(model, admin=caller.admin) for model in self.registry.models],
            tiers={name: self._tier(config.tiers, name) for name in caller.tiers},
            limits=AboutLimits(
                n=MAX_N, logprobs=MAX_LOGPROBS, body_bytes=config.body.bytes, seconds=config.queue.seconds
            ),
            prices=AboutPrices(None if config.prices is None else config.prices.currency, self.references),
            can=[name for name in features if caller.admin or name not in FOR_ADMINISTRATORS],
        )

    def _tier(self, tiers: Tiers, name: ServiceTier) -> AboutTier:
        tier: Tier = tiers.by_name[name]
        objective: Objective = self.config.objectives.get(name, NO_OBJECTIVE)
        target = self.registry.tpot_target_s
        return AboutTier(
            tpot_target_s=target if target is None or tier.tpot_target_s is None else tier.tpot_target_s,
            queue_limit_s=tier.queue_limit_s,
            ttft_s=objective.ttft_s,
            tpot_s=objective.tpot_s,
            e2e_s=objective.e2e_s,
        )


def features(paths: Mapping[str, object]) -> list[str]:
    """The first words of the server's own paths."""
    own = {path.removeprefix(OWN_PATHS).partition("/")[0] for path in paths if path.startswith(OWN_PATHS)}
    return sorted(own - {ABOUT_PATH.removeprefix(OWN_PATHS)})


def _model(model: ServedModel, *, admin: bool) -> AboutModel:
    reading, worker = model.reading, model.worker
    load = None
    if worker is not None and model.state == "ready":
        ready = worker.ready
        load = LoadTimes(ready.read_s, ready.compile_s, ready.test_s)
    return AboutModel(
        id=model.names[0],
        names=model.names,
        state=model.state,
        context=model.context,
        bytes=model.bytes,
        parameters=None if reading is None else reading.parameters,
        quantization=None if reading is None else reading.quantization,
        sampling=None if reading is None else reading.sampling.given(),
        tools=None if reading is None else reading.tokenizer.has_chat_template,
        thinking=None if reading is None else reading.format.thinking is not None,
        load=load,
        fleet=fleet_reply(worker) if admin and worker is not None else None,
        error=None if model.error is None else str(model.error),
    )
