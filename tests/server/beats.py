"""How long a server's event loop is held, in processor time of its process, which other programs do not lengthen.

``python -m tests.server.beats serve …`` is ``twofold`` with one more callback on its event loop, which runs every 5 ms
and writes down how much processor time the whole process took since its last run. Whatever holds the loop, a callback
or a thread that keeps the interpreter's lock, takes at least that much.
"""

from __future__ import annotations

import asyncio
import json
import os
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.server.live import LiveServer, live_server
from twofold.cli.main import main

BEATS: Final = "TWOFOLD_TEST_BEATS"
"""The file that the seconds are appended to, as float64."""
EVERY_S: Final = 0.005
WAIT_S: Final = 60.0
REFERENCE_S: Final = 0.0025
"""Processor time of ``_reference`` on the machine on which the promises were made (a Xeon at 2.1 GHz, Python 3.11)."""


@dataclass(frozen=True, slots=True)
class Beats:
    """The beats of a running server."""

    path: Path

    def count(self) -> int:
        return self.path.stat().st_size // 8

    def since(self, first: int) -> list[float]:
        """Seconds of all beats from this one on, with one that began after the call."""
        until, last = time.monotonic() + WAIT_S, self.count()
        while self.count() < last + 2:
            assert time.monotonic() < until, "the event loop stands"
            time.sleep(EVERY_S)
        data = self.path.read_bytes()
        return [seconds for (seconds,) in struct.iter_unpack("d", data[8 * first : len(data) // 8 * 8])]

    @contextmanager
    def watched(self) -> Iterator[list[float]]:
        """The list has the beats of the ``with`` block after its end."""
        held: list[float] = []
        first = self.count()
        yield held
        held += self.since(first)


@contextmanager
def watched_server(folder: Path, *arguments: str, **options: Any) -> Iterator[tuple[LiveServer, Beats]]:
    """``live_server`` whose event loop is watched."""
    path = folder / "beats"
    path.touch()
    command = (sys.executable, "-m", "tests.server.beats")
    with live_server(folder, *arguments, environment={BEATS: str(path)}, twofold=command, **options) as live:
        yield live, Beats(path)


def check_held(beats: list[float], limit_s: float) -> None:
    """One beat of a hundred may take longer than the limit, up to three times as long, as garbage collections do.

    The limit is one of the machine on which promises were made; a slower one gets more.
    """
    limit = limit_s * pace()
    late = [seconds for seconds in beats if seconds > limit]
    assert len(late) <= max(1, len(beats) // 100), (limit, sorted(beats)[-10:], len(beats))
    assert not late or max(late) <= 3 * limit, (limit, max(late))


def pace() -> float:
    """How many times slower Python is here and now than where the promises were made; at least 1."""
    return max(1.0, min(_reference() for _ in range(5)) / REFERENCE_S)


def _reference() -> float:
    """The thread's own processor time of a fixed piece of work."""
    began = time.thread_time()
    text = json.dumps([{"index": n, "text": "word " * 8} for n in range(1_500)])
    assert sum(len(each["text"]) for each in json.loads(text)) == 1_500 * 40
    assert len(set(text.split('"'))) > 1_500
    return time.thread_time() - began


def beating(file: int) -> None:
    """Lets event loops that start from now on write their beats into this file."""
    run_forever = asyncio.BaseEventLoop.run_forever

    def started(loop: asyncio.BaseEventLoop) -> None:
        def beat(before: float) -> None:
            now = time.process_time()
            os.write(file, struct.pack("d", now - before))
            loop.call_later(EVERY_S, beat, now)

        loop.call_soon(beat, time.process_time())
        run_forever(loop)

    asyncio.BaseEventLoop.run_forever = started  # type: ignore[method-assign,assignment]


if __name__ == "__main__":
    beating(os.open(os.environ.pop(BEATS), os.O_WRONLY | os.O_APPEND))
    sys.exit(main(sys.argv[1:]))
