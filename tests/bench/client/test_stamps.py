"""Times are those at which bytes arrived, not those at which they were read."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Iterator

import pytest

from twofold.bench.client import connection as module
from twofold.bench.client.connection import Stamps


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of a connection; what the second reads is stamped."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as reader:
        Stamps.enable(reader)
        reader.connect(listener.getsockname())
        writer, _ = listener.accept()
        with writer:
            writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await_stamps(writer, reader)
            yield writer, reader


def await_stamps(writer: socket.socket, reader: socket.socket) -> None:
    """Linux begins to stamp packets some time after the first socket asks for it (net_enable_timestamp schedules that);
    a packet without a stamp gets the time of its read."""
    for _ in range(100):
        stamps = Stamps(time.perf_counter())
        writer.send(b"x")
        time.sleep(0.005)
        if stamps.read(reader)[2] > 0.004 or sys.platform != "linux":
            return
    pytest.fail("the kernel stamped none of 100 packets")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps")
def test_a_late_read_has_the_arrival_time_of_its_bytes(pair: tuple[socket.socket, socket.socket]) -> None:
    writer, reader = pair
    began = time.perf_counter()
    stamps = Stamps(began)
    before = time.perf_counter() - began
    writer.send(b"hello")
    after = time.perf_counter() - began
    time.sleep(0.05)
    data, moment, lag = stamps.read(reader)
    assert data == b"hello"
    assert before - 1e-4 < moment < after + 1e-3
    assert lag > 0.045
    assert stamps.source == "kernel"
    assert stamps.lag(0.5) == lag


def test_the_end_of_a_connection_is_read_now(pair: tuple[socket.socket, socket.socket]) -> None:
    writer, reader = pair
    stamps = Stamps(time.perf_counter())
    writer.close()
    data, _, lag = stamps.read(reader)
    assert (data, lag, stamps.reads) == (b"", 0.0, 0)


def test_without_a_kernel_timestamp_the_time_of_the_read_counts() -> None:
    writer, reader = socket.socketpair()
    with writer, reader:
        stamps = Stamps(time.perf_counter())
        writer.send(b"hello")
        _, moment, lag = stamps.read(reader)
    assert lag == 0.0
    assert moment > 0
    assert stamps.source == "client"


def test_no_arrival_time_is_later_than_its_read(pair: tuple[socket.socket, socket.socket]) -> None:
    writer, reader = pair
    stamps = Stamps(time.perf_counter())
    stamps._shift += 100.0  # as if somebody had set the clock
    writer.send(b"hello")
    _, moment, lag = stamps.read(reader)
    assert lag == 0.0
    assert moment < 50.0
    stamps.align()
    writer.send(b"hello")
    assert stamps.read(reader)[2] < 50.0


def test_the_start_is_known_on_the_wall_clock() -> None:
    before = time.time()
    began = Stamps(time.perf_counter()).began_unix
    assert before - 0.1 < began < time.time() + 0.1


def test_lags_are_thinned_but_keep_their_percentiles(
    pair: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_LAGS", 16)
    writer, reader = pair
    stamps = Stamps(time.perf_counter())
    for index in range(200):
        writer.send(b"x")
        if index >= 100:
            time.sleep(0.0005)
        stamps.read(reader)
        stamps.align()
    assert stamps.reads == 200
    assert len(stamps._lags) <= 17
    assert stamps.lag(0.25) < 0.0005 < stamps.lag(0.75)
    assert Stamps(0.0).lag(0.99) == 0.0
