"""Progress of downloads on standard error."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Final

from twofold.cli.console import is_terminal, note, rich_console

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

LARGE: Final = 1_000_000_000
"""Downloads of at least this many bytes get a second line in a log, at half of them."""


def format_bytes(count: float) -> str:
    """Decimal units, as disks and downloads are sold: 98.4 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.0f} B" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


class DownloadProgress:
    """``Progress`` for people: a bar with bytes, rate and remaining time on a terminal, elsewhere a line or two.

    ``console`` is the terminal; the default is standard error. rich is imported when the first bar appears.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console
        self._bars: Bars | None = None
        self._task: TaskID | None = None
        self._what = ""
        self._until_half: float | None = None

    def start(self, total_bytes: int | None, what: str, *, follows: bool = False) -> None:
        self.done()
        if self._console is not None or is_terminal(sys.stderr):
            self._start_bar(total_bytes, what)
        elif not follows:
            note(what if total_bytes is None else f"{what} ({format_bytes(total_bytes)})")
            self._what, self._until_half = what, total_bytes / 2 if total_bytes and total_bytes >= LARGE else None

    def advance(self, count: int) -> None:
        if self._bars is not None and self._task is not None:
            self._bars.advance(self._task, count)
        elif self._until_half is not None:
            self._until_half -= count
            if self._until_half <= 0:
                self._until_half = None
                note(f"{self._what}: 50%")

    def done(self) -> None:
        if self._bars is not None:
            self._bars.stop()
        self._bars = self._task = self._until_half = None

    def _start_bar(self, total_bytes: int | None, what: str) -> None:
        from rich.progress import (  # noqa: PLC0415 - start-up time
            BarColumn,
            DownloadColumn,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )
        from rich.progress import Progress as Bars  # noqa: PLC0415

        text = TextColumn("{task.description}", markup=False)
        columns = (text, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
        self._bars = Bars(*columns, console=self._console or rich_console(stderr=True), transient=True)
        self._task = self._bars.add_task(what, total=total_bytes)
        self._bars.start()
