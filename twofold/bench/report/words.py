"""What came out, in sentences: the first thing that a reader of a report sees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from twofold.bench.draw.form import duration, number, share
from twofold.bench.metrics.distribution import MeasureDistribution
from twofold.bench.report import figures
from twofold.bench.report.document import Document, Run
from twofold.bench.report.figures import SweepParameter

TRIALS: Final = ("rate", "runs", "time", "requests", "met", "verdict", "reason")
"""Titles of the table of trials."""
_NAMES: Final = {"ttft": "TTFT", "tpot": "TPOT", "itl": "every ITL", "e2e": "E2E"}


def title(document: Document) -> str:
    return f"{document.target.model} at {document.target.url}"


def verdict(run: Run) -> tuple[str, ...]:
    """A sentence each: what was answered, how fast, and how much of it met its objectives."""
    return tuple(sentence for sentence in (answered(run), rates(run), latency(run), goodput(run)) if sentence)


def answered(run: Run) -> str:
    summary = run.summary
    measured, outcomes = figures.count(summary, "requests", "measured"), figures.look(summary, "requests", "outcomes")
    found = outcomes if isinstance(outcomes, Mapping) else {}
    others = ", ".join(f"{count:,} {name}" for name, count in found.items() if name != "ok" and count)
    stopped = "The run was stopped early. " if run.interrupted else ""
    if not measured:
        return f"{stopped}No request was measured."
    rest = f" ({others})" if others else ""
    return f"{stopped}{int(found.get('ok') or 0):,} of {measured:,} requests succeeded{rest}."


def rates(run: Run) -> str:
    asked, achieved = figures.asked_rate(run), figures.achieved(run, "requests_per_s")
    if achieved is None:
        return ""
    tokens = number(figures.achieved(run, "output_tokens_per_s"))
    return f"{number(achieved)} requests/s{_offered(run, asked)}, {tokens} output tokens/s."


def _offered(run: Run, drawn: float | None) -> str:
    """The rate that was asked for, and where random arrivals came at another one, that one too."""
    if figures.waits(run):
        return ""
    wanted = figures.wanted_rate(run)
    if wanted is None:
        return f" of {number(drawn)} offered"
    return f" of {number(wanted)} requested" + ("" if number(wanted) == number(drawn) else f" ({number(drawn)} drawn)")


def latency(run: Run) -> str:
    parts = [
        f"{name} {duration(found.p50)} at P50 and {duration(found.p99)} at P99"
        for name, found in (("TTFT", figures.of(run, figures.TTFT)), ("TPOT", figures.of(run, figures.TPOT)))
        if found.n
    ]
    return f"{', '.join(parts)}." if parts else ""


def goodput(run: Run) -> str:
    """Empty without objectives."""
    found = figures.look(run.summary, "goodput")
    attainment = figures.figure(run.summary, "goodput", "attainment")
    if not isinstance(found, Mapping) or attainment is None:
        return ""
    low, high = figures.figure(found, "interval", "low"), figures.figure(found, "interval", "high")
    limits = " and ".join(f"{_NAMES.get(name, name)} ≤ {duration(limit)}" for name, limit in limits_of(run))
    rate = number(figures.figure(found, "requests_per_s"))
    return f"{share(attainment)} met {limits} (95% interval {share(low)} to {share(high)}): goodput {rate} requests/s."


def limits_of(run: Run) -> Iterator[tuple[str, float]]:
    yield from figures.objectives(run).items()


def notes(run: Run) -> Iterator[str]:
    """What a reader must know before the figures mean what they seem to."""
    found = figures.look(run.summary, "notes")
    for note in found if isinstance(found, list | tuple) else ():
        words = figures.look(note, "text") if isinstance(note, Mapping) else None
        if isinstance(words, str):
            yield words[:1].upper() + words[1:] + "."


def run_name(run: Run, place: int, step: SweepParameter) -> str:
    """How reports of several runs call one: by its number, and by what differs."""
    return f"run {place + 1}" if step.of(run) is None else f"run {place + 1}: {step.at(run)}"


def cell(found: MeasureDistribution, name: str) -> str:
    return duration(found.at(name)) if found.n else duration(None)


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Plain data as rows of a name with dots and a text; what is null is left out."""
    for name, value in data.items():
        path = f"{prefix}.{name}" if prefix else str(name)
        if isinstance(value, Mapping):
            yield from flat(value, path)
        elif isinstance(value, list | tuple):
            yield path, ", ".join(str(item) for item in value[:20]) + (" …" if len(value) > 20 else "")
        elif value is not None:
            yield path, ("yes" if value else "no") if isinstance(value, bool) else _value(value)


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def summary(document: Document) -> Iterator[str]:
    """What a search or a sweep found; nothing of a single run."""
    sentence = None if document.search is None else figures.look(document.search, "words")
    if isinstance(sentence, str):
        yield sentence
    elif len(document.runs) > 1:
        yield from _sweep(document.runs)


def _sweep(runs: Sequence[Run]) -> Iterator[str]:
    """The highest throughput and goodput, and where they were reached."""
    step = figures.step_of(runs)
    fastest = max(runs, key=lambda run: figures.achieved(run, "output_tokens_per_s") or 0.0)
    got, tokens = (number(figures.achieved(fastest, name)) for name in ("requests_per_s", "output_tokens_per_s"))
    yield f"{len(runs)} runs. Highest throughput: {tokens} output tokens/s, {got} requests/s, at {step.at(fastest)}."
    judged = [run for run in runs if goodput(run)]
    if judged:
        best = max(judged, key=lambda run: figures.figure(run.summary, "goodput", "requests_per_s") or 0.0)
        yield f"Highest goodput at {step.at(best)}: {goodput(best)}"


def trials(document: Document) -> Iterator[tuple[str, ...]]:
    """A row for each trial of a search by rising rate: rate, runs, seconds, requests, share that met the objectives,
    verdict, why."""
    found = None if document.search is None else figures.look(document.search, "trials")
    trials = [each for each in (found if isinstance(found, list | tuple) else ()) if isinstance(each, Mapping)]
    for each in sorted(trials, key=lambda each: figures.figure(each, "rate") or 0.0):
        if each:
            verdict = f"{'pass' if each.get('passed') else 'fail'}{'' if each.get('sure') else ' (inconclusive)'}"
            yield (
                number(figures.figure(each, "rate")),
                _runs(each.get("runs")),
                duration(figures.figure(each, "seconds")),
                number(figures.figure(each, "requests")),
                share(figures.figure(each, "attainment")),
                verdict,
                str(each.get("why") or ""),
            )


def _runs(places: object) -> str:
    """Numbers of runs, counted from 1 as in the table of runs."""
    found = [place + 1 for place in places if isinstance(place, int)] if isinstance(places, list | tuple) else []
    return ", ".join(map(str, found))
