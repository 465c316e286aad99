"""Tokens spent, in OpenAI's words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twofold.api.answers import CacheUsage, reasoning_tokens
from twofold.api.base import ModelFacts
from twofold.engine.outputs import RequestOutput


def usage(outputs: Sequence[RequestOutput], model: ModelFacts, *, answers: bool = True) -> dict[str, Any]:
    """Tokens of all prompts, cached ones included, and of all answers, those included that best_of dropped."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    drawn = sum(output.metrics.output_tokens for output in outputs) if answers else 0
    cache = sum(map(CacheUsage.of, outputs), CacheUsage())
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": cache.read, "cache_write_tokens": cache.written},
        "completion_tokens_details": {"reasoning_tokens": reasoning_tokens(outputs, model)},
    }
