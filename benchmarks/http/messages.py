"""Processor time of delivering one token: the minimum for any server, and the share of the worker."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Final

from twofold.engine.outputs import OutputDelta
from twofold.fleet.messages import Codec, StepOutputs, ToWorker

CHUNK: Final = b"d1\r\ndata: " + b"x" * 199 + b"\n\n\r\n"
"""About the length of one token's event."""
RUNS: Final = 2_000
WARM: Final = 100


def send_floor_s() -> float:
    """Seconds to write one token's event to a loopback connection, the minimum of any server."""
    with ExitStack() as stack:
        listening = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        ours = stack.enter_context(socket.create_connection(listening.getsockname()))
        theirs = stack.enter_context(listening.accept()[0])

        def send() -> None:
            ours.send(CHUNK)

        return _mean(send, lambda: theirs.recv(1 << 20))


def worker_message_s(streams: int) -> float:
    """Seconds per token to encode the message of a step of ``streams`` tokens and write it to a socket."""
    step = StepOutputs(
        [OutputDelta(f"req_{'a' * 24}-{stream}", 0, " token", (1234,)) for stream in range(streams)], [], None
    )
    codec = Codec(ToWorker)
    with ExitStack() as stack:
        ours, theirs = (stack.enter_context(end) for end in socket.socketpair())

        def send() -> None:
            ours.send(codec.frame(step))

        return _mean(send, lambda: theirs.recv(1 << 20)) / streams


def _mean(act: Callable[[], None], clear: Callable[[], object]) -> float:
    """Mean processor seconds of ``act``; ``clear``, untimed, reads what it wrote."""
    spent = 0.0
    for turn in range(WARM + RUNS):
        began = time.thread_time()
        act()
        spent += (time.thread_time() - began) if turn >= WARM else 0.0
        clear()
    return spent / RUNS
