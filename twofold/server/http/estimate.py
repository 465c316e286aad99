"""POST /v1/twofold/estimate: what a chat would take and cost if it were sent now. Nothing changes by asking."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Final, Literal

from msgspec import UNSET, UnsetType

from twofold.api.body import NonNegativeFloat, NonNegativeInt, ReplyObject
from twofold.api.fields import UNSUPPORTED, FieldError
from twofold.api.openai.chat import ChatRequest
from twofold.core.errors import BusyError
from twofold.core.forecast import Forecast
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.observe.billing import TokenUsage, forecast_cost
from twofold.server.accounting import Accounting
from twofold.server.http.endpoints import EndpointRequest
from twofold.server.http.generating import CHAT, COMPARED, LOADING
from twofold.server.openapi import rules
from twofold.server.openapi.route import RequestRule, post
from twofold.server.records import RequestCost

FORECAST_S: Final = 10.0
"""How long to wait for the end of the engine's step."""
RETRY_S: Final = 5.0
DEFAULT_OUTPUT: Final = 128
"""Tokens of a completion before the first request has ended."""


class ReferenceCost(RequestCost):
    """The cost at another provider's prices."""

    model: str


class EstimateReply(ReplyObject, kw_only=True):
    """All of it is predicted, but the tokens of the prompt. Seconds are null before the engine has run enough steps.

    ahead    waiting requests that go first
    error    of ``ttft_s`` as a share: the mean of recent estimates whose requests followed, "ttft"; before the first
             one the error of predicted steps, "steps"; null if neither is known
    cost     by the server's price sheet, null without a price
    """

    schema: Literal["twofold.estimate/1"] = "twofold.estimate/1"
    model: str
    prompt_tokens: NonNegativeInt
    cached_tokens: NonNegativeInt
    output_tokens: NonNegativeInt
    ahead: NonNegativeInt
    queue_s: NonNegativeFloat | None
    ttft_s: NonNegativeFloat | None
    tpot_s: NonNegativeFloat | None
    e2e_s: NonNegativeFloat | None
    error: NonNegativeFloat | None
    error_of: Literal["ttft", "steps"] | None
    cost: RequestCost | None
    at_prices: list[ReferenceCost] | UnsetType = UNSET


@post(
    "/v1/twofold/estimate",
    body=ChatRequest,
    examples={"plain": {**CHAT, "twofold": {"compare_prices": ["gpt-5"]}}},
    rules=(*rules.CHAT, COMPARED, RequestRule("compress is absent.", "compress", UNSUPPORTED)),
    failures=(403, *LOADING),
)
async def estimate(asked: EndpointRequest) -> EstimateReply:
    """Predicts what a chat would take and cost if it were sent now. It loads no model.

    Raises as a chat does, and BusyError for a model that is not loaded."""
    request = await asked.read(ChatRequest.read)
    if request.compress is not None:
        raise FieldError("compress cannot be estimated.", param="compress", code=UNSUPPORTED, hint="Remove it.")
    services = asked.services
    served = services.registry.find(request.model)
    if served.state != "ready":
        hint = "A request loads it." if served.state == "unloaded" else "Retry in a moment."
        raise BusyError(f"The model {served.names[0]} is {served.state}.", retry_after_s=RETRY_S, hint=hint)
    async with asked.lease(request.model) as model:
        jobs = await asked.work(model.name, partial(request.prepare, model.facts))
        (job,) = services.admission.tiered(asked, request.tier, jobs)
        try:
            async with asyncio.timeout(FORECAST_S):
                forecast = await model.forecast(job)
        except TimeoutError:
            raise BusyError("The engine is in a long step.", retry_after_s=RETRY_S) from None
        return _reply(asked, model.name, model.facts.context, job, forecast, request.compared)


def _reply(
    asked: EndpointRequest,
    model: str,
    context: int,
    job: EngineRequest,
    forecast: Forecast,
    compared: Sequence[str],
) -> EstimateReply:
    accounting = asked.services.accounting
    estimates, prompt = accounting.estimates, len(job.token_ids)
    output = _output_tokens(accounting, model, context, job)
    ttft_s = e2e_s = None
    if forecast.queue_s is not None and forecast.prefill_s is not None and forecast.tpot_s is not None:
        ttft_s = forecast.queue_s + forecast.prefill_s
        e2e_s = ttft_s + forecast.tpot_s * max(output - 1, 0)
        estimates.expect(asked.caller.id, model, job.token_ids, ttft_s)
    measured = estimates.error(model)
    usage = TokenUsage(fresh=prompt - forecast.cached, cached=forecast.cached, output=output)
    seconds = None if e2e_s is None else e2e_s - (forecast.queue_s or 0.0)
    found = accounting.references.find(compared)
    bills = accounting.references.bills(found, usage, datetime.now(UTC))
    return EstimateReply(
        model=model,
        prompt_tokens=prompt,
        cached_tokens=forecast.cached,
        output_tokens=output,
        ahead=forecast.ahead,
        queue_s=forecast.queue_s,
        ttft_s=ttft_s,
        tpot_s=forecast.tpot_s,
        e2e_s=e2e_s,
        error=forecast.error if measured is None else measured,
        error_of="ttft" if measured is not None else None if forecast.error is None else "steps",
        cost=_cost(accounting, model, asked.record.tier, usage, seconds, forecast.running + 1),
        at_prices=[
            ReferenceCost(model=name, currency=bill.currency, total=float(bill.total)) for name, bill in bills.items()
        ]
        or UNSET,
    )


def _output_tokens(accounting: Accounting, model: str, context: int, job: EngineRequest) -> int:
    """Expected tokens of the completions: as many as lately, within the request's limit."""
    params = job.params
    assert isinstance(params, SamplingParams), "a chat is sampled"
    room = max(0, context - len(job.token_ids))
    most = room if params.max_tokens is None else min(params.max_tokens, room)
    mean = accounting.estimates.output_tokens(model)
    return min(round(DEFAULT_OUTPUT if mean is None else mean), most) * params.answers


def _cost(
    accounting: Accounting, model: str, tier: str, usage: TokenUsage, seconds: float | None, sharers: int
) -> RequestCost | None:
    sheet = accounting.sheet
    total = None if sheet is None else forecast_cost(sheet, model, tier, usage, seconds, sharers)
    return None if sheet is None or total is None else RequestCost(sheet.currency, float(total))
