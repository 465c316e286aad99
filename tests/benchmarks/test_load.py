"""The load generator against a server of a few lines that answers when and as it is told."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager

import pytest

from benchmarks.http import load
from benchmarks.http.load import Call, Load, Reply, read_reply

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
REFUSAL = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nbusy"
PAUSE_S = 0.05
Piece = bytes | float
"""What the server writes, or how long it waits."""


def event(text: str) -> bytes:
    return chunk(b'data: {"choices":[{"index":0,"text":"%b","finish_reason":null}]}\n\n' % text.encode())


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


USAGE = chunk(b'data: {"choices":[],"usage":{"completion_tokens":7}}\n\ndata: [DONE]\n\n')
END = b"0\r\n\r\n"


@contextmanager
def answering(script: Sequence[Piece]) -> Iterator[int]:
    """A server that gives every request this answer; its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=_accept, args=(listening, script), daemon=True).start()
        yield listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)


def _accept(listening: socket.socket, script: Sequence[Piece]) -> None:
    while True:
        try:
            connection, _ = listening.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(connection, script), daemon=True).start()


def _answer(connection: socket.socket, script: Sequence[Piece]) -> None:
    with closing(connection):
        request = b""
        while b"\r\n\r\n{}" not in request:
            request += connection.recv(4096)
        try:
            for piece in script:
                time.sleep(piece) if isinstance(piece, float) else connection.sendall(piece)
            connection.recv(1)  # until the client has closed
        except OSError:
            pass


def _accept_and_close(listening: socket.socket) -> None:
    connection, _ = listening.accept()
    connection.close()


def asked(script: Sequence[Piece], dues: Sequence[float] = (0.0,), limit_s: float = 5.0) -> list[Reply]:
    with answering(script) as port:
        return Load(port).run([Call(due, "/v1/completions", {}) for due in dues], limit_s)


def test_tokens_and_their_times_are_read() -> None:
    (reply,) = asked([HEAD, event(""), PAUSE_S, event("a"), PAUSE_S, event("b"), event("c"), USAGE + END])
    told = read_reply(reply)
    assert (told.status, told.error, told.tokens) == (200, None, 7)
    assert told.first is not None
    assert told.last is not None
    assert PAUSE_S <= told.first < told.last
    assert told.last - told.first >= PAUSE_S * 0.9
    assert told.tpot_s == pytest.approx((told.last - told.first) / 6)


def test_an_answer_without_usage_has_a_token_for_each_event_with_text() -> None:
    (reply,) = asked([HEAD + event("") + event("a") + event("b") + END])
    assert read_reply(reply).tokens == 2


@pytest.mark.parametrize("size", [1, 7, 64])
def test_it_does_not_matter_how_the_bytes_are_cut(size: int) -> None:
    whole = HEAD + event("a") + event("b") + USAGE + END
    (reply,) = asked([whole[at : at + size] for at in range(0, len(whole), size)])
    assert reply.ended is not None
    assert read_reply(reply).tokens == 7


def test_a_refusal_is_an_error_with_its_status() -> None:
    (reply,) = asked([REFUSAL])
    told = read_reply(reply)
    assert reply.ended is not None
    assert (told.status, told.error, told.first) == (503, "busy", None)


def test_what_has_not_ended_in_time_is_given_up() -> None:
    began = time.monotonic()
    (reply,) = asked([HEAD + event("a"), 10.0], limit_s=0.3)
    assert time.monotonic() - began < 2.0
    assert reply.ended is None
    assert read_reply(reply).error == "not all of it came"
    assert read_reply(reply).tokens == 1


def test_a_connection_that_is_closed_early_has_not_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.listen()
        threading.Thread(target=_accept_and_close, args=(listening,), daemon=True).start()
        (reply,) = Load(listening.getsockname()[1]).run([Call(0.0, "/", {})], 5.0)
    assert reply.ended is None
    assert read_reply(reply).error == "no answer"


def test_requests_leave_when_they_are_due_whatever_became_of_others() -> None:
    dues = [0.0, 0.05, 0.1, 0.1]
    replies = asked([0.3, HEAD + event("a") + END], dues)
    for due, reply in zip(dues, replies, strict=True):
        assert reply.sent is not None
        assert due <= reply.sent < due + 0.05
        assert reply.ended is not None


def test_open_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load, "MOST_OPEN", 2)
    replies = asked([0.2, HEAD + event("a") + END], [0.0, 0.0, 0.0])
    assert [reply.sent is None for reply in replies] == [False, False, True]
    assert read_reply(replies[2]).error == "no answer"


def test_a_server_that_is_not_there_is_no_exception() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    (reply,) = Load(port).run([Call(0.0, "/", {})], 1.0)
    assert reply.sent is None
