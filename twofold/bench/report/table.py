"""The report on a terminal of any width, or in a text file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from twofold.bench.draw.terminal import plot
from twofold.bench.report import figures, words
from twofold.bench.report.charts import curves_of
from twofold.bench.report.document import Document, Run

_WIDE: Final = 100
_MIDDLE: Final = 70
_NARROW_COLUMNS: Final = frozenset({"", "P50", "P99", "N"})
_MIDDLE_COLUMNS: Final = _NARROW_COLUMNS | {"P90", "max", "failed"}
_MAX_ERRORS: Final = 5
_PLOT_WIDTH: Final = 76
_MAX_PLOTS: Final = 2


def print_report(document: Document, console: Console) -> None:
    """Prints a document: tables of its run, or a row for each of several runs and their charts."""
    _say(console, words.title(document), "bold")
    for sentence in words.summary(document):
        _say(console, sentence)
    if len(document.runs) == 1:
        _print_run(document.runs[0], console)
        return
    width, step = console.width, figures.step_of(document.runs)
    trials = _table(words.TRIALS, words.trial_rows(document), range(6 if width >= _MIDDLE else 5))
    if trials.row_count:
        console.print(trials)
        console.print()
    narrow = (0, 1, 2, 3, 5, 6, 8, 9) if width >= _MIDDLE else (0, 1, 3, 6, 8, 9)
    rows = words.run_rows(document.runs, step)
    console.print(_table(figures.run_titles(step), rows, range(10) if width >= _WIDE else narrow))
    for chart in islice(curves_of(document), _MAX_PLOTS):
        console.print()
        _say(console, plot(chart, width=min(width, _PLOT_WIDTH), height=10))


def _print_run(run: Run, console: Console) -> None:
    for sentence in words.verdict(run):
        _say(console, sentence)
    width = console.width
    shown = words.LATENCY if width >= _WIDE else _MIDDLE_COLUMNS if width >= _MIDDLE else _NARROW_COLUMNS
    columns = [at for at, title in enumerate(words.LATENCY) if title in shown]
    for table in (
        _table(words.LATENCY, words.latency_rows(run), columns),
        _table(words.THROUGHPUT, words.rate_rows(run), range(5) if width >= _MIDDLE else (0, 1, 3)),
        _table(words.ERRORS, islice(words.error_rows(run), _MAX_ERRORS), range(3)),
    ):
        if table.row_count:
            console.print()
            console.print(table)
    found = list(words.notes(run))
    if found:
        console.print()
    for note in found:
        _say(console, f"! {note}", "yellow")


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], columns: Sequence[int]) -> Table:
    """The selected columns, without lines, which are noise in a file."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(titles[columns[0]], style="bold", overflow="fold")
    for place in columns[1:]:
        table.add_column(titles[place], justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[place]) for place in columns))
    return table


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style))
