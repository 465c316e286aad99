"""Arbitrary use of sockets: each connection ends in time, gets a response if possible, and does not harm the server."""

from __future__ import annotations

import asyncio
import gc
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace

import pytest

from tests.server.edge.service import (
    PATIENCE_S,
    Running,
    body_of,
    get,
    headers_of,
    post,
    read_all,
    running,
    status_of,
    wait_for,
)
from twofold.server.edge.limits import BodyLimits, ConnectionLimits
from twofold.server.edge.protocol import READS_PER_TURN, EdgeProtocol

LIMITS = ConnectionLimits(
    connections=40, spare=10, head_bytes=16384, head_lines=50, head_s=0.4, keep_alive_s=0.6, stall_s=0.6, linger_s=0.4
)
BODY = BodyLimits(bytes=200_000, seconds=0.5)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running(LIMITS, body=BODY) as server:
        yield server
        wait_for(lambda: server.open_connections == 0)


def check_alive(server: Running) -> None:
    assert status_of(server.exchange(get("/health"))) == 200


def read_until(client: socket.socket, last: bytes) -> None:
    read = b""
    while last not in read:
        piece = client.recv(65536)
        assert piece, "a connection in use was closed"
        read += piece


def test_a_request_is_answered(server: Running) -> None:
    response = server.exchange(post("/echo", b'{"a": 1}'))
    assert status_of(response) == 200
    assert body_of(response) == {"got": {"a": 1}}
    headers = headers_of(response)
    assert headers["x-request-id"] == headers["request-id"]
    assert headers["x-content-type-options"] == "nosniff"
    assert "server" not in headers


def test_a_request_may_arrive_in_any_pieces(server: Running) -> None:
    request = post("/echo", b'{"text": "in pieces"}')
    for size in (1, 2, 7, 50):
        parts = [request[start : start + size] for start in range(0, len(request), size)]
        assert body_of(server.exchange(*parts)) == {"got": {"text": "in pieces"}}


def test_pipelined_requests_are_served(server: Running) -> None:
    responses = server.exchange(get("/health", close=False) * 20 + get("/health"))
    assert responses.count(b"HTTP/1.1 200") == 21


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 200,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET\r\n\r\n",
        b"\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nbad header\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: a\r\nx: \x00\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 1, 2\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999999999999999999\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n",
        b"POST /echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" + b"F" * 30 + b"\r\n",
    ],
)
def test_invalid_bytes_get_a_400_in_json(server: Running, request_bytes: bytes) -> None:
    response = server.exchange(request_bytes)
    assert status_of(response) == 400
    assert body_of(response)["error"]["type"] == "invalid_request_error"
    assert headers_of(response)["connection"] == "close"


def test_unknown_encodings_and_methods_get_a_response(server: Running) -> None:
    unknown = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip\r\n\r\n"
    assert 400 <= status_of(server.exchange(unknown)) < 600
    assert status_of(server.exchange(get("/health").replace(b"GET", b"BREW"))) == 200
    assert status_of(server.exchange(get("http://localhost/health"))) == 404


@pytest.mark.parametrize("end", [b"", b"\r\n\r\n"])
@pytest.mark.parametrize(
    "head", [b"x: " + b"y" * 8_000_000, b"a:b\r\n" * 1000 + b"x: y", b"x: y" + b"\r\n z" * 5000, b"y" * 20_000 + b": z"]
)
def test_long_heads_get_a_431(server: Running, head: bytes, end: bytes) -> None:
    response = server.exchange(b"POST /v1/messages?beta=true HTTP/1.1\r\nhost: a\r\n" + head + end)
    assert status_of(response) == 431
    assert body_of(response)["type"] == "error"  # in the words of who asked
    check_alive(server)


def test_a_long_target_gets_a_431(server: Running) -> None:
    assert status_of(server.exchange(get("/" + "a" * 20_000))) == 431


def test_slow_heads_get_a_408(server: Running) -> None:
    """Although bytes keep arriving, as they would for half a minute."""
    sent = 0
    with server.connect() as client:
        client.sendall(b"GET /hea")
        with suppress(OSError):
            for byte in b"lth HTTP/1.1\r\nhost: localhost\r\n" + b"x" * 1000:
                client.sendall(bytes([byte]))
                sent += 1
                time.sleep(0.03)
        assert status_of(read_all(client)) == 408
    assert sent < 1000


def test_a_later_slow_head_gets_a_408(server: Running) -> None:
    with server.connect() as client:
        client.sendall(get("/health", close=False) + b"GET /")
        time.sleep(0.1)
        with suppress(OSError):
            client.sendall(b"h")
        response = read_all(client)
    assert response.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 408" in response


def test_silent_and_idle_connections_are_closed(server: Running) -> None:
    assert server.exchange() == b""
    assert server.exchange(get("/health", close=False)).count(b"HTTP/1.1") == 1


def test_a_connection_is_kept_for_requests_that_come_in_time() -> None:
    with running(replace(LIMITS, head_s=30.0, keep_alive_s=2.0)) as server, server.connect() as client:
        for _ in range(6):
            client.sendall(get("/health", close=False))
            read_until(client, b"}")
            time.sleep(0.4)


def test_slow_bodies_get_a_408(server: Running) -> None:
    response = server.exchange(post("/echo", b"")[:-2].replace(b"length: 0", b"length: 100") + b"\r\n{")
    assert status_of(response) == 408
    assert "body" in body_of(response)["error"]["message"]


def test_long_bodies_get_a_413_however_they_come(server: Running) -> None:
    announced = post("/echo", b"[" + b" " * 300_000)
    assert status_of(server.exchange(announced)) == 413
    chunks = b"".join(b"2710\r\n" + b" " * 10_000 + b"\r\n" for _ in range(400))
    head = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
    assert status_of(server.exchange(head + chunks)) == 413


def test_a_refusal_arrives_although_the_body_is_unread(server: Running) -> None:
    request = post("/echo", b"[" + b" " * 20_000_000)  # with connection: close
    for _ in range(5):
        with server.connect() as client:
            client.sendall(request)  # a server that had closed would reset this, and take its answer back
            assert status_of(read_all(client)) == 413


def test_a_wrong_content_length_is_harmless(server: Running) -> None:
    short = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n{}{}{}\r\n\r\n"
    response = server.exchange(short)
    assert response.startswith(b"HTTP/1.1 200")
    assert b"HTTP/1.1 400" in response


def test_many_tiny_chunks_are_refused_early(server: Running) -> None:
    crumbs = b"POST /echo HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\n1\r\n" * 30_000
    before = time.process_time()
    assert status_of(server.exchange(crumbs)) == 400
    assert time.process_time() - before < 2


def test_a_body_in_chunks_of_ordinary_size_is_accepted(server: Running) -> None:
    body = b"".join(b"64\r\n" + b" " * 100 + b"\r\n" for _ in range(1000)) + b"2\r\n{}\r\n0\r\n\r\n"
    head = b"POST /echo HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n"
    assert body_of(server.exchange(head + body)) == {"got": {}}


def test_a_client_that_keeps_sending_after_its_response_is_disconnected(server: Running) -> None:
    with server.connect() as client:
        client.sendall(b"POST /refuse HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\n\r\n")
        sent = 0
        with suppress(OSError):
            for _ in range(1500):  # half a minute
                client.sendall(b"x")
                sent += 1
                time.sleep(0.02)
    assert sent < 1500


def test_half_closed_requests_get_an_error(server: Running) -> None:
    for request in (b"GET /hea", post("/echo", b"{}")[:-1], get("/wait", close=False)):
        with server.connect() as client:
            client.sendall(request)
            time.sleep(0.05)
            client.shutdown(socket.SHUT_WR)
            assert status_of(read_all(client)) == 400


def test_a_disconnect_cancels_the_request(server: Running) -> None:
    before = server.service.left
    for _ in range(10):
        with server.connect() as client:
            client.sendall(get("/wait", close=False))
            time.sleep(0.02)
    wait_for(lambda: server.service.left >= before + 10)


def test_closed_connections_leave_no_reference_cycles(server: Running) -> None:
    """Otherwise one collection, which blocks the event loop, would free the objects of hundreds of connections."""
    before = server.service.left
    gc.collect()
    gc.disable()
    try:
        for _ in range(10):
            with server.connect() as client:
                client.sendall(get("/wait", close=False))
                time.sleep(0.02)
        wait_for(lambda: server.service.left >= before + 10 and server.open_connections == 0)
        wait_for(lambda: not any(issubclass(type(thing), EdgeProtocol) for thing in gc.get_objects()))
    finally:
        gc.enable()


def test_a_client_that_does_not_read_is_disconnected(server: Running) -> None:
    before = server.service.sent_bytes
    with server.connect(receive_buffer=4096) as client:
        client.sendall(get("/flood"))
        wait_for(lambda: server.service.sent_bytes > before)
        wait_for(lambda: server.open_connections == 0)
    check_alive(server)


def test_a_slow_reader_is_served(server: Running) -> None:
    with server.connect() as client:
        client.sendall(get("/large"))
        got = 0
        while piece := client.recv(200_000):
            got += len(piece)
            time.sleep(0.02)
    assert got > 3_000_000


def test_random_bytes_are_harmless(server: Running) -> None:
    source = random.Random(7)
    valid = post("/echo", b'{"a": [1, 2, 3]}') + get("/health")
    for _ in range(150):
        data = bytearray(valid)
        for _ in range(source.randrange(1, 8)):
            data[source.randrange(len(data))] = source.randrange(256)
        with server.connect() as client:
            with suppress(OSError):
                client.sendall(bytes(data))
                if source.random() < 0.5:
                    client.shutdown(socket.SHUT_WR)
            if source.random() < 0.1:
                response = read_all(client)
                assert not response or response.startswith(b"HTTP/1.1 ")
    check_alive(server)


def test_beyond_the_connection_limit_only_health_is_served() -> None:
    limits = replace(LIMITS, connections=5, spare=3, head_s=5.0, keep_alive_s=30.0)
    with running(limits) as server:
        held = [server.connect() for _ in range(5)]
        for client in held:
            client.sendall(get("/wait", close=False))
        wait_for(lambda: server.open_connections == 5)
        refused = server.exchange(get("/refuse"))
        assert status_of(refused) == 503
        assert 1 <= int(headers_of(refused)["retry-after"]) <= 120
        check_alive(server)
        spare = []
        for _ in range(3):
            spare.append(server.connect())
            spare[-1].sendall(get("/health", close=False))
            assert spare[-1].recv(65536)
        wait_for(lambda: server.open_connections == 8)
        assert server.exchange(get("/health")) == b""
        for client in (*held, *spare):
            client.close()
        wait_for(lambda: server.open_connections == 0)
        assert status_of(server.exchange(get("/refuse"))) == 404


def test_silent_connections_are_closed_for_new_ones() -> None:
    """Three hundred silent connections, or heads that never end, on a server of 40: requests are not refused."""
    limits = replace(LIMITS, head_s=30.0, keep_alive_s=30.0)
    with running(limits) as server, ExitStack() as open_sockets:
        for number in range(300):
            client = open_sockets.enter_context(server.connect())
            with suppress(OSError):
                client.sendall(b"GET /refuse HTTP/1.1\r\nHost: localhost\r\nX-A: " if number % 2 else b"")
            if number % 20 == 0:
                assert status_of(server.exchange(get("/refuse"))) == 404
        wait_for(lambda: server.open_connections <= limits.connections)
        kept = open_sockets.enter_context(server.connect())
        for _ in range(5):
            kept.sendall(get("/health", close=False))
            read_until(kept, b"true")
            for _ in range(60):
                open_sockets.enter_context(server.connect())
            assert status_of(server.exchange(get("/refuse"))) == 404


def test_idle_connections_are_closed_for_new_ones() -> None:
    limits = replace(LIMITS, connections=3, keep_alive_s=30.0)
    with running(limits) as server:
        idle = [server.connect() for _ in range(3)]
        for client in idle:
            client.sendall(get("/health", close=False))
            read_until(client, b"true")
        time.sleep(1.3)
        assert status_of(server.exchange(get("/refuse"))) == 404
        for client in idle:
            client.close()


def test_a_turn_of_the_event_loop_handles_few_connections_and_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 clients connect and send while the loop is blocked, and send again while it is blocked again."""
    turns = 0
    calls: dict[str, Counter[int]] = {"connection_made": Counter(), "_parse": Counter()}
    blocked, released, done = threading.Event(), threading.Event(), threading.Event()

    def counted(name: str) -> None:
        original = getattr(EdgeProtocol, name)

        def call(self: EdgeProtocol, argument: object) -> None:
            calls[name][turns] += 1
            original(self, argument)

        monkeypatch.setattr(EdgeProtocol, name, call)

    def turn(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal turns
        turns += 1
        if not done.is_set():
            loop.call_soon(turn, loop)

    def block() -> None:
        blocked.set()
        released.wait(PATIENCE_S)

    with running(replace(LIMITS, connections=400, keep_alive_s=30.0)) as server, ExitStack() as open_sockets:
        clients = [open_sockets.enter_context(server.connect())]
        wait_for(lambda: server.open_connections == 1)
        loop = next(iter(server.server.server_state.connections)).loop
        loop.call_soon_threadsafe(turn, loop)
        for name in calls:
            counted(name)
        for _ in range(2):
            loop.call_soon_threadsafe(block)
            assert blocked.wait(PATIENCE_S)
            clients += [open_sockets.enter_context(server.connect()) for _ in range(200 - len(clients))]
            for client in clients:
                client.sendall(get("/health", close=False))
            released.set()
            for client in clients:
                read_until(client, b"true")
            blocked.clear()
            released.clear()
        done.set()
    assert {name: sum(counts.values()) for name, counts in calls.items()} == {"connection_made": 199, "_parse": 400}
    assert {name: max(counts.values()) for name, counts in calls.items()} == dict.fromkeys(calls, READS_PER_TURN)
