"""Answers of chats, divided into what was thought, what was said, and which tools were called."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from twofold.api.base import ModelFacts
from twofold.core.step import FinishReason
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, SectionParser, ToolCall

NOTHING: Final = "{}"
"""The arguments of a call that wrote none."""


@dataclass(slots=True)
class CallMade:
    """A call, and the JSON text of its arguments as far as it has come."""

    name: str
    arguments: str = ""


class AnswerReader:
    """One answer, as it comes: its parts are put together while pieces are handed on."""

    def __init__(self, parser: SectionParser) -> None:
        self._parser = parser
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[CallMade] = []

    @property
    def content(self) -> str:
        return "".join(self._content)

    @property
    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def take(self, delta: OutputDelta) -> list[Piece]:
        """The pieces that a step made certain; all that is left with the delta that ends the answer."""
        return self._kept(delta.text, last=delta.finish_reason is not None)

    def read(self, text: str) -> AnswerReader:
        """Takes a whole answer."""
        self._kept(text, last=True)
        return self

    def called(self, finish: FinishReason | None) -> bool:
        """Whether the answer ended, by itself, with calls."""
        return bool(self.calls) and finish == "stop"

    def _kept(self, text: str, *, last: bool) -> list[Piece]:
        pieces = list(self._parser.push(text)) if text else []
        if last:
            pieces += self._parser.flush()
        for piece in pieces:
            match piece:
                case Content(said):
                    self._content.append(said)
                case Reasoning(thought):
                    self._reasoning.append(thought)
                case ToolCall(_, name):
                    self.calls.append(CallMade(name))
                case Arguments(index, part):
                    self.calls[index].arguments += part
        return pieces


def read_answer(parser: SectionParser, text: str) -> AnswerReader:
    """A whole answer."""
    return AnswerReader(parser).read(text)


def reasoning_tokens(outputs: Sequence[RequestOutput], model: ModelFacts) -> int:
    """Tokens of the thinking sections of all answers, their marks included."""
    marks = model.format.thinking
    if marks is None:
        return 0
    start = tuple(model.tokenizer.encode(marks.start, add_special_tokens=False))
    end = tuple(model.tokenizer.encode(marks.end, add_special_tokens=False))
    answers = (answer.token_ids for output in outputs for answer in output.outputs)
    return sum(_thought(ids, start, end, opened=marks.opened) for ids in answers)


def _thought(ids: tuple[int, ...], start: tuple[int, ...], end: tuple[int, ...], *, opened: bool) -> int:
    """Up to the end of the section's last mark; all of an answer that never closes what was open from the start."""
    places = range(len(ids) - len(end) + 1)
    closed = next((place for place in places if ids[place : place + len(end)] == end), None)
    if closed is not None:
        return closed + len(end)
    return len(ids) if opened or ids[: len(start)] == start else 0
