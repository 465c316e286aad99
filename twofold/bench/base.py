"""What the parts of the load generator are to each other: endpoints, watchers, single requests and token counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias

from twofold.bench.load.base import Ask, PromptMessage
from twofold.bench.record import RecordedResponse, RequestSample

REFUSALS: Final = frozenset({429, 503, 529})
"""Statuses of an overloaded server."""

Reply: TypeAlias = tuple[int, Mapping[str, str], bytes]
"""Status, headers (names in lower case) and body."""

Exchange: TypeAlias = Callable[[str, str, bytes | None, Mapping[str, str]], Reply]
"""Sends one request (method, path, body, headers) outside of a load. Raises NetworkError without a response."""


@dataclass(frozen=True, slots=True)
class TokenCounter:
    """Counts the tokens of prompts as the measured server does.

    source  where its counts are from, for the report
    count   tokens of the whole prompt, chat template included; None if unknown
    """

    source: str
    count: Callable[[tuple[PromptMessage, ...]], int | None]


class BodyReader(Protocol):
    """Reads the body of one successful response into a ``RecordedResponse``."""

    def event(self, name: str | None, data: bytes, moment: float) -> None:
        """Reads an event of a stream, complete at ``moment``. ``name`` is in its ``event:`` line.

        Raises ValueError if it does not match the API.
        """
        ...

    def whole(self, body: bytes, moment: float) -> None:
        """Reads a response that is no stream. Raises ValueError as ``event`` does."""
        ...


class Endpoint(Protocol):
    """An endpoint of an API for completions."""

    @property
    def path(self) -> str:
        """Relative to the server's base URL: /v1/chat/completions."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers of every request, except those of HTTP itself."""
        ...

    def body(self, ask: Ask) -> bytes:
        """The JSON to send."""
        ...

    def reader(self, answer: RecordedResponse) -> BodyReader: ...


class Watcher(Protocol):
    """Is called about ten times a second while a load is sent; must be quick."""

    def look(self, now_s: float, samples: list[RequestSample], open_requests: int) -> None:
        """``samples`` are all requests that were started, in that order."""
        ...
