"""What a load asks, and what came of it.

All times are seconds after the start of the run on one clock. A request has up to five moments:

    due ≤ started ≤ sent ≤ first ≤ last ≤ ended

It is ``due`` when the load says so. It ``started`` when the client turned to it: a connection is opened, or one that is
open is taken. It was ``sent`` when its last byte was handed to the kernel. The ``first`` and the ``last`` chunk with
output came when the kernel had them, and it ``ended`` with the last byte of the reply. ``due`` and ``started`` differ
where the client may not have more requests open, or is itself too slow: a server's answer to a request counts from when
it was due, or else a frozen server hides what waits for it (coordinated omission: Gil Tene, "How NOT to Measure
Latency", 2013).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from twofold.bench.load.base import Ask, Outcome

UNKNOWN: Final = -1
"""The number of tokens of a chunk whose server does not say it."""


@dataclass(slots=True)
class RecordedResponse:
    """What a server said, as it came. Chunks are the events of a stream that hold output.

    moments, tokens, chars   of each chunk: when it came, how many tokens it holds (or UNKNOWN), characters of its text
    texts                    of each chunk; all in one once the request has ended
    empty, pings             events without output, and keep-alives
    streamed                 whether it came as events; else the whole answer is one chunk
    prompt_tokens …          as the server's usage says; None where it says nothing
    done                     whether the server said that the answer is complete
    """

    moments: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[int] = field(default_factory=lambda: array("i"))
    chars: array[int] = field(default_factory=lambda: array("i"))
    texts: list[str] = field(default_factory=list)
    empty: int = 0
    pings: int = 0
    streamed: bool = True
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    finish: str | None = None
    error: str | None = None
    done: bool = False

    def chunk(self, moment: float, text: str, tokens: int = UNKNOWN, chars: int | None = None) -> None:
        """Adds output that arrived at ``moment``, with ``chars`` characters including reasoning and tool calls."""
        self.moments.append(moment)
        self.tokens.append(tokens)
        self.chars.append(len(text) if chars is None else chars)
        self.texts.append(text)

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def close(self) -> None:
        """Makes one text of many, which take ten times the memory."""
        self.texts = [self.text]


@dataclass(slots=True)
class RequestSample:
    """A request and what came of it: the row that every metric is made of.

    started_s   None where the client never turned to it
    connect_s   seconds that a new connection took; None where one was open already
    status      of the HTTP response; None where there was none
    error       one sentence where the outcome is not ok
    request_id  as the server calls it, if it does
    lag_s       the longest that bytes of its reply lay in the kernel before the client read them
    merged      chunks that were read together with the one after them, and so have its moment
    """

    ask: Ask
    answer: RecordedResponse = field(default_factory=RecordedResponse)
    outcome: Outcome = "unfinished"
    started_s: float | None = None
    sent_s: float | None = None
    ended_s: float | None = None
    connect_s: float | None = None
    status: int | None = None
    error: str | None = None
    request_id: str | None = None
    lag_s: float = 0.0
    merged: int = 0

    @property
    def first_s(self) -> float | None:
        return self.answer.moments[0] if self.answer.moments else None

    @property
    def last_s(self) -> float | None:
        return self.answer.moments[-1] if self.answer.moments else None

    @property
    def text(self) -> str:
        """The answer."""
        return self.answer.text

    @property
    def output_tokens(self) -> int | None:
        """As the server counts them; else the sum over its chunks, where each says it. None where nobody knows."""
        if self.answer.completion_tokens is not None:
            return self.answer.completion_tokens
        if self.answer.tokens and UNKNOWN not in self.answer.tokens:
            return sum(self.answer.tokens)
        return None if self.answer.tokens or self.outcome == "ok" else 0


@dataclass(frozen=True, slots=True)
class ClientLoad:
    """What the client itself did, to tell whether it was the bottleneck.

    cpu_s     processor seconds of the client's process in ``wall_s``
    lag_p50_s, lag_p99_s   how long what came lay in the kernel before the client read it (or, where the kernel does not
              stamp, how long a look at the sockets took)
    stamps    whether moments of arrival are the kernel's or the client's
    events    chunks of all kinds that were read
    """

    wall_s: float
    cpu_s: float
    lag_p50_s: float
    lag_p99_s: float
    stamps: Literal["kernel", "client"]
    events: int


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A load that was sent, whole or until someone stopped it.

    load         what was asked, in words and numbers
    duration_s   for which requests became due: of an open loop as asked, else until the last was sent
    began_unix   wall-clock time of the start
    """

    load: Mapping[str, Any]
    samples: tuple[RequestSample, ...]
    duration_s: float
    client: ClientLoad
    began_unix: float
    interrupted: bool = False
