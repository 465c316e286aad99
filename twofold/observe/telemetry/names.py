"""Attributes of a request by OpenTelemetry's GenAI conventions (open-telemetry/semantic-conventions-genai).

Attributes are sizes, times and names, never content. ``gen_ai.usage.input_tokens`` includes cached tokens in every API
protocol.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from twofold.observe.served import AskedParams, ServedRequest

PROVIDER: Final = "twofold"
OPERATIONS: Final = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
}
"""GenAI operations by route; other routes have none."""

Value = str | int | float | bool | tuple[str, ...]
Attributes = dict[str, Value]


def common_attributes(served: ServedRequest, operation: str) -> Attributes:
    """Attributes of spans and of metrics."""
    found: Attributes = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": served.model,
        "gen_ai.response.model": served.model,
    }
    if served.status >= 400:
        found["error.type"] = served.error or str(served.status)
    return found


def span_attributes(served: ServedRequest, operation: str) -> Attributes:
    """Attributes of a span; those without a value are omitted."""
    reasons = tuple(reason for report in served.reports for reason in report.finish_reasons)
    known: dict[str, Value | None] = {
        "gen_ai.response.id": served.request_id,
        "gen_ai.response.finish_reasons": reasons or None,
        "gen_ai.response.time_to_first_chunk": served.first_token_s if served.stream else None,
        "http.route": served.endpoint,
        "http.response.status_code": served.status,
        "twofold.service_tier": served.tier,
        "twofold.response_cache.hit": True if served.cached_answer else None,
        "twofold.cost": served.cost,
        "twofold.cost.currency": served.currency or None,
    }
    return common_attributes(served, operation) | _given(known | _asked(served) | _usage(served))


def _asked(served: ServedRequest) -> dict[str, Value | None]:
    params: AskedParams = served.params
    return {
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.choice.count": params.n if params.n != 1 else None,
        "gen_ai.request.stream": served.stream,
    }


def _usage(served: ServedRequest) -> dict[str, Value | None]:
    if not served.reports:
        return {}
    return {
        "gen_ai.usage.input_tokens": served.prompt_tokens,
        "gen_ai.usage.output_tokens": served.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": served.cached_tokens,
        "gen_ai.usage.cache_creation.input_tokens": sum(served.written_tokens.values()),
        "gen_ai.usage.reasoning.output_tokens": served.reasoning_tokens,
    }


def _given(attributes: Mapping[str, Value | None]) -> Attributes:
    return {name: value for name, value in attributes.items() if value is not None}
