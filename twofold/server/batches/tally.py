"""What was answered of a batch, counted from its lines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self


@dataclass(frozen=True, slots=True)
class BatchTally:
    """Lines answered well and with an error, and the tokens of the answers as their bodies tell them."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def plus(self, line: Mapping[str, Any]) -> Self:
        """With one more line of the journal."""
        if line["error"] is not None:
            return replace(self, failed=self.failed + 1)
        usage = line["response"]["body"].get("usage") or {}
        read, beside = _cached_parts(usage)
        return replace(
            self,
            completed=self.completed + 1,
            input_tokens=self.input_tokens + _first(usage, "prompt_tokens", "input_tokens") + beside,
            cached_tokens=self.cached_tokens + read,
            output_tokens=self.output_tokens + _first(usage, "completion_tokens", "output_tokens"),
            reasoning_tokens=self.reasoning_tokens
            + _detail(usage, "reasoning_tokens", "completion_tokens", "output_tokens"),
        )

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage of a batch."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


NOTHING: Final = BatchTally()


def _first(usage: Mapping[str, Any], *names: str) -> int:
    """The first number that is there, under the words of the one or the other endpoint."""
    return next((usage[name] for name in names if isinstance(usage.get(name), int)), 0)


def _detail(usage: Mapping[str, Any], name: str, *groups: str) -> int:
    details = (usage.get(f"{group}_details") for group in groups)
    return next((_first(found, name) for found in details if isinstance(found, dict)), 0)


def _cached_parts(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens read from the cache, and how many Anthropic's input_tokens leave out."""
    if "cache_read_input_tokens" in usage:
        read = _first(usage, "cache_read_input_tokens")
        return read, read + _first(usage, "cache_creation_input_tokens")
    return _detail(usage, "cached_tokens", "prompt_tokens", "input_tokens"), 0
