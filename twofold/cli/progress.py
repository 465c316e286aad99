"""Draws the progress of a fetch: a bar on a terminal, a line each 10 % elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twofold.formats.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_STEPS: Final = 10
_UNKNOWN_STEP: Final = 100_000_000


def console_progress(console: Console) -> Progress:
    """A progress that suits where the console writes to."""
    return BarProgress(console) if console.is_terminal else LineProgress(console)


def format_bytes(count: float) -> str:
    """Decimal units, as disks and downloads are sold: 98.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class LineProgress:
    """A line when work starts and each tenth of it; each 100 MB where the size is unknown."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._total: int | None = None
        self._what = ""
        self._seen = 0
        self._told = 0

    def start(self, total_bytes: int | None, what: str) -> None:
        self._total, self._what, self._seen, self._told = total_bytes, what, 0, 0
        size = "" if total_bytes is None else f" ({format_bytes(total_bytes)})"
        self._say(f"{what}{size}")

    def advance(self, count: int) -> None:
        self._seen += count
        if self._total is None:
            step = self._seen // _UNKNOWN_STEP
            line = f"{self._what}: {format_bytes(self._seen)}"
        else:
            step = min(_STEPS, self._seen * _STEPS // max(1, self._total))
            line = f"{self._what}: {step * 100 // _STEPS} %"
        if step > self._told:
            self._told = step
            self._say(line)

    def done(self) -> None:
        return

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class BarProgress:
    """One bar with bytes, rate and the time that is left; it disappears when the work is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Bars | None = None
        self._task: TaskID | None = None

    def start(self, total_bytes: int | None, what: str) -> None:
        from rich.progress import (  # noqa: PLC0415 - only who fetches pays for it
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bars  # noqa: PLC0415

        self.done()
        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bars = Bars(*columns, console=self._console, transient=True)
        self._task = self._bars.add_task(what, total=total_bytes)
        self._bars.start()

    def advance(self, count: int) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task, count)

    def done(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = self._task = None
