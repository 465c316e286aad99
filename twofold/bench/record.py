"""Records of a load: requests, their times and responses.

All times are seconds after the start of the run on one clock. A request has up to six times:

    due ≤ started ≤ sent ≤ first ≤ last ≤ ended

The load sets ``due``. At ``started`` the client opened a connection for the request, or took an open one. At ``sent``
its last byte was handed to the kernel. At ``first`` and ``last`` the kernel received the first and last chunk with
output, and at ``ended`` the last byte of the response. ``due`` and ``started`` differ if the maximum of open requests
is reached, or if the client is too slow. Latency counts from ``due``: otherwise the wait of requests for a frozen
server would not be counted (coordinated omission: Gil Tene, "How NOT to Measure Latency", 2013).
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from twofold.bench.load.base import Ask, Outcome

UNKNOWN: Final = -1
"""Stands for the number of tokens of a chunk that the server does not report."""

Count: TypeAlias = Annotated[int, Meta(ge=0)]


@dataclass(slots=True)
class RecordedResponse:
    """A response as received. Chunks are the events of a stream that have output.

    moments, tokens, texts   arrival time, number of tokens (or UNKNOWN) and text of each chunk
    empty, pings             events without output, and keep-alives
    streamed                 whether it was streamed; otherwise the whole completion is one chunk
    prompt_tokens …          token counts of the server's usage; None if unknown
    done                     whether the server marked the completion as complete
    """

    moments: array[float] = field(default_factory=lambda: array("d"))
    tokens: array[int] = field(default_factory=lambda: array("i"))
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

    def chunk(self, moment: float, text: str, tokens: int = UNKNOWN) -> None:
        """Adds output that arrived at ``moment``. ``text`` may be empty: reasoning and tool calls are not kept."""
        self.moments.append(moment)
        self.tokens.append(tokens)
        self.texts.append(text)

    @property
    def text(self) -> str:
        return "".join(self.texts)


@dataclass(slots=True)
class RequestSample:
    """A request and its result, from which all metrics are computed.

    started_s   None if the client never started it
    connect_s   seconds to open a connection; None if an open one was used
    status      of the HTTP response; None without one
    error       one sentence if the outcome is not ok
    request_id  id of the request in the response
    lag_s       longest time from the arrival of bytes of the response to their read
    merged      chunks that were read together with the next one, and so have its time
    """

    ask: Ask
    response: RecordedResponse = field(default_factory=RecordedResponse)
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
        return self.response.moments[0] if self.response.moments else None

    @property
    def last_s(self) -> float | None:
        return self.response.moments[-1] if self.response.moments else None

    @property
    def text(self) -> str:
        """The completion."""
        return self.response.text

    @property
    def output_tokens(self) -> int | None:
        """Tokens in the usage, or else the sum over chunks if all have counts; None if unknown."""
        if self.response.completion_tokens is not None:
            return self.response.completion_tokens
        if self.response.tokens and UNKNOWN not in self.response.tokens:
            return sum(self.response.tokens)
        return None if self.response.tokens or self.outcome == "ok" else 0


class Client(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Resources and lag of the client, which show whether it was a bottleneck."""

    wall_s: float
    cpu_s: Annotated[float, Meta(description="processor seconds of the client's process in wall_s")]
    lag_p50_s: Annotated[float, Meta(description="time from the arrival of bytes in the kernel to their read")]
    lag_p99_s: float
    stamps: Annotated[Literal["kernel", "client"], Meta(description="source of arrival times")]
    events: Annotated[Count, Meta(description="events of all kinds")]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """A load that was sent, possibly interrupted.

    load         description of the load
    duration_s   time in which requests became due: as given, or until the last request was sent
    began_unix   wall-clock time of the start, in seconds since 1970
    """

    load: Mapping[str, Any]
    samples: tuple[RequestSample, ...]
    duration_s: float
    client: Client
    began_unix: float
    interrupted: bool = False


def plain(value: Any) -> Any:
    """Records as plain data for JSON, with the names of their fields; infinite and missing numbers become None."""
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, msgspec.Struct):
        return plain(msgspec.structs.asdict(value))
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value
