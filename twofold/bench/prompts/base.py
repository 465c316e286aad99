"""The seam between those who make prompts and those who know how long they are."""

from __future__ import annotations

from typing import Protocol

from twofold.bench.load.base import PromptMessage


class TokenCounter(Protocol):
    """Knows how many tokens a prompt has for the server that is measured."""

    @property
    def source(self) -> str:
        """Where its counts come from, for the report."""
        ...

    def count(self, messages: tuple[PromptMessage, ...]) -> int | None:
        """Tokens of the whole prompt, all that a chat template adds included; None where it cannot say."""
        ...
