"""What is to be seen while a load is sent: a table on a terminal, else a line each tenth of the way.

Both are watchers of the client, which calls them in its own thread between two looks at its sockets: they are short,
and draw twice a second at most.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from twofold.bench.base import Watcher
from twofold.bench.draw.form import duration, number, share
from twofold.bench.record import RequestSample
from twofold.bench.report.tally import WINDOW_S, ProgressTally

_DRAW_EVERY_S: Final = 0.5
_TENTHS: Final = 10
_BAR: Final = 48
_LINE_EVERY_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Goal:
    """How far a run shall go, as far as that is known: to so many requests, or until none become due any more.

    title  what it is: the model, or the trial of a search
    rate   requests a second that are asked for, of an open loop
    """

    title: str
    requests: int | None = None
    duration_s: float | None = None
    rate: float | None = None

    def reached(self, now_s: float, done: int) -> float | None:
        """The share of the way; None where nobody knows its length."""
        if self.requests:
            return min(1.0, done / self.requests)
        return min(1.0, now_s / self.duration_s) if self.duration_s else None


class Shown(Watcher, AbstractContextManager["Shown"], Protocol):
    """A watcher that is on show from entering it to leaving it."""


def live(console: Console, goal: Goal) -> Shown:
    """The watcher that suits where ``console`` writes to."""
    return LiveTable(console, goal) if console.is_terminal else LiveLines(console, goal)


class _Clock:
    """Processor seconds of this process against time, from one call to the next."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def share(self) -> float:
        cpu, wall = time.process_time(), time.perf_counter()
        used = (cpu - self._cpu) / max(wall - self._wall, 1e-9)
        self._cpu, self._wall = cpu, wall
        return used


class LiveTable:
    """Redraws itself in place, and is gone when the run is over: the final table follows."""

    def __init__(self, console: Console, goal: Goal, clock: Callable[[], float] = time.perf_counter) -> None:
        self._console = console
        self._goal = goal
        self._clock = clock
        self._tally = ProgressTally()
        self._client = _Clock()
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = -1.0

    def __enter__(self) -> LiveTable:
        self._live.start()
        # what is slow only once, some milliseconds of the first drawing, is done before the run
        self._live.update(self._drawing(0.0, 0), refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def look(self, now_s: float, samples: list[RequestSample], open_requests: int) -> None:
        self._tally.look(now_s, samples)
        if self._clock() - self._drawn >= _DRAW_EVERY_S:
            self._drawn = self._clock()
            self._live.update(self._drawing(now_s, open_requests), refresh=True)

    def _drawing(self, now_s: float, open_requests: int) -> Text:
        tally, goal = self._tally, self._goal
        far = duration(now_s) + (f" of {duration(goal.duration_s)}" if goal.duration_s else "")
        asked = "" if goal.rate is None else f" of {number(goal.rate)} asked"
        lines = (
            f"{goal.title}  {far}",
            _bar(goal.reached(now_s, sum(tally.outcomes.values())), min(_BAR, self._console.width)),
            f"{tally.done:,} answered, {open_requests:,} open, {tally.failed:,} failed",
            f"{number(tally.started.rate(now_s))} sent/s{asked}, {number(tally.answered.rate(now_s))} answered/s",
            f"{number(tally.output.rate(now_s))} chunks/s, client {share(self._client.share())} of a core",
            f"{f'last {WINDOW_S} s':<10}{'P50':>10}{'P99':>10}",
            *(f"{name:<10}{middle:>10}{slow:>10}" for name, (middle, slow) in _latencies(tally)),
        )
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


class LiveLines:
    """For logs and pipes."""

    def __init__(self, console: Console, goal: Goal) -> None:
        self._console = console
        self._goal = goal
        self._tally = ProgressTally()
        self._client = _Clock()
        self._told = 0

    def __enter__(self) -> LiveLines:
        self._line(0.0, None, 0)
        self._console.print(end="")  # as the table's first drawing
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return

    def look(self, now_s: float, samples: list[RequestSample], open_requests: int) -> None:
        tally = self._tally
        tally.look(now_s, samples)
        reached = self._goal.reached(now_s, sum(tally.outcomes.values()))
        step = int(now_s / _LINE_EVERY_S) if reached is None else int(reached * _TENTHS + 1e-9)
        if step > self._told:
            self._told = step
            self._console.print(
                self._line(now_s, reached, open_requests), markup=False, highlight=False, soft_wrap=True
            )

    def _line(self, now_s: float, reached: float | None, open_requests: int) -> str:
        tally = self._tally
        far = duration(now_s) if reached is None else f"{int(reached * _TENTHS + 1e-9) * 10}%"
        latencies = (f"{name} {middle}/{slow}" for name, (middle, slow) in _latencies(tally))
        return (
            f"{self._goal.title}: {far}, {tally.done:,} answered, {open_requests:,} open, {tally.failed:,} failed, "
            f"{number(tally.answered.rate(now_s))}/s, P50/P99 {', '.join(latencies)}, "
            f"client {share(self._client.share())} of a core"
        )


def _bar(reached: float | None, width: int) -> str:
    """Nothing where nobody knows how far it goes."""
    full = round((reached or 0.0) * width)
    return "" if reached is None else "━" * full + "╌" * (width - full)


def _latencies(tally: ProgressTally) -> Iterator[tuple[str, tuple[str, str]]]:
    """P50 and P99 of each measure."""
    for name, values in (("TTFT", tally.ttft), ("TPOT", tally.tpot), ("ITL", tally.itl)):
        middle, slow = values.percentiles(0.5, 0.99)
        yield name, (duration(middle), duration(slow))
