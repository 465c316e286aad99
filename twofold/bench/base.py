"""The seams of the load generator: what an endpoint and a watcher are to the client that sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from twofold.bench.load.base import Ask
from twofold.bench.record import RecordedResponse, RequestSample


class BodyReader(Protocol):
    """Reads the body of one successful response into an ``RecordedResponse``."""

    def event(self, name: str | None, data: bytes, moment: float) -> None:
        """An event of a stream, all of whose bytes had come at ``moment``. ``name`` is that of its ``event:`` line.

        Raises ValueError where it is not what the endpoint's dialect says.
        """
        ...

    def whole(self, body: bytes, moment: float) -> None:
        """A response that is no stream. Raises ValueError as ``event`` does."""
        ...


class Endpoint(Protocol):
    """A dialect's way to ask for an answer."""

    @property
    def name(self) -> str: ...

    @property
    def path(self) -> str:
        """Under the server's base URL: /v1/chat/completions."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Of every request, but for those of HTTP itself."""
        ...

    def body(self, ask: Ask) -> bytes:
        """The JSON to send."""
        ...

    def reader(self, answer: RecordedResponse) -> BodyReader: ...

    def error(self, body: bytes) -> str:
        """One sentence of what an error's body says; of any bytes."""
        ...


class Watcher(Protocol):
    """Hears what happens while a load is sent, about ten times a second; takes little time."""

    def look(self, now_s: float, samples: list[RequestSample], open_requests: int) -> None:
        """``samples`` are all that began so far, in the order in which they did; those that ended say so."""
        ...
