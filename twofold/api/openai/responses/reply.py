"""The ``response`` object: what was asked for, and what has come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from twofold.api.answers import CacheUsage, reasoning_tokens
from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.openai.errors import error_message
from twofold.api.openai.responses.items import Item
from twofold.core.errors import ParameterError, QuotaError, TwofoldError, UsageError
from twofold.core.step import FinishReason
from twofold.engine.outputs import RequestOutput

State = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]

STATES: Final[Mapping[FinishReason | None, State]] = {
    "stop": "completed",
    "length": "incomplete",
    "deadline": "incomplete",
    "abort": "cancelled",
}
"""What an answer's end makes of its response."""
REASONS: Final[Mapping[FinishReason | None, str]] = {"length": "max_output_tokens"}
"""Why a response is incomplete, in OpenAI's words. They have none for a request whose time was up."""


def item_status(finish: FinishReason | None) -> Literal["completed", "incomplete"]:
    """What an answer's end makes of its last item."""
    return "completed" if finish == "stop" else "incomplete"


def begun(head: ReplyHead, asked: Mapping[str, Any]) -> dict[str, Any]:
    """The response before its first token. ``asked`` are the fields that say again what was asked for."""
    tier = {} if head.service_tier is None else {"service_tier": _told_tier(head)}
    return {
        "id": f"resp_{head.id}",
        "object": "response",
        "created_at": head.created,
        "status": "in_progress",
        "background": False,
        "completed_at": None,
        "error": None,
        "incomplete_details": None,
        "model": head.model,
        "output": [],
        "usage": None,
        **asked,
        **tier,
    }


def ended(
    response: Mapping[str, Any],
    items: Sequence[Item],
    output: RequestOutput,
    model: ModelFacts,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The response with its output. ``extra`` goes under ``twofold``."""
    (answer,) = output.outputs
    state = STATES[answer.finish_reason]
    took = round(output.metrics.finished - output.metrics.arrival)
    more: dict[str, Any] = {} if extra is None else {"twofold": extra}
    if state == "completed":
        more["completed_at"] = response["created_at"] + took
    elif state == "incomplete":
        more["incomplete_details"] = {"reason": REASONS.get(answer.finish_reason)}
    return {**response, "status": state, "output": list(items), "usage": spent(output, model), **more}


def failed(response: Mapping[str, Any], items: Sequence[Item], error: TwofoldError) -> dict[str, Any]:
    """The response that ends with an error, with the items that were whole by then."""
    param = error.param if isinstance(error, ParameterError) else None
    told = {"code": _failure(error), "message": error_message(error)} | ({"param": param} if param else {})
    return {**response, "status": "failed", "output": list(items), "error": told}


def spent(output: RequestOutput, model: ModelFacts) -> dict[str, Any]:
    """Tokens of the prompt, cached ones included, and of the answer, its thinking included."""
    prompt, drawn = len(output.prompt_token_ids), output.metrics.output_tokens
    cache = CacheUsage.of(output)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": cache.read, "cache_write_tokens": cache.written},
        "output_tokens": drawn,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens([output], model)},
        "total_tokens": prompt + drawn,
    }


def _told_tier(head: ReplyHead) -> str:
    return "default" if head.service_tier == "batch" else str(head.service_tier)


def _failure(error: TwofoldError) -> str:
    """The error in one of the words that a failed response has."""
    if isinstance(error, QuotaError):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, UsageError) else "server_error"
