"""How one turn of a conversation leads to the next."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from twofold.bench.load.base import Ask, EndedRequest, PromptMessage

Prompt: TypeAlias = Callable[[Ask], tuple[PromptMessage, ...]]
"""All messages that a request sends: its history, and then its own. The same for the same request."""


def goes_on(ended: EndedRequest) -> bool:
    """Whether there is an answer to go on from: a chat whose assistant said nothing cannot be continued everywhere."""
    return ended.outcome == "ok" and bool(ended.text)


def history_after(ended: EndedRequest, prompt: Prompt) -> tuple[PromptMessage, ...]:
    """The messages before the next turn, the last of which is what was really answered."""
    return (*prompt(ended.ask), PromptMessage("assistant", ended.text))


def ended_s(ended: EndedRequest, now_s: float) -> float:
    """When the reply ended: the pause before the next turn counts from there."""
    return now_s if ended.ended_s is None else ended.ended_s
