"""Counters for tests: a toy tokenizer whose tokens are words, with a chat template of a known size."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from twofold.bench.load.base import PromptMessage
from twofold.bench.prompts.prompter import TokenCounter

AROUND, END = 4, 3


@dataclass
class ToyCounter:
    """A word with the space before it is a token, but for those in ``split``, which are two.

    A message costs ``AROUND`` tokens more, and a prompt ``END``, where it is a chat.
    """

    chat: bool = True
    split: frozenset[str] = frozenset()
    most: int | None = None
    asked: list[tuple[PromptMessage, ...]] = field(default_factory=list)

    def counter(self) -> TokenCounter:
        return TokenCounter("a toy", self.count)

    def count(self, messages: tuple[PromptMessage, ...]) -> int | None:
        self.asked.append(messages)
        if self.chat:
            total = END + sum(AROUND + self.of(message.text) for message in messages)
        else:
            total = self.of("".join(message.text for message in messages))
        return None if self.most is not None and total > self.most else total

    def of(self, text: str) -> int:
        words = re.findall(r"\s?\S+", text)
        return len(words) + sum(word.strip() in self.split for word in words)


@dataclass
class CharacterCounter(ToyCounter):
    """A tokenizer with a token for every character."""

    def of(self, text: str) -> int:
        return len(text)


@dataclass
class PairCounter(ToyCounter):
    """A tokenizer with a token for two characters: no text has exactly one token in every context."""

    def of(self, text: str) -> int:
        return (len(text) + 1) // 2
