"""GET /v1/twofold/server: what a client of this server can ask for. The page at / reads it once, after it has a key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, Literal

from twofold.api.base import ServiceTier, TierName
from twofold.api.body import NonEmptyText, NonNegativeFloat, NonNegativeInt, ReplyObject
from twofold.core.params import MAX_LOGPROBS, MAX_N
from twofold.host.versions import twofold_version
from twofold.observe.metrics.requests import NO_OBJECTIVE, Objective
from twofold.server.admission import Tier
from twofold.server.config import ServerConfig
from twofold.server.edge.keys import MetricsView
from twofold.server.edge.middleware import ABOUT_PATH
from twofold.server.http.admin import FleetReply, fleet_reply
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.models.registry import ModelState, ServedModel
from twofold.server.openapi.route import get

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


@get(ABOUT_PATH, is_open=True, shows_more=True)
async def get_server(asked: EndpointRequest) -> AboutServer | KeyedServer:
    """Returns what the caller can ask for. Without a key, a server with keys only says that it has them."""
    caller, services, config = asked.caller, asked.services, asked.services.config
    if caller.anonymous:
        return KeyedServer()
    return AboutServer(
        version=twofold_version(),
        keyed=bool(caller.id),
        sees=caller.sees,
        models=[_model(model, admin=caller.admin) for model in services.registry.models],
        tiers={name: _tier(config, name, services.registry.tpot_target_s) for name in caller.tiers},
        limits=AboutLimits(n=MAX_N, logprobs=MAX_LOGPROBS, body_bytes=config.body.bytes, seconds=config.queue.seconds),
        prices=AboutPrices(
            None if config.prices is None else config.prices.currency, services.accounting.references.names
        ),
        can=[name for name in services.features if caller.admin or name not in FOR_ADMINISTRATORS],
    )


def _tier(config: ServerConfig, name: ServiceTier, target: float | None) -> AboutTier:
    """``target`` is the engine's own TPOT in seconds; None if it has none."""
    tier: Tier = config.tiers.by_name[name]
    objective: Objective = config.objectives.get(name, NO_OBJECTIVE)
    return AboutTier(
        tpot_target_s=target if target is None or tier.tpot_target_s is None else tier.tpot_target_s,
        queue_limit_s=tier.queue_limit_s,
        ttft_s=objective.ttft_s,
        tpot_s=objective.tpot_s,
        e2e_s=objective.e2e_s,
    )


def features(paths: Iterable[str]) -> list[str]:
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
