"""The reasoning section: its marks, and a parser that separates it from the start of a completion."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from twofold.text.parsers.base import MarkFinder, Piece, Reasoning, SectionParser
from twofold.text.parsers.template_support import TemplateProber
from twofold.text.templates.messages import Message
from twofold.text.tokenizers.tokenizer import Tokenizer

PAIRS: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|channel>thought", "<channel|>"),
)
"""Marks of Qwen, DeepSeek and most other models; of Mistral; of Seed; of Gemma 4."""
SWITCHES: Final = ("enable_thinking", "thinking")
"""Template variables that turn thinking on and off, as Qwen and Granite name them."""
PROBE: Final[Sequence[Message]] = ({"role": "user", "content": "?"},)


@dataclass(frozen=True, slots=True)
class ThinkingMarks:
    """How a model's thinking is written.

    start, end  the marks around it; ``start_ids`` and ``end_ids`` are their tokens
    opened      whether the chat template by default writes ``start`` at the end of the prompt
    switch      the template variable that turns reasoning on and off, or None
    """

    start: str
    end: str
    start_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    opened: bool
    switch: str | None

    def tokens_of(self, ids: tuple[int, ...]) -> int:
        """Number of tokens of a completion's thinking section, its marks included; all tokens if it is not closed."""
        end = self.end_ids
        for place in range(len(ids) - len(end) + 1):
            if ids[place : place + len(end)] == end:
                return place + len(end)
        return len(ids) if self.opened or ids[: len(self.start_ids)] == self.start_ids else 0


def thinking_marks(tokenizer: Tokenizer, prober: TemplateProber) -> ThinkingMarks | None:
    """The marks found in the chat template or among the control tokens; None for a model that does not think."""
    if not tokenizer.has_chat_template:
        return None
    for start, end in PAIRS:
        if end in prober.source or (tokenizer.token_id(start) is not None and tokenizer.token_id(end) is not None):
            opened = prober.rendered(PROBE).rstrip().endswith(start)
            start_ids, end_ids = (tuple(tokenizer.encode(mark, add_special_tokens=False)) for mark in (start, end))
            switch = next((name for name in SWITCHES if name in prober.source and _is_switch(prober, name)), None)
            return ThinkingMarks(start, end, start_ids, end_ids, opened, switch)
    return None


def _is_switch(prober: TemplateProber, name: str) -> bool:
    """Whether the prompt depends on this variable."""
    on, off = (prober.rendered(PROBE, variables={name: value}) for value in (True, False))
    return bool(on) and on != off


class ThinkingParser:
    """``SectionParser`` that reads a thinking section at the start of a completion, and passes the rest to ``then``.

    Space around the section's text is dropped. A section without an end is the whole completion.
    """

    def __init__(self, start: str, end: str, *, opened: bool, then: SectionParser) -> None:
        self._start = start
        self._finder = MarkFinder((end,))
        self._state = self._skip if opened else self._begin
        self._then = then
        self._left = ""
        self._space: list[str] = []

    def push(self, text: str) -> Sequence[Piece]:
        return self._state(text)

    def flush(self) -> Sequence[Piece]:
        if self._state == self._inside:
            return self._reasoning(self._left)
        return [*self._then.push("".join(self._space) + self._left), *self._then.flush()]

    def _begin(self, text: str) -> Sequence[Piece]:
        """Space, then the opening mark or other text."""
        text, self._left = self._left + text, ""
        body = text.lstrip()
        self._space.append(text[: len(text) - len(body)])
        if body.startswith(self._start):
            self._space, self._state = [], self._skip
            return self._skip(body[len(self._start) :])
        if self._start.startswith(body):
            self._left = body
            return ()
        whole = "".join(self._space) + body
        self._space, self._state = [], self._follow
        return self._then.push(whole)

    def _skip(self, text: str) -> Sequence[Piece]:
        """Space after the opening mark."""
        text = text.lstrip()
        if not text:
            return ()
        self._state = self._inside
        return self._inside(text)

    def _inside(self, text: str) -> Sequence[Piece]:
        text = self._left + text
        place, mark = self._finder.find(text)
        pieces = self._reasoning(text[:place])
        self._left = "" if mark else text[place:]
        if not mark:
            return pieces
        self._space, self._state = [], self._after
        return [*pieces, *self._after(text[place + len(mark) :])]

    def _reasoning(self, text: str) -> list[Piece]:
        """Withholds trailing space until more of the section follows."""
        body = text.rstrip()
        if not body:
            self._space.append(text)
            return []
        whole = "".join(self._space) + body
        self._space = [text[len(body) :]]
        return [Reasoning(whole)]

    def _after(self, text: str) -> Sequence[Piece]:
        """Space after the closing mark."""
        text = text.lstrip()
        if not text:
            return ()
        self._state = self._follow
        return self._then.push(text)

    def _follow(self, text: str) -> Sequence[Piece]:
        return self._then.push(text)
