"""Server-sent events from bytes, however they are cut (WHATWG HTML, section 9.2).

Lines end in LF, CRLF or CR; an empty line ends an event. Comments, which servers send to keep a connection alive, are
counted as pings. ``id`` and ``retry`` say nothing to a client that does not come back, and are passed over.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from twofold.bench.client.response import ProtocolError

MAX_EVENT: Final = 8 * 1024 * 1024
LF: Final = 0x0A
BOM: Final = b"\xef\xbb\xbf"

Event: TypeAlias = tuple[str | None, bytes]
"""The name that its ``event:`` line gives, and its data."""


class EventReader:
    """Events of one stream. ``pings`` counts comments since the start."""

    __slots__ = ("_carriage", "_pending", "pings")

    def __init__(self) -> None:
        self.pings = 0
        self._pending = b""
        self._carriage = False

    def feed(self, data: bytes) -> list[Event]:
        """The events that are whole with ``data``. Raises ProtocolError where one is longer than ``MAX_EVENT``."""
        if self._carriage or b"\r" in data:
            data = self._line_feeds(data)
        if self._pending:
            data = self._pending + data
        if data.startswith(b"data: ") and data.find(b"\n") == len(data) - 2 and data[-1] == LF:
            self._pending = b""
            return [(None, data[6:-2])]  # one event of one line: what nearly every read is
        *blocks, self._pending = data.split(b"\n\n")
        if len(self._pending) > MAX_EVENT:
            raise ProtocolError(f"An event of the stream is longer than {MAX_EVENT} bytes.")
        events: list[Event] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                events.append((None, block[6:]))
            else:
                self._block(block, events)
        return events

    def end(self) -> list[Event]:
        """What a stream held that ended without an empty line: some servers do not end their last event."""
        events: list[Event] = []
        self._block(self._pending, events)
        self._pending = b""
        return events

    def _line_feeds(self, data: bytes) -> bytes:
        """All line ends as LF. A CR at the end may be half a CRLF: it ends the line, and an LF after it is dropped."""
        if self._carriage and data:
            data = data[1:] if data.startswith(b"\n") else data
            self._carriage = False
        self._carriage = self._carriage or data.endswith(b"\r")
        return data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _block(self, block: bytes, events: list[Event]) -> None:
        name: str | None = None
        data: list[bytes] = []
        for line in block.removeprefix(BOM).split(b"\n"):
            field, _, value = line.partition(b":")
            value = value.removeprefix(b" ")
            if field == b"data":
                data.append(value)
            elif field == b"event":
                name = value.decode("utf-8", "replace")
            elif line.startswith(b":"):
                self.pings += 1
        if data:
            events.append((name, b"\n".join(data)))
