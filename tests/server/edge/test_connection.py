"""The bounded connection and the writer of streams send the same bytes as h11."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import h11
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.server.edge.limits import ConnectionLimits
from twofold.server.edge.protocol import BoundedConnection, StreamWriter

PLAIN = [(b"content-type", b"text/event-stream")]


def _sent(connection: h11.Connection, request: bytes, headers: list[tuple[bytes, bytes]], pieces: list[bytes]) -> bytes:
    """All bytes of an answer in these pieces."""
    connection.receive_data(request)
    assert isinstance(connection.next_event(), h11.Request)
    events = [h11.Response(status_code=200, headers=headers), *(h11.Data(data=piece) for piece in pieces)]
    return b"".join(connection.send(event) or b"" for event in [*events, h11.EndOfMessage()])


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=5), st.sampled_from([b"1.0", b"1.1"]))
@settings(max_examples=60, deadline=None)
def test_pieces_of_a_stream_are_framed_as_h11_frames_them(pieces: list[bytes], version: bytes) -> None:
    sent: Any = []
    connection, request = BoundedConnection(ConnectionLimits()), b"GET / HTTP/%b\r\nhost: a\r\n\r\n" % version
    connection.receive_data(request)
    connection.next_event()
    head = connection.send(h11.Response(status_code=200, headers=PLAIN))
    writer = StreamWriter(SimpleNamespace(write=sent.append), connection, Mock())  # type: ignore[arg-type]
    for piece in pieces:
        writer.write(piece)
    ours = [head, *sent, connection.send(h11.EndOfMessage())]
    assert b"".join(part or b"" for part in ours) == _sent(h11.Connection(h11.SERVER), request, PLAIN, pieces)


@given(st.lists(st.binary(max_size=40), max_size=5), st.sampled_from([b"1.0", b"1.1"]), st.booleans())
@settings(max_examples=60, deadline=None)
def test_answers_are_framed_as_h11_frames_them(pieces: list[bytes], version: bytes, sized: bool) -> None:
    length = (b"content-length", str(sum(map(len, pieces))).encode())
    headers = [*PLAIN, length] if sized else PLAIN
    request = b"GET / HTTP/%b\r\nhost: a\r\n\r\n" % version
    ours = _sent(BoundedConnection(ConnectionLimits()), request, headers, pieces)
    assert ours == _sent(h11.Connection(h11.SERVER), request, headers, pieces)


def test_a_head_request_gets_no_chunks() -> None:
    request = b"HEAD / HTTP/1.1\r\nhost: a\r\n\r\n"
    assert _sent(BoundedConnection(ConnectionLimits()), request, PLAIN, [b""]).endswith(b"\r\n\r\n")


def test_a_piece_after_the_end_is_refused() -> None:
    connection = BoundedConnection(ConnectionLimits())
    _sent(connection, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", PLAIN, [b"piece"])
    with pytest.raises(h11.LocalProtocolError):
        connection.send(h11.Data(data=b"more"))
