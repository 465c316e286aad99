"""The report as text: sentences and table rows, which the HTML page shows too, and tables for terminals and files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from twofold.bench.draw.form import duration, number, share
from twofold.bench.draw.terminal import plot
from twofold.bench.report import figures
from twofold.bench.report.charts import curves_of
from twofold.bench.report.document import Document, Run
from twofold.bench.report.figures import COLUMNS, MEASURES, RATES, WINDOWS, SweepParameter

_WIDE: Final = 100
_MIDDLE: Final = 70
_NARROW_COLUMNS: Final = frozenset({"", "P50", "P99", "N"})
_MIDDLE_COLUMNS: Final = _NARROW_COLUMNS | {"P90", "max", "failed"}
_MAX_ERRORS: Final = 5
_PLOT_WIDTH: Final = 76
_MAX_PLOTS: Final = 2
_NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "itl": "every ITL", "e2e": "E2E"}

TRIALS: Final = ("rate", "runs", "time", "requests", "met", "verdict", "reason")
LATENCY: Final = ("", *(title for title, _ in COLUMNS), "N", "failed")
THROUGHPUT: Final = ("", *(title for title, _ in RATES))
ERRORS: Final = ("errors", "requests", "status", "outcome")
"""Titles of tables."""


def title(document: Document) -> str:
    return f"{document.target.model} at {document.target.url}"


def verdict(run: Run) -> tuple[str, ...]:
    """Sentences about outcomes, rates, latency and goodput."""
    return tuple(sentence for sentence in (outcomes(run), rates(run), latency(run), goodput(run)) if sentence)


def outcomes(run: Run) -> str:
    """A sentence about outcomes; ``rates``, ``latency`` and ``goodput`` are similar, and empty without figures."""
    summary = run.summary
    measured = figures.count_at(summary, "requests", "measured")
    counts = figures.value_at(summary, "requests", "outcomes")
    found = counts if isinstance(counts, Mapping) else {}
    others = ", ".join(f"{count:,} {name}" for name, count in found.items() if name != "ok" and count)
    stopped = "The run was stopped early. " if run.interrupted else ""
    if not measured:
        return f"{stopped}No request was measured."
    rest = f" ({others})" if others else ""
    return f"{stopped}{int(found.get('ok') or 0):,} of {measured:,} requests succeeded{rest}."


def rates(run: Run) -> str:
    asked, achieved = figures.due_rate(run), figures.achieved(run, "requests_per_s")
    if achieved is None:
        return ""
    tokens = number(figures.achieved(run, "output_tokens_per_s"))
    return f"{number(achieved)} requests/s{_offered(run, asked)}, {tokens} output tokens/s."


def _offered(run: Run, rate: float | None) -> str:
    """The requested rate, and the rate of the sampled arrivals if it differs."""
    if figures.is_closed(run):
        return ""
    wanted = figures.requested_rate(run)
    if wanted is None:
        return f" of {number(rate)} offered"
    return f" of {number(wanted)} requested" + ("" if number(wanted) == number(rate) else f" ({number(rate)} sampled)")


def latency(run: Run) -> str:
    found = [(measure.name, figures.distribution(run, measure)) for measure in (figures.TTFT, figures.TPOT)]
    parts = [f"{name} {duration(of.p50)} at P50 and {duration(of.p99)} at P99" for name, of in found if of.n]
    return f"{', '.join(parts)}." if parts else ""


def goodput(run: Run) -> str:
    """The goodput in a sentence; empty without objectives."""
    found = figures.value_at(run.summary, "goodput")
    attainment = figures.number_at(run.summary, "goodput", "attainment")
    if not isinstance(found, Mapping) or attainment is None:
        return ""
    low, high = figures.number_at(found, "interval", "low"), figures.number_at(found, "interval", "high")
    limits = " and ".join(
        f"{_NAMES.get(name, name)} ≤ {duration(limit)}" for name, limit in figures.objectives(run).items()
    )
    rate = number(figures.number_at(found, "requests_per_s"))
    return f"{share(attainment)} met {limits} (95% interval {share(low)} to {share(high)}): goodput {rate} requests/s."


def notes(run: Run) -> Iterator[str]:
    """Warnings about the figures."""
    found = figures.value_at(run.summary, "notes")
    for note in found if isinstance(found, list | tuple) else ():
        words = figures.value_at(note, "text") if isinstance(note, Mapping) else None
        if isinstance(words, str):
            yield words[:1].upper() + words[1:] + "."


def run_name(run: Run, place: int, step: SweepParameter) -> str:
    """The number of a run from 1, and its rate or concurrency."""
    return f"run {place + 1}" if step.of(run) is None else f"run {place + 1}: {step.at(run)}"


def flat(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Plain data as rows of a dotted name and a text, without nulls."""
    for path, value in figures.flat(data):
        if isinstance(value, list | tuple):
            yield path, ", ".join(str(item) for item in value[:20]) + (" …" if len(value) > 20 else "")
        else:
            word = ("yes" if value else "no") if isinstance(value, bool) else str(value)
            yield path, f"{value:g}" if isinstance(value, float) else word


def summary(document: Document) -> Iterator[str]:
    """The result of a search or a sweep; nothing for a single run."""
    sentence = None if document.search is None else figures.value_at(document.search, "words")
    if isinstance(sentence, str):
        yield sentence
    elif len(document.runs) > 1:
        yield from _sweep(document.runs)


def _sweep(runs: Sequence[Run]) -> Iterator[str]:
    """The highest throughput and goodput, and their rates or concurrencies."""
    step = figures.step_of(runs)
    fastest = max(runs, key=lambda run: figures.achieved(run, "output_tokens_per_s") or 0.0)
    got, tokens = (number(figures.achieved(fastest, name)) for name in ("requests_per_s", "output_tokens_per_s"))
    yield f"{len(runs)} runs. Highest throughput: {tokens} output tokens/s, {got} requests/s, at {step.at(fastest)}."
    judged = [run for run in runs if goodput(run)]
    if judged:
        best = max(judged, key=lambda run: figures.number_at(run.summary, "goodput", "requests_per_s") or 0.0)
        yield f"Highest goodput at {step.at(best)}: {goodput(best)}"


def latency_rows(run: Run) -> Iterator[tuple[str, ...]]:
    for measure in MEASURES:
        found = figures.distribution(run, measure)
        if found.n:
            yield (
                measure.name,
                *(duration(found.at(name)) for _, name in COLUMNS),
                f"{found.n:,}",
                f"{found.failed:,}",
            )


def rate_rows(run: Run) -> Iterator[tuple[str, ...]]:
    """A row for each window of rates; closed loops have no offered rate."""
    for title, name, _ in WINDOWS:
        found = figures.value_at(run.summary, "rates", name)
        if found is not None and not (name == "asked" and figures.is_closed(run)):
            yield (title, *(number(figures.number_at(found, rate)) for _, rate in RATES))


def error_rows(run: Run) -> Iterator[tuple[str, ...]]:
    """A row for each error, the most frequent first."""
    found = figures.value_at(run.summary, "requests", "errors")
    for each in found if isinstance(found, list | tuple) else ():
        error, status, outcome = (figures.value_at(each, name) for name in ("error", "status", "outcome"))
        yield (str(error), number(figures.number_at(each, "requests")), str(status or "–"), str(outcome))


def run_rows(runs: Sequence[Run], step: SweepParameter) -> Iterator[tuple[str, ...]]:
    """A row for each run with the titles of ``figures.run_titles``, by rising rate or concurrency."""
    for place, run in sorted(enumerate(runs), key=lambda each: (step.of(each[1]) or 0.0, each[0])):
        latencies = (figures.distribution(run, measure) for measure in (figures.TTFT, figures.TPOT))
        yield (
            str(place + 1),
            number(step.of(run)),
            number(figures.due_rate(run)),
            number(figures.achieved(run, "requests_per_s")),
            number(figures.achieved(run, "output_tokens_per_s")),
            *(duration(found.at(name)) for found in latencies for name in ("p50", "p99")),
            share(figures.number_at(run.summary, "goodput", "attainment")),
        )


def trial_rows(document: Document) -> Iterator[tuple[str, ...]]:
    """A row for each trial of a search, by rising rate; runs count from 1, as in the table of runs."""
    found = None if document.search is None else figures.value_at(document.search, "trials")
    trials = [each for each in (found if isinstance(found, list | tuple) else ()) if isinstance(each, Mapping) and each]
    for each in sorted(trials, key=lambda each: figures.number_at(each, "rate") or 0.0):
        runs = each.get("runs")
        places = [place + 1 for place in runs if isinstance(place, int)] if isinstance(runs, list | tuple) else []
        yield (
            number(figures.number_at(each, "rate")),
            ", ".join(map(str, places)),
            duration(figures.number_at(each, "seconds")),
            number(figures.number_at(each, "requests")),
            share(figures.number_at(each, "attainment")),
            f"{'pass' if each.get('passed') else 'fail'}{'' if each.get('sure') else ' (inconclusive)'}",
            str(each.get("why") or ""),
        )


def print_report(document: Document, console: Console) -> None:
    """Prints a document: the tables of a single run, or a row for each of several runs, and their charts."""
    _say(console, title(document), "bold")
    for sentence in summary(document):
        _say(console, sentence)
    if len(document.runs) == 1:
        _print_run(document.runs[0], console)
        return
    width, step = console.width, figures.step_of(document.runs)
    trials = _table(TRIALS, trial_rows(document), range(6 if width >= _MIDDLE else 5))
    if trials.row_count:
        console.print(trials)
        console.print()
    narrow = (0, 1, 2, 3, 5, 6, 8, 9) if width >= _MIDDLE else (0, 1, 3, 6, 8, 9)
    rows = run_rows(document.runs, step)
    console.print(_table(figures.run_titles(step), rows, range(10) if width >= _WIDE else narrow))
    for chart in islice(curves_of(document), _MAX_PLOTS):
        console.print()
        _say(console, plot(chart, width=min(width, _PLOT_WIDTH), height=10))


def _print_run(run: Run, console: Console) -> None:
    for sentence in verdict(run):
        _say(console, sentence)
    width = console.width
    shown = LATENCY if width >= _WIDE else _MIDDLE_COLUMNS if width >= _MIDDLE else _NARROW_COLUMNS
    columns = [at for at, title in enumerate(LATENCY) if title in shown]
    for table in (
        _table(LATENCY, latency_rows(run), columns),
        _table(THROUGHPUT, rate_rows(run), range(5) if width >= _MIDDLE else (0, 1, 3)),
        _table(ERRORS, islice(error_rows(run), _MAX_ERRORS), range(3)),
    ):
        if table.row_count:
            console.print()
            console.print(table)
    found = list(notes(run))
    if found:
        console.print()
    for note in found:
        _say(console, f"! {note}", "yellow")


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]], columns: Sequence[int]) -> Table:
    """A table of the selected columns, without ruled lines."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column(titles[columns[0]], style="bold", overflow="fold")
    for place in columns[1:]:
        table.add_column(titles[place], justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[place]) for place in columns))
    return table


def _say(console: Console, line: str, style: str = "") -> None:
    console.print(Text(line, style=style))
