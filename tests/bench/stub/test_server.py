"""The stub follows scripts and their times, and its records are true."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Final

import pytest

from tests.bench.stub.live import LiveStub, stub_server
from tests.bench.stub.script import Script, Step, at

PATIENCE_S: Final = 10.0
"""How much later than it should the stub may be on a machine that is busy."""


@pytest.fixture(scope="module")
def stub() -> Iterator[LiveStub]:
    with stub_server() as live:
        yield live


@contextmanager
def connected(stub: LiveStub) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", stub.port), timeout=60) as link:
        yield link


def send(link: socket.socket, script: Script, *, tokens: int = 2, model: str = "stub") -> None:
    messages = [{"role": "user", "content": "a b c"}]
    body = json.dumps({"model": model, "messages": messages, "stream": True, "max_tokens": tokens, **script.fields})
    link.sendall(f"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())


def read_all(link: socket.socket) -> bytes:
    """Reads until the end of a chunked body or of the stream."""
    told = b""
    while not told.endswith(b"\r\n0\r\n\r\n") and (data := link.recv(65536)):
        told += data
    return told


def ask(stub: LiveStub, script: Script, *, tokens: int = 2) -> bytes:
    with connected(stub) as link:
        send(link, script, tokens=tokens)
        return read_all(link)


def test_chunks_leave_when_the_script_says_and_the_truth_says_when(stub: LiveStub) -> None:
    stub.rules()
    began = time.perf_counter()
    ask(stub, Script(id="timed", first_s=0.1, gap_s=0.05), tokens=3)
    took = time.perf_counter() - began
    truth = stub.truths()["timed"]
    assert began <= truth.arrived <= truth.before[0] - 0.1
    for index, (before, after) in enumerate(zip(truth.before, truth.after, strict=True)):
        assert 0 <= before - (truth.arrived + 0.1 + 0.05 * index) < PATIENCE_S
        assert before <= after
    assert truth.before[-1] - truth.arrived <= took


def test_a_connection_serves_one_request_after_the_other(stub: LiveStub) -> None:
    stub.rules()
    with connected(stub) as link:
        for name in "ab":
            send(link, Script(id=name))
            assert read_all(link).count(b'" w"') == 2
    truths = stub.truths()
    assert truths["a"].connection == truths["b"].connection
    assert list(truths) == ["a", "b"]


def test_a_frozen_stub_does_nothing_at_all(stub: LiveStub) -> None:
    stub.rules(freeze_at_s=0.05, freeze_s=0.4)
    ask(stub, Script(id="frozen", steps=at(0.0, 0.1, 0.6)))
    first, second, third = (moment - stub.truths()["frozen"].arrived for moment in stub.truths()["frozen"].before)
    assert first < 0.05 + PATIENCE_S
    assert second >= 0.45
    assert third >= 0.6


def test_beyond_its_capacity_requests_queue_for_exactly_the_service_of_others(stub: LiveStub) -> None:
    stub.rules(capacity=1)
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda name: ask(stub, Script(id=name, first_s=0.5)), "abc"))
    first, *others = sorted(stub.truths().values(), key=lambda truth: truth.taken)
    assert first.taken == first.arrived
    assert [other.taken - first.taken for other in others] == pytest.approx([0.5, 1.0], abs=1e-6)


def test_a_client_that_leaves_frees_its_place(stub: LiveStub) -> None:
    stub.rules(capacity=1)
    with connected(stub) as link:
        send(link, Script(first_s=60.0))
        time.sleep(0.05)
    assert b'" w"' in ask(stub, Script())


def test_connections_are_cut(stub: LiveStub) -> None:
    assert ask(stub, Script(steps=(Step(0.0), Step(0.1, "cut")))).endswith(b"\n\n\r\n")


def test_connections_are_reset(stub: LiveStub) -> None:
    with pytest.raises(ConnectionResetError):
        ask(stub, Script(steps=(Step(0.0), Step(0.1, "reset"))))


def test_keys_and_models_are_checked(stub: LiveStub) -> None:
    stub.rules(key="secret")
    status, body = stub.exchange("GET", "/v1/models")
    assert (status, json.loads(body)["error"]["message"]) == (401, "That key is not known.")
    stub.rules()
    with connected(stub) as link:
        send(link, Script(), model="other")
        assert b"404 Not Found" in link.recv(65536)
    status, body = stub.exchange("GET", "/v1/models")
    assert (status, json.loads(body)["data"][0]["id"]) == (200, "stub")


def test_tokens_are_words_and_what_a_template_adds(stub: LiveStub) -> None:
    _, body = stub.exchange("POST", "/tokenize", {"prompt": "a b c"})
    assert json.loads(body)["count"] == 3
    _, body = stub.exchange("POST", "/tokenize", {"messages": [{"role": "user", "content": "a b c"}]})
    assert json.loads(body)["count"] == 8


def test_long_responses_arrive_whole(stub: LiveStub) -> None:
    with connected(stub) as link:
        send(link, Script(steps=(Step(0.0, tokens=4_000_000),)))
        time.sleep(0.2)
        assert read_all(link).count(b" w") == 4_000_000
