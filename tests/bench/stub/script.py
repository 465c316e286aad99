"""The script of a request: the object under ``"stub"`` in its body."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

What: TypeAlias = Literal["text", "empty", "ping", "error", "raw", "cut", "reset"]
"""What leaves at a step: output, an event without output, a keep-alive, an error event, bytes as they stand, or nothing
more at all: the connection is cut (FIN) or reset (RST)."""


@dataclass(frozen=True, slots=True)
class Step:
    """What happens ``at_s`` after the request arrived, or was taken up where the stub has a capacity.

    Steps of the same moment leave in one write. ``text`` is the message of an error, or the raw bytes; raw bytes with
    ``tokens`` count as a chunk with output.
    """

    at_s: float
    what: What = "text"
    tokens: int = 1
    text: str = ""


@dataclass(frozen=True, slots=True)
class Script:
    """How to respond to one request.

    id                 under which the truth is kept; else the requests are counted
    steps              what to send; else chunks of ``tokens`` tokens, from ``first_s`` on, ``gap_s`` apart, until the
                       completion has as many tokens as the request asks
    head_s             when the response's head leaves; else with the first step
    tail_s             how long after the last step the end of the response is sent
    status, body       of a response without a completion; without ``body``, an error of the API
    stream             whether the response is a stream; by default as the request says
    usage, done        whether the response has a usage, and marks its end
    told               how chunks say how many tokens they hold: not at all, by their ids, or by running usage
    newline            how lines of events end
    chunk_bytes        most bytes of a chunk of HTTP; else a chunk for each write
    piece_bytes        most bytes of a write, ``piece_gap_s`` apart; the head is cut as well
    framing            how the end of the body is known
    hang_up            close the connection after the response, without having said so
    early_hints        a response 103 comes first
    """

    id: str = ""
    steps: tuple[Step, ...] = ()
    first_s: float = 0.0
    gap_s: float = 0.0
    tokens: int = 1
    head_s: float | None = None
    tail_s: float = 0.0
    status: int = 200
    body: str | None = None
    stream: bool | None = None
    usage: bool = True
    done: bool = True
    told: Literal["none", "ids", "usage"] = "none"
    newline: str = "\n"
    chunk_bytes: int | None = None
    piece_bytes: int | None = None
    piece_gap_s: float = 0.0
    framing: Literal["chunked", "close", "length"] = "chunked"
    hang_up: bool = False
    early_hints: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Script:
        """Reads a script from a body. Raises TypeError for unknown fields."""
        steps = tuple(Step(**step) for step in given.get("steps", ()))
        return cls(**{**given, "steps": steps})

    @property
    def fields(self) -> dict[str, Any]:
        """The fields for ``Ask.fields`` that differ from a plain script."""
        told = dataclasses.asdict(self)
        return {"stub": {name: value for name, value in told.items() if value != getattr(PLAIN, name)}}

    def each(self, most_tokens: int) -> Iterator[Step]:
        """The steps of a response to a request for ``tokens`` tokens."""
        if self.steps:
            yield from self.steps
            return
        for index, before in enumerate(range(0, most_tokens, self.tokens)):
            yield Step(self.first_s + index * self.gap_s, "text", min(self.tokens, most_tokens - before))


PLAIN = Script()


def at(*moments: float, tokens: int = 1) -> tuple[Step, ...]:
    """Chunks of ``tokens`` tokens at these moments."""
    return tuple(Step(moment, "text", tokens) for moment in moments)
