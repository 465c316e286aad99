"""A page of the whole document: opens offline, asks nothing of any server, runs no script, and may be printed.

Everything in it that a server, a model or a user named is escaped; a policy in its head forbids what it does not need.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from twofold.bench.draw import STYLE, Chart, number, share, svg
from twofold.bench.draw.svg import text
from twofold.bench.report import figures, words
from twofold.bench.report.charts import charts_of, timeline
from twofold.bench.report.curves import curves_of
from twofold.bench.report.document import Document, Run
from twofold.bench.report.figures import COLUMNS, MEASURES, RATES, WINDOWS, SweepParameter
from twofold.bench.report.page import CSS

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_TIMELINE_ROW: Final = 5.0
_MAX_ERRORS: Final = 50


def html(document: Document) -> str:
    """The page. Its size is about 60 kB a run, however many requests there were."""
    name = text(words.title(document))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        f"<title>{name} – twofold bench</title><style>{CSS}{STYLE}</style></head>"
        f"<body><main>{''.join(_body(document))}</main></body></html>\n"
    )


def _body(document: Document) -> Iterator[str]:
    yield from _head(document)
    yield _verdict(words.summary(document))
    several, step = len(document.runs) > 1, figures.step_of(document.runs)
    yield _table("Trials", words.TRIALS, words.trials(document), kind="words")
    yield _gallery(curves_of(document))
    if several:
        yield _runs_table(document.runs, step)
    for place, run in enumerate(document.runs):
        body = _verdict(words.verdict(run)) + _notes(run) + "".join(_run(run))
        name = text(words.run_name(run, place, step))
        yield f"<details class=run><summary>{name}</summary>{body}</details>" if several else body
    yield from _foot(document)


def _head(document: Document) -> Iterator[str]:
    target = document.target
    yield f"<header><p class=kind>twofold bench {text(document.command)}</p><h1>{text(target.model)}</h1>"
    server = f", {text(target.server)}" if target.server else ""
    yield f"<p class=where>{text(target.url)}, {text(target.endpoint)}{server}{_when(document)}</p></header>"


def _when(document: Document) -> str:
    if not document.runs:
        return ""
    began = time.gmtime(document.runs[0].began_unix)
    return time.strftime(", %Y-%m-%d %H:%M UTC", began)


def _verdict(sentences: Iterable[str]) -> str:
    found = "".join(f"<p>{text(sentence)}</p>" for sentence in sentences)
    return f"<section class=verdict>{found}</section>" if found else ""


def _notes(run: Run) -> str:
    found = "".join(f"<li>{text(note)}</li>" for note in words.notes(run))
    return f"<ul class=notes>{found}</ul>" if found else ""


def _run(run: Run) -> Iterator[str]:
    yield _table("Latency", ("", *(title for title, _ in COLUMNS), "N", "failed"), _latency_rows(run))
    yield _table("Rates", ("", *(title for title, _ in RATES)), _rate_rows(run))
    yield _gallery(charts_of(run))
    yield _timeline(run)
    yield _errors(run)
    yield _facts("Load", run.load)
    yield _facts("Counts", _counts(run))


def _latency_rows(run: Run) -> Iterator[tuple[str, ...]]:
    for measure in MEASURES:
        found = figures.of(run, measure)
        if found.n:
            cells = (words.cell(found, name) for _, name in COLUMNS)
            yield (measure.name, *cells, f"{found.n:,}", f"{found.failed:,}")


def _rate_rows(run: Run) -> Iterator[tuple[str, ...]]:
    for window, _ in WINDOWS:
        name = figures.window_of(window)
        if figures.look(run.summary, "rates", name) is not None:
            yield (window, *(number(figures.figure(run.summary, "rates", name, rate)) for _, rate in RATES))


def _runs_table(runs: Sequence[Run], step: SweepParameter) -> str:
    rows = (_run_row(run, place, step) for place, run in figures.by_step(runs, step))
    return _table("Runs", figures.run_titles(step), rows)


def _run_row(run: Run, place: int, step: SweepParameter) -> tuple[str, ...]:
    ttft, tpot = figures.of(run, figures.TTFT), figures.of(run, figures.TPOT)
    return (
        str(place + 1),
        number(step.of(run)),
        number(figures.asked_rate(run)),
        number(figures.achieved(run, "requests_per_s")),
        number(figures.achieved(run, "output_tokens_per_s")),
        *(words.cell(found, name) for found in (ttft, tpot) for name in ("p50", "p99")),
        share(figures.figure(run.summary, "goodput", "attainment")),
    )


def _timeline(run: Run) -> str:
    chart = timeline(run)
    if chart is None or chart.y.high is None:
        return ""
    height = 60 + max(60.0, _TIMELINE_ROW * chart.y.high)
    return f"<figure class=wide>{svg(chart, width=1000, height=height)}</figure>"


def _errors(run: Run) -> str:
    found = figures.look(run.summary, "requests", "errors")
    rows = [
        (str(each.get("requests", "")), str(each.get("outcome", "")), str(each.get("status") or ""), str(each["error"]))
        for each in (found if isinstance(found, list | tuple) else ())[:_MAX_ERRORS]
        if isinstance(each, Mapping) and "error" in each
    ]
    return _table("Errors", ("requests", "outcome", "status", "error"), rows, kind="words") if rows else ""


def _counts(run: Run) -> dict[str, Any]:
    names = ("measured", "requests", "concurrency", "tokens", "client", "mlperf")
    found = {name: figures.look(run.summary, name) for name in names}
    requests = found.get("requests")
    if isinstance(requests, Mapping):
        found["requests"] = {name: value for name, value in requests.items() if name != "errors"}
    verdicts = found.pop("mlperf")
    if isinstance(verdicts, list | tuple):
        found["mlperf"] = dict(_mlperf(verdicts))
    itl = figures.look(run.summary, "itl")
    shares = ("several_share", "assumed_share", "merged", "empty", "pings")
    found["chunks"] = {name: figures.look(itl, name) for name in shares} if isinstance(itl, Mapping) else None
    found["misses"] = figures.look(run.summary, "goodput", "misses")
    return found


def _mlperf(verdicts: Iterable[Any]) -> Iterator[tuple[str, str]]:
    for each in verdicts:
        name = figures.look(each, "scenario", "name") if isinstance(each, Mapping) else None
        if isinstance(name, str):
            yield name, "met" if each.get("met") else "not met"


def _foot(document: Document) -> Iterator[str]:
    yield _facts("Settings", document.settings)
    details = {"server": document.target.server, **document.target.details}
    yield _facts("Target", details)
    machine = document.machine
    client = {
        "processor": machine.processor,
        "cores": machine.cores,
        "usable threads": machine.usable_threads,
        "memory": f"{number(machine.memory_bytes)}B",
        "system": machine.system,
        "python": machine.python,
        "twofold": document.version,
    }
    yield _facts("Client", client)
    meanings = [(measure.name, measure.meaning) for measure in MEASURES]
    meanings += [(f"rate, {name}", meaning) for name, meaning in WINDOWS]
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(meaning)}</dd>" for name, meaning in meanings)
    yield f"<section><h2>What the figures mean</h2><dl>{rows}</dl>"
    for name in ("words", "percentiles", "failures", "queue"):
        sentence = figures.look(document.runs[0].summary, "measured", name) if document.runs else None
        if isinstance(sentence, str):
            yield f"<p>{text(_label(name))}: {text(sentence)}.</p>"
    yield "</section>"


def _label(name: str) -> str:
    return {"words": "Rule"}.get(name, name.capitalize())


def _gallery(charts: Iterable[Chart]) -> str:
    pictures = "".join(f"<figure>{svg(chart, width=560, height=270)}</figure>" for chart in charts)
    return f"<section class=gallery>{pictures}</section>" if pictures else ""


def _table(title: str, head: tuple[str, ...], rows: Iterable[tuple[str, ...]], *, kind: str = "") -> str:
    heads = "".join(f"<th scope=col>{text(name)}</th>" for name in head)
    body = "".join(
        f"<tr><th scope=row>{text(row[0])}</th>{''.join(f'<td>{text(cell)}</td>' for cell in row[1:])}</tr>"
        for row in rows
    )
    kinds = f" class={kind}" if kind else ""
    table = f"<table{kinds}><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
    return f"<section><h2>{text(title)}</h2><div class=scroll>{table}</div></section>" if body else ""


def _facts(title: str, data: Mapping[str, Any]) -> str:
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(value)}</dd>" for name, value in words.flat(data))
    return f"<details class=facts><summary>{text(title)}</summary><dl>{rows}</dl></details>" if rows else ""
