"""Operations of the planner: explanations, curves, prices and plans, computed by the helper process."""

from __future__ import annotations

from typing import Final

from twofold.server.openapi.operation import ApiOperation, OperationLink, RequestBody, RequestRule
from twofold.server.planning.bodies import CurveRequest, ExplainRequest, PlanRequest, PriceRequest
from twofold.server.planning.replies import CurveReply, ExplainReply, PlanDeleted, PlanJobReply, PriceReply

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
OF_PLAN: Final = {"plan_id": "$response.body#/id"}
PLANNING: Final = (
    ApiOperation(
        "POST",
        "/v1/twofold/explain",
        "explain",
        "Explains where the time of a request goes and what would make it faster, as twofold explain does.",
        ExplainReply,
        body=RequestBody(
            ExplainRequest,
            {
                "plain": {"model": "llama-3-8b", "hardware": "h100", "batch": 8},
                "turned": {"model": "llama-3-8b", "hardware": "h100", "batch": 8, "levers": ["speculation"]},
            },
        ),
        rules=EXPLAIN,
        failures=FAILURES,
    ),
    ApiOperation(
        "POST",
        "/v1/twofold/curve",
        "curve",
        "Predicts pace and cost of batches on machines.",
        CurveReply,
        body=RequestBody(CurveRequest, {"plain": {"model": "llama-3-8b", "machines": [{"hardware": "h100"}]}}),
        rules=(*SIZES, RequestRule("At most 512 points are predicted at once.", "batches")),
        failures=FAILURES,
    ),
    ApiOperation(
        "POST",
        "/v1/twofold/price",
        "price",
        "Prices a workload at an API and on own hardware, as twofold price does.",
        PriceReply,
        body=RequestBody(PriceRequest, {"plain": {"model": "claude-sonnet-4-6", "cached": 500}}),
        rules=PRICE,
        failures=FAILURES,
    ),
    ApiOperation(
        "POST",
        "/v1/twofold/plans",
        "createPlan",
        "Starts to look for the cheapest configurations that serve traffic, as twofold plan does.",
        PlanJobReply,
        body=RequestBody(
            PlanRequest,
            {"plain": {"models": ["llama-3-8b"], "hardware": ["h100"], "rate": 2.0, "tp": [1], "simulate": False}},
        ),
        rules=(RequestRule("At most 600 configurations are tried.", "models"),),
        failures=(429,),
        links=(OperationLink("get", "getPlan", OF_PLAN), OperationLink("delete", "deletePlan", OF_PLAN)),
    ),
    ApiOperation("GET", "/v1/twofold/plans/{plan_id}", "getPlan", "Returns a plan, once it is done.", PlanJobReply),
    ApiOperation("DELETE", "/v1/twofold/plans/{plan_id}", "deletePlan", "Stops and drops a plan.", PlanDeleted),
)
