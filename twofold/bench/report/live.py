"""Progress while a load is sent: a table on a terminal, otherwise a line for each quarter of the load.

Both are watchers that the client calls in its own thread, so they must be quick. The table is drawn at most twice a
second.
"""

from __future__ import annotations

import math
import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from twofold.bench.draw.form import duration, number, share
from twofold.bench.load.base import FAILURES, Outcome
from twofold.bench.record import RequestSample
from twofold.core.ranks import nearest_rank

_DRAW_EVERY_S: Final = 0.5
_PARTS: Final = 4
_BAR: Final = 48
_LINE_EVERY_S: Final = 30.0
WINDOW_S: Final = 10
"""Length in seconds of the window of latencies and rates."""

MAX_EXAMINED: Final = 400
"""Maximum number of open requests examined in one call; of very many, a share of them, to cover all in a second."""

MAX_GAPS: Final = 100
"""Maximum number of gaps sampled in one call."""

MAX_VALUES: Final = 4096
"""Maximum number of values from which percentiles are computed."""

_MIN_PART: Final = 8


@dataclass(frozen=True, slots=True)
class Goal:
    """The planned end of a run, by requests or by time, if known.

    title  name of the run: the model
    rate   requested rate of an open loop in requests a second
    """

    title: str
    requests: int | None = None
    duration_s: float | None = None
    rate: float | None = None

    def reached(self, now_s: float, done: int) -> float | None:
        """The completed share; None if the end is unknown."""
        if self.requests:
            return min(1.0, done / self.requests)
        return min(1.0, now_s / self.duration_s) if self.duration_s else None


class RecentValues:
    """The last ``MAX_VALUES`` values of the last ``WINDOW_S`` seconds."""

    def __init__(self) -> None:
        self._values: deque[tuple[float, float]] = deque(maxlen=MAX_VALUES)

    def note(self, now_s: float, value: float) -> None:
        self._values.append((now_s, value))

    def forget(self, now_s: float) -> None:
        """Drops values older than the window."""
        while self._values and self._values[0][0] <= now_s - WINDOW_S:
            self._values.popleft()

    def percentiles(self, *shares: float) -> list[float | None]:
        """Percentiles by nearest rank; None without values."""
        ascending = sorted(value for _, value in self._values)
        return [nearest_rank(ascending, share) if ascending else None for share in shares]

    def rate(self, now_s: float) -> float:
        """The sum of the values per second, over the window or the shorter time since the start."""
        self.forget(now_s)
        return sum(value for _, value in self._values) / max(min(now_s, WINDOW_S), 1e-9)


class ProgressTally:
    """Counts of a run in progress, at a cost that does not grow with the run.

    A call of ``update`` adds new requests and examines some hundreds of open ones, in turn; ended requests are not
    examined again. It samples the latest gap between chunks of some responses. ``outcomes`` counts ended requests.
    """

    def __init__(self) -> None:
        self.began = 0
        self.chunks = 0
        self.outcomes: Counter[Outcome] = Counter()
        self.ttft, self.tpot, self.itl = RecentValues(), RecentValues(), RecentValues()
        self.started, self.completed, self.output = RecentValues(), RecentValues(), RecentValues()
        self._open: deque[_OpenRequest] = deque()

    @property
    def done(self) -> int:
        return self.outcomes["ok"]

    @property
    def failed(self) -> int:
        return sum(count for outcome, count in self.outcomes.items() if outcome in FAILURES)

    def update(self, now_s: float, samples: list[RequestSample]) -> None:
        """``samples`` are all started requests in the order of their starts; the list only grows."""
        began = len(samples)
        self._open.extend(_OpenRequest(samples[place]) for place in range(self.began, began))
        self.started.note(now_s, began - self.began)
        self.began = began
        chunks, done = self.chunks, self.done
        turn = min(len(self._open), max(MAX_EXAMINED, len(self._open) // _MIN_PART))
        for place in range(turn):
            each = self._open.popleft()
            if not self._ended(each, now_s, gap=place < MAX_GAPS):
                self._open.append(each)
        self.output.note(now_s, self.chunks - chunks)
        self.completed.note(now_s, self.done - done)
        for values in (self.ttft, self.tpot, self.itl):
            values.forget(now_s)

    def _ended(self, each: _OpenRequest, now_s: float, *, gap: bool) -> bool:
        """Counts new chunks and the outcome of a request, and with ``gap`` its latest gap. Returns whether it ended."""
        sample = each.sample
        outcome, moments = sample.outcome, sample.response.moments
        count = len(moments)
        if count != each.chunks:
            if not each.chunks:
                self.ttft.note(now_s, moments[0] - sample.ask.due_s)
            if gap and count > 1:
                self.itl.note(now_s, moments[-1] - moments[-2])
            self.chunks += count - each.chunks
            each.chunks = count
        if outcome == "unfinished":
            return False
        self.outcomes[outcome] += 1
        tokens = sample.output_tokens or count
        if outcome in FAILURES:
            self.tpot.note(now_s, math.inf)
            if not moments:
                self.ttft.note(now_s, math.inf)
        elif count > 1 and tokens > 1:
            self.tpot.note(now_s, (moments[-1] - moments[0]) / (tokens - 1))
        return True


@dataclass(slots=True)
class _OpenRequest:
    """A request, and the number of its chunks counted so far."""

    sample: RequestSample
    chunks: int = 0


def live(console: Console, goal: Goal) -> LiveTable | LiveLines:
    """A table for a terminal, otherwise lines."""
    return LiveTable(console, goal) if console.is_terminal else LiveLines(console, goal)


class _Clock:
    """Measures the share of a core that this process used between two calls."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time(), time.perf_counter()

    def share(self) -> float:
        cpu, wall = time.process_time(), time.perf_counter()
        used = (cpu - self._cpu) / max(wall - self._wall, 1e-9)
        self._cpu, self._wall = cpu, wall
        return used


class _Progress:
    def __init__(self, console: Console, goal: Goal) -> None:
        self._console = console
        self._goal = goal
        self._tally = ProgressTally()
        self._client = _Clock()

    def _latencies(self) -> Iterator[tuple[str, str, str]]:
        """Name, P50 and P99 of each measure."""
        for name, values in (("TTFT", self._tally.ttft), ("TPOT", self._tally.tpot), ("ITL", self._tally.itl)):
            middle, slow = values.percentiles(0.5, 0.99)
            yield name, duration(middle), duration(slow)


class LiveTable(_Progress):
    """A table that is redrawn in place, and erased at the end of the run."""

    def __init__(self, console: Console, goal: Goal) -> None:
        super().__init__(console, goal)
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn = -1.0

    def __enter__(self) -> LiveTable:
        self._live.start()
        # the first drawing takes some milliseconds more: do it before the run
        self._live.update(self._drawing(0.0, 0), refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def update(self, now_s: float, samples: list[RequestSample], open_requests: int) -> None:
        self._tally.update(now_s, samples)
        now = time.perf_counter()
        if now - self._drawn >= _DRAW_EVERY_S:
            self._drawn = now
            self._live.update(self._drawing(now_s, open_requests), refresh=True)

    def _drawing(self, now_s: float, open_requests: int) -> Text:
        tally, goal = self._tally, self._goal
        far = duration(now_s) + (f" of {duration(goal.duration_s)}" if goal.duration_s else "")
        asked = "" if goal.rate is None else f" of {number(goal.rate)} requested"
        reached, width = goal.reached(now_s, sum(tally.outcomes.values())), min(_BAR, self._console.width)
        full = round((reached or 0.0) * width)
        lines = (
            f"{goal.title}  {far}",
            "" if reached is None else "━" * full + "╌" * (width - full),
            f"{tally.done:,} completed, {open_requests:,} open, {tally.failed:,} failed",
            f"{number(tally.started.rate(now_s))} sent/s{asked}, {number(tally.completed.rate(now_s))} completed/s",
            f"{number(tally.output.rate(now_s))} chunks/s, client {share(self._client.share())} of a core",
            f"{f'last {WINDOW_S} s':<10}{'P50':>10}{'P99':>10}",
            *(f"{name:<10}{middle:>10}{slow:>10}" for name, middle, slow in self._latencies()),
        )
        return Text("\n".join(lines), no_wrap=True, overflow="ellipsis")


class LiveLines(_Progress):
    """Lines for logs and pipes."""

    _step = 0

    def __enter__(self) -> LiveLines:
        self._line(0.0, None, 0)
        self._console.print(end="")  # the first print is slow: do it before the run
        return self

    def __exit__(self, *_: object) -> None:
        return

    def update(self, now_s: float, samples: list[RequestSample], open_requests: int) -> None:
        tally = self._tally
        tally.update(now_s, samples)
        reached = self._goal.reached(now_s, sum(tally.outcomes.values()))
        step = int(now_s / _LINE_EVERY_S) if reached is None else int(reached * _PARTS + 1e-9)
        if step > self._step:
            self._step = step
            self._console.print(
                self._line(now_s, reached, open_requests), markup=False, highlight=False, soft_wrap=True
            )

    def _line(self, now_s: float, reached: float | None, open_requests: int) -> str:
        tally = self._tally
        far = duration(now_s) if reached is None else f"{int(reached * _PARTS + 1e-9) * 100 // _PARTS}%"
        latencies = (f"{name} {middle}/{slow}" for name, middle, slow in self._latencies())
        return (
            f"{self._goal.title}: {far}, {tally.done:,} completed, {open_requests:,} open, {tally.failed:,} failed, "
            f"{number(tally.completed.rate(now_s))}/s, P50/P99 {', '.join(latencies)}, "
            f"client {share(self._client.share())} of a core"
        )
