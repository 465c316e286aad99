"""POST /v1/twofold/explain, /curve, /price and /plans: work of the helper process (``server/planning``)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from msgspec import to_builtins

from twofold.api.body import encode
from twofold.core.errors import ModelNotFoundError
from twofold.planner.explain.document import ExplainReply
from twofold.planner.explain.question import CurveReply
from twofold.planner.names import HERE
from twofold.planner.price.document import PriceReply
from twofold.server.edge.body import ClientGoneError
from twofold.server.http.endpoints import EndpointRequest, EndpointResponse, done_before_disconnect
from twofold.server.models.registry import ModelRegistry, ServedModel
from twofold.server.openapi.route import OperationLink, RequestRule, delete, get, post
from twofold.server.planning.bodies import CurveRequest, ExplainRequest, PlanRequest, PriceRequest, Values
from twofold.server.planning.plain import to_plain
from twofold.server.planning.replies import PlanDeleted, PlanJobReply

FAILURES: Final = (404, 429, 504)
SIZES: Final = (
    RequestRule("A prompt has an uncached token; chunks cut it into few steps.", "case"),
    RequestRule("A prompt has at most 512 chunks.", "chunk"),
    RequestRule("One request fits into the memory of the hardware.", "hardware"),
    RequestRule("The hardware is one of the table, or this of a measured server.", "hardware"),
    RequestRule("The devices can share the model's heads, and have links.", "tp"),
    RequestRule("Formats are known.", "format"),
    RequestRule("Formats of keys and values fit the model.", "kv"),
)
EXPLAIN: Final = (
    *SIZES,
    RequestRule("Levers are those of the list that an explanation has.", "levers"),
    RequestRule("The prompt is one of the request's.", "request"),
    RequestRule("The record describes a request that ran.", "source"),
)
PRICE: Final = (
    RequestRule("The tier has prices.", "tier"),
    RequestRule("At most all tokens of a prompt are cached.", "prefix_tokens"),
    RequestRule("The cost of own hardware is known.", "price_per_hour"),
    RequestRule("Electricity has a power and a price.", "watts"),
    RequestRule("Electricity has a power and a price.", "price_per_kwh"),
    RequestRule("The model fits on the own hardware, which is one of the table.", "own"),
    RequestRule("A cache is of a model whose input has a price.", "model"),
    *SIZES[2:],
)
EXPLAINED: Final = {"model": "llama-3-8b", "hardware": "h100", "batch": 8}
OF_PLAN: Final = {"plan_id": "$response.body#/id"}


@post(
    "/v1/twofold/explain",
    body=ExplainRequest,
    reply=ExplainReply,
    examples={"plain": EXPLAINED, "turned": {**EXPLAINED, "levers": ["speculation"]}},
    rules=EXPLAIN,
    failures=FAILURES,
)
async def explain(asked: EndpointRequest) -> EndpointResponse:
    """Explains where the time of a request goes and what would make it faster, as twofold explain does.

    A scenario; or a recent request of the tenant, as it was measured and, if its model is loaded, predicted."""
    request = await asked.read(ExplainRequest.read)
    values = _values(request)
    if request.request is not None:
        record = asked.services.accounting.recent.data(asked.tenant, request.request)
        values["record"] = encode(record).decode()
        values.setdefault("model", record.model)
        served = _served(asked.services.registry, values["model"])
        if "hardware" not in values and served is not None and _machine(served) is not None:
            values["hardware"] = HERE
    else:
        values.setdefault("hardware", HERE)
    return await _answer(asked, "explain", _placed(asked.services.registry, values))


@post(
    "/v1/twofold/curve",
    body=CurveRequest,
    reply=CurveReply,
    examples={"plain": {"model": "llama-3-8b", "machines": [{"hardware": "h100"}]}},
    rules=(*SIZES, RequestRule("At most 512 points are predicted at once.", "batches")),
    failures=FAILURES,
)
async def curve(asked: EndpointRequest) -> EndpointResponse:
    """Predicts pace and cost of batches on machines."""
    values = _values(await asked.read(CurveRequest.read))
    return await _answer(asked, "curve", _placed(asked.services.registry, values))


@post(
    "/v1/twofold/price",
    body=PriceRequest,
    reply=PriceReply,
    examples={"plain": {"model": "claude-sonnet-4-6", "cached": 500}},
    rules=PRICE,
    failures=FAILURES,
)
async def price(asked: EndpointRequest) -> EndpointResponse:
    """Prices a workload at an API and on own hardware, as twofold price does."""
    return await _answer(asked, "price", _values(await asked.read(PriceRequest.read)))


@post(
    "/v1/twofold/plans",
    body=PlanRequest,
    examples={"plain": {"models": ["llama-3-8b"], "hardware": ["h100"], "rate": 2.0, "tp": [1], "simulate": False}},
    rules=(RequestRule("At most 600 configurations are tried.", "models"),),
    failures=(429,),
    links=(OperationLink("get", "getPlan", OF_PLAN), OperationLink("delete", "deletePlan", OF_PLAN)),
)
async def create_plan(asked: EndpointRequest) -> PlanJobReply:
    """Starts to look for the cheapest configurations that serve traffic, as twofold plan does."""
    values = _values(await asked.read(PlanRequest.read))
    return asked.services.plans.create(asked.tenant, asked.source, values)


@get("/v1/twofold/plans/{plan_id}")
async def get_plan(asked: EndpointRequest) -> PlanJobReply:
    """Returns a plan, once it is done."""
    return asked.services.plans.get(asked.tenant, asked.path["plan_id"])


@delete("/v1/twofold/plans/{plan_id}")
async def delete_plan(asked: EndpointRequest) -> PlanDeleted:
    """Stops and drops a plan."""
    asked.services.plans.delete(asked.tenant, asked.path["plan_id"])
    return PlanDeleted(id=asked.path["plan_id"])


async def _answer(asked: EndpointRequest, task: str, values: Values) -> EndpointResponse:
    work = asyncio.create_task(asked.services.planner.run(asked.source, task, values))
    if not await done_before_disconnect(work, asked.receive):
        raise ClientGoneError
    return EndpointResponse(work.result())


def _placed(registry: ModelRegistry, values: Values) -> Values:
    """The values with the description of the server's own model and machine, if they are named."""
    served = _served(registry, values.get("model"))
    machines = [values.get("hardware"), *(each["hardware"] for each in values.get("machines", ()))]
    here: Values = {}
    if served is not None and served.reading is not None:
        values["model"] = served.names[0]
        here["shape"] = to_plain(replace(served.reading.spec, name=served.names[0]))
    if HERE in machines:
        known = [served, *registry.models] if served is not None else registry.models
        ceilings = next((found for model in known if (found := _machine(model)) is not None), None)
        if ceilings is not None:
            here |= {"machine": to_plain(ceilings.machine), "setup": to_plain(ceilings.setup)}
    return values | {"here": here}


def _served(registry: ModelRegistry, name: str | None) -> ServedModel | None:
    """The served model of that name, the first one for None; None for other names."""
    try:
        return registry.find(name, exactly=True)
    except ModelNotFoundError:
        return None


def _machine(model: ServedModel) -> Any:
    """The model's step predictor on this machine; None if it is not loaded, or the machine was not measured."""
    return None if model.worker is None else model.worker.ceilings


def _values(body: Any) -> Values:
    """The fields that the caller gave, and defaults, as plain data."""
    found: Values = to_builtins(body)
    return {name: value for name, value in found.items() if value is not None}


ROUTES: Final = (explain, curve, price, create_plan, get_plan, delete_plan)
