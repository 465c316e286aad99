"""Waiting for sockets, also with more open files than ``select`` supports."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from twofold.bench.client.connection import SELECTABLE, Readiness
from twofold.bench.client.loop import IN, OUT


@pytest.fixture(params=[False, True], ids=["few files", "many files"])
def readiness(request: pytest.FixtureRequest) -> Iterator[Readiness]:
    with ExitStack() as stack:
        if request.param:
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            if hard != resource.RLIM_INFINITY and hard < 2 * SELECTABLE:
                pytest.skip("This process may not open so many files.")
            resource.setrlimit(resource.RLIMIT_NOFILE, (2 * SELECTABLE, hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
            open_file = os.open(os.devnull, os.O_RDONLY)
            stack.callback(os.close, open_file)
            while (number := os.dup(open_file)) < SELECTABLE:
                stack.callback(os.close, number)
            stack.callback(os.close, number)
        ready = Readiness()
        stack.callback(ready.close)
        yield ready


@pytest.mark.parametrize("seconds", [0.0, 0.0005, 0.005])
def test_only_files_that_are_ready_are_found(readiness: Readiness, seconds: float) -> None:
    one, other = socket.socketpair()
    with one, other:
        readiness.add(one.fileno(), IN)
        assert readiness.wait(seconds) == []
        other.send(b"x")
        assert readiness.wait(seconds) == [(one.fileno(), IN)]
        readiness.change(one.fileno(), OUT)
        assert readiness.wait(seconds) == [(one.fileno(), OUT)]
        readiness.remove(one.fileno())
        assert readiness.wait(seconds) == []
