"""The final table: what came out, on a terminal of any width or in a file."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from twofold.bench.draw import number, plot, share
from twofold.bench.report import figures, words
from twofold.bench.report.curves import curves_of
from twofold.bench.report.document import Document, Run
from twofold.bench.report.figures import COLUMNS, MEASURES, RATES, WINDOWS, SweepParameter

_WIDE: Final = 100
_MIDDLE: Final = 70
_NARROW_COLUMNS: Final = frozenset({"P50", "P99"})
_MIDDLE_COLUMNS: Final = frozenset({"P50", "P90", "P99", "max"})
_MAX_ERRORS: Final = 5
_PLOT_WIDTH: Final = 76
_MAX_PLOTS: Final = 2


def print_report(document: Document, console: Console) -> None:
    """The whole of a document: a table for its run, or one row for each of several and their curves."""
    _say(console, words.title(document), "bold")
    for sentence in words.summary(document):
        _say(console, sentence)
    if len(document.runs) == 1:
        print_run(document.runs[0], console)
        return
    found = trials_table(document, console.width)
    if found.row_count:
        console.print(found)
        console.print()
    console.print(runs_table(document, console.width))
    for chart in islice(curves_of(document), _MAX_PLOTS):
        console.print()
        _say(console, plot(chart, width=min(console.width, _PLOT_WIDTH), height=10))


def print_run(run: Run, console: Console) -> None:
    for sentence in words.verdict(run):
        _say(console, sentence)
    for table in (latency_table(run, console.width), rates_table(run, console.width), errors_table(run)):
        if table.row_count:
            console.print()
            console.print(table)
    found = list(words.notes(run))
    if found:
        console.print()
    for note in found:
        _say(console, f"! {note}", "yellow")


def latency_table(run: Run, width: int) -> Table:
    """Percentiles of each measure, as many as ``width`` characters have room for."""
    columns = [(title, name) for title, name in COLUMNS if _shown(title, width)]
    table = _table("", *(title for title, _ in columns), "N", *(("failed",) if width >= _MIDDLE else ()))
    for measure in MEASURES:
        found = figures.of(run, measure)
        if found.n:
            counts = [f"{found.n:,}", *((f"{found.failed:,}",) if width >= _MIDDLE else ())]
            table.add_row(measure.name, *(words.cell(found, name) for _, name in columns), *counts)
    return table


def rates_table(run: Run, width: int) -> Table:
    rates = RATES if width >= _MIDDLE else RATES[:1] + RATES[2:3]
    table = _table("", *(title for title, _ in rates))
    for window, _ in WINDOWS:
        if window == "offered" and figures.waits(run):
            continue
        if figures.look(run.summary, "rates", figures.window_of(window)) is not None:
            table.add_row(
                window,
                *(number(figures.figure(run.summary, "rates", figures.window_of(window), name)) for _, name in rates),
            )
    return table


def errors_table(run: Run) -> Table:
    """The most frequent errors."""
    table = _table("errors", "requests", "status")
    found = figures.look(run.summary, "requests", "errors")
    for each in (found if isinstance(found, list | tuple) else ())[:_MAX_ERRORS]:
        error, status = figures.look(each, "error"), figures.look(each, "status")
        table.add_row(Text(str(error)), number(figures.figure(each, "requests")), str(status or "–"))
    return table


def trials_table(document: Document, width: int) -> Table:
    """A row for each trial of a search, with its runs."""
    kept = len(words.TRIALS) - (1 if width >= _MIDDLE else 2)
    table = _table(*words.TRIALS[:kept])
    for row in words.trials(document):
        table.add_row(*row[:kept])
    return table


def runs_table(document: Document, width: int) -> Table:
    """A row for each run of a sweep or a search, by rising rate."""
    step = figures.step_of(document.runs)
    titles = figures.run_titles(step)
    kept = (
        range(len(titles)) if width >= _WIDE else (0, 1, 2, 3, 5, 6, 8, 9) if width >= _MIDDLE else (0, 1, 3, 6, 8, 9)
    )
    table = _table(*(titles[place] for place in kept))
    for place, run in figures.by_step(document.runs, step):
        cells = (str(place + 1), *_run_cells(run, step))
        table.add_row(*(cells[each] for each in kept))
    return table


def _run_cells(run: Run, step: SweepParameter) -> Iterator[str]:
    ttft, tpot = figures.of(run, figures.TTFT), figures.of(run, figures.TPOT)
    yield number(step.of(run))
    yield number(figures.asked_rate(run))
    yield number(figures.achieved(run, "requests_per_s"))
    yield number(figures.achieved(run, "output_tokens_per_s"))
    yield from (words.cell(found, name) for found in (ttft, tpot) for name in ("p50", "p99"))
    yield share(figures.figure(run.summary, "goodput", "attainment"))


def _shown(title: str, width: int) -> bool:
    if width >= _WIDE:
        return True
    return title in (_MIDDLE_COLUMNS if width >= _MIDDLE else _NARROW_COLUMNS)


def _table(first: str, *others: str) -> Table:
    """Without lines, which are noise in a file: titles, then rows with a wide space between columns."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(first, style="bold", overflow="fold")
    for title in others:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style))
