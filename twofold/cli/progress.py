"""Draws the progress of a fetch: a bar on a terminal, two lines at most elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twofold.formats.fetch.progress import Progress

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

_LARGE: Final = 1_000_000_000
"""Bytes from which on a log gets a line in the middle."""


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
    """For logs: a line when work starts, and one at its middle if it is large. The end is the caller's to tell."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._what = ""
        self._seen = 0
        self._middle: float | None = None

    def start(self, total_bytes: int | None, what: str, *, follows: bool = False) -> None:
        self._what, self._seen, self._middle = what, 0, None
        if follows:
            return
        size = "" if total_bytes is None else f" ({format_bytes(total_bytes)})"
        self._say(f"{what}{size}")
        if total_bytes is not None and total_bytes >= _LARGE:
            self._middle = total_bytes / 2

    def advance(self, count: int) -> None:
        self._seen += count
        if self._middle is not None and self._seen >= self._middle:
            self._middle = None
            self._say(f"{self._what}: 50 %")

    def done(self) -> None:
        return

    def _say(self, line: str) -> None:
        self._console.print(line, markup=False, emoji=False, highlight=False, soft_wrap=True)


class BarProgress:
    """One bar with bytes, rate and the time that is left; it disappears when the work is done."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars: Bars | None = None
        self._task: TaskID | None = None

    def start(self, total_bytes: int | None, what: str, *, follows: bool = False) -> None:  # noqa: ARG002
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
