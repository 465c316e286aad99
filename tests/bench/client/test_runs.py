"""Runs of the client: limits of open requests and time, interruptions, and missing servers."""

from __future__ import annotations

import os
import resource
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from itertools import pairwise

import pytest

from tests.bench.client.support import (
    STREAM,
    PlainEndpoint,
    PlainLoad,
    Talk,
    asked,
    chunk,
    each,
    only,
    paced,
    serving,
    streamed,
)
from twofold.bench.client.loop import ClientOptions, LoadClient
from twofold.bench.client.target import ServerTarget
from twofold.bench.load.base import Ask, EndedRequest
from twofold.bench.record import RequestSample
from twofold.core.errors import NetworkError, ParameterError, ResourceError


def test_no_more_requests_are_open_than_may_be() -> None:
    two, waiting = threading.Barrier(2, timeout=60), []

    def serve(talk: Talk, number: int) -> None:
        while talk.request() is not None:
            waiting.append(number)
            two.wait()
            seen.append(len(waiting))
            two.wait()
            waiting.remove(number)
            talk.send(streamed("a"))

    seen: list[int] = []
    samples = asked(serve, PlainLoad((0.0,) * 6, max_open=2)).samples
    assert [sample.outcome for sample in samples] == ["ok"] * 6
    assert seen == [2] * 6


def test_a_request_follows_an_ended_one() -> None:
    def next_one(sample: EndedRequest, now_s: float) -> Ask | None:
        assert sample.ended_s is not None
        assert now_s >= sample.ended_s
        return Ask(sample.ask.index + 1, now_s + 0.02, 0, 1) if sample.ask.index < 3 else None

    samples = asked(each(streamed("a")), PlainLoad((0.0,), next_one=next_one)).samples
    assert [sample.ask.index for sample in samples] == [0, 1, 2, 3]
    for before, after in pairwise(samples):
        assert before.ended_s is not None
        assert after.started_s is not None
        assert after.started_s >= after.ask.due_s >= before.ended_s + 0.02


def silent(talk: Talk, _number: int) -> None:
    """Starts a stream and sends nothing more."""
    while talk.request() is not None:
        talk.send(STREAM + chunk(b"data: a\n\n"))


def test_a_request_that_takes_too_long_is_late() -> None:
    sample = only(asked(silent, PlainLoad((0.0,)), ClientOptions(request_timeout_s=1.0)))
    assert (sample.outcome, sample.error, sample.response.text) == ("late", "It took longer than 1 s.", "a")
    assert sample.ended_s is not None
    assert 1.0 < sample.ended_s < 30.0


def test_the_drain_period_ends() -> None:
    options = ClientOptions(drain_s=0.2)
    record = asked(silent, PlainLoad((0.0, 0.0, 0.1), max_open=2, told={"duration_s": 90.0}), options)
    first, second, third = record.samples
    assert {sample.outcome for sample in record.samples} == {"unfinished"}
    assert first.error == second.error == "The drain period ended before the request ended."
    assert (third.started_s, third.error) == (None, "The run ended before the request could start.")
    assert record.duration_s == 90.0
    assert not record.interrupted
    assert 0.3 < record.client.wall_s < 60.0


class Stopper:
    """Stops the client after a fifth of a second."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop

    def update(self, now_s: float, _samples: list[RequestSample], _open_requests: int) -> None:
        if now_s > 0.2:
            self._stop()


@pytest.mark.parametrize("by_signal", [False, True])
def test_a_stopped_run_keeps_its_requests(by_signal: bool) -> None:
    load = PlainLoad((0.0, 0.0, 0.1, 50.0), max_open=2, told={"duration_s": 60.0})
    with serving(silent) as authority, LoadClient(ServerTarget.of(authority), PlainEndpoint()) as client:
        stop = (lambda: os.kill(os.getpid(), signal.SIGINT)) if by_signal else client.stop
        record = client.run(load, Stopper(stop))
    assert record.interrupted
    assert [sample.outcome for sample in record.samples] == ["unfinished"] * 3
    assert record.samples[0].error == "The run was stopped before the request ended."
    assert record.samples[0].response.text == "a"
    assert 0.2 < record.duration_s < 40.0


def test_a_client_that_was_stopped_sends_nothing() -> None:
    with serving(each(streamed("a"))) as authority, LoadClient(ServerTarget.of(authority), PlainEndpoint()) as client:
        client.stop()
        record = client.run(PlainLoad((0.0,)))
    assert record.interrupted
    assert [sample.started_s for sample in record.samples] == [None]


def test_another_thread_can_stop_a_run() -> None:
    with serving(silent) as authority, LoadClient(ServerTarget.of(authority), PlainEndpoint()) as client:
        timer = threading.Timer(0.4, client.stop)
        timer.start()
        began = time.perf_counter()
        assert client.run(PlainLoad((0.0, 60.0))).interrupted
        timer.join()
    assert time.perf_counter() - began < 50.0


def test_other_systems_have_neither_epoll_nor_stamps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "other")
    record = asked(lambda talk, _: paced(talk, 0.03, 0.02), PlainLoad((0.0, 0.05, 0.3)))
    assert [sample.outcome for sample in record.samples] == ["ok", "ok", "ok"]
    assert record.client.stamps == "client"
    assert record.samples[0].lag_s == 0.0


class Looks:
    def __init__(self) -> None:
        self.seen: list[tuple[float, int, int]] = []

    def update(self, now_s: float, samples: list[RequestSample], open_requests: int) -> None:
        self.seen.append((now_s, len(samples), open_requests))


def test_a_watcher_sees_the_requests() -> None:
    watcher = Looks()
    with (
        serving(lambda talk, _: paced(talk, 0.5)) as authority,
        LoadClient(ServerTarget.of(authority), PlainEndpoint()) as client,
    ):
        client.run(PlainLoad((0.0, 0.25)), watcher)
    assert 4 <= len(watcher.seen) <= 9
    assert (watcher.seen[0][1:], watcher.seen[-1][1:]) == ((1, 1), (2, 1))


def test_a_server_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with LoadClient(ServerTarget.of(f"http://127.0.0.1:{port}"), PlainEndpoint()) as client:
        with pytest.raises(NetworkError, match="refused the connection") as raised:
            client.run(PlainLoad((0.0,)))
        assert raised.value.hint == "Is it running, and on this port?"


def test_a_server_that_goes_away_breaks_requests_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def look() -> None:
            listener.accept()[0].close()  # the look whether it is there
            listener.close()

        thread = threading.Thread(target=look)
        thread.start()
        with LoadClient(ServerTarget.of(f"http://127.0.0.1:{listener.getsockname()[1]}"), PlainEndpoint()) as client:
            sample = only(client.run(PlainLoad((0.1,))))
        thread.join()
    assert sample.outcome == "broken"
    assert sample.error is not None
    assert sample.error.endswith("refused the connection.")


def test_too_few_open_files_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 256))
    monkeypatch.setattr(resource, "setrlimit", lambda *_: None)
    with serving(each(streamed("a"))) as authority, LoadClient(ServerTarget.of(authority), PlainEndpoint()) as client:
        with pytest.raises(ResourceError, match="500 requests at once need more connections than the 192"):
            client.run(PlainLoad((0.0,), max_open=500))
        assert only(client.run(PlainLoad((0.0,)))).outcome == "ok"


@pytest.mark.parametrize("wrong", [{"request_timeout_s": 0}, {"drain_s": -1}, {"request_timeout_s": float("nan")}])
def test_options_are_checked(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        ClientOptions(**wrong)  # type: ignore[arg-type]
