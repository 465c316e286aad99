"""Anthropic's message as a reply: why it ended, and tokens spent."""

from __future__ import annotations

from typing import Any, Final, Literal

from twofold.api.answers import CacheUsage, reasoning_tokens
from twofold.api.base import ModelFacts, ReplyHead
from twofold.engine.outputs import RequestOutput

StopReason = Literal["end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded"]
TIERS: Final[dict[str | None, str]] = {"priority": "priority", "batch": "batch"}
"""Anthropic's words for tiers; all others are "standard"."""


def message(
    head: ReplyHead,
    content: list[dict[str, Any]],
    spent: dict[str, Any],
    *,
    stop_reason: StopReason | None = None,
    stop_sequence: str | None = None,
) -> dict[str, Any]:
    """A ``message``; one that has only begun has no stop reason."""
    return {
        "id": f"msg_{head.id}",
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
        "stop_reason": stop_reason,
        "stop_sequence": stop_sequence,
        "usage": spent,
    }


def stop_of(output: RequestOutput, model: ModelFacts, *, most: int, called: bool) -> tuple[StopReason, str | None]:
    """Why the answer ended, and the stop sequence that did it.

    ``most`` is max_tokens; ``called`` says whether the answer holds calls. One that was cut off for another reason
    than its length, such as its deadline, is told like one that was too long.
    """
    answer = output.outputs[0]
    if answer.finish_reason == "stop":
        if isinstance(answer.stop_reason, str):
            return "stop_sequence", answer.stop_reason
        return ("tool_use" if called else "end_turn"), None
    drawn = len(answer.token_ids)
    full = answer.finish_reason == "length" and drawn < most and len(output.prompt_token_ids) + drawn >= model.context
    return ("model_context_window_exceeded" if full else "max_tokens"), None


def usage(head: ReplyHead, output: RequestOutput, model: ModelFacts, *, answered: bool = True) -> dict[str, Any]:
    """Tokens of the prompt, in three parts that do not overlap, and of the answer; none where it was not wanted."""
    cache = CacheUsage.of(output)
    thought = reasoning_tokens([output], model) if answered else 0
    return running_usage(head, cache, output.metrics.output_tokens if answered else 0) | {
        "output_tokens_details": {"thinking_tokens": thought},
    }


def running_usage(head: ReplyHead, cache: CacheUsage, drawn: int = 0) -> dict[str, Any]:
    """What is known of the tokens while an answer is being made."""
    return {
        "input_tokens": cache.fresh,
        "cache_creation_input_tokens": cache.written,
        "cache_read_input_tokens": cache.read,
        "cache_creation": {
            "ephemeral_5m_input_tokens": cache.written - cache.written_1h,
            "ephemeral_1h_input_tokens": cache.written_1h,
        },
        "output_tokens": drawn,
        "service_tier": TIERS.get(head.service_tier, "standard"),
    }
