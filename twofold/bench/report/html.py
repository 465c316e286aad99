"""The report as one HTML page: it works offline, loads nothing, runs no script, and can be printed.

All names and messages of servers, models and users are escaped. A content security policy forbids all else.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Final

from twofold.bench.draw.chart import Chart
from twofold.bench.draw.form import number
from twofold.bench.draw.svg import STYLE, svg, text
from twofold.bench.report import figures, words
from twofold.bench.report.charts import charts_of, curves_of, timeline
from twofold.bench.report.document import Document, Run
from twofold.bench.report.figures import MEASURES, WINDOWS

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
_TIMELINE_ROW: Final = 5.0
_MAX_ERRORS: Final = 50

_LIGHT: Final = (
    "--ink:#1c2024;--faint:#5b636b;--rule:#e3e6e9;--paper:#ffffff;--tint:#f5f7f9;--warn:#8a4b00;--soft:#fff4e2"
)
_DARK: Final = (
    "--ink:#e8eaed;--faint:#9aa3ab;--rule:#32373c;--paper:#15181b;--tint:#1d2125;--warn:#ffc078;--soft:#332612"
)

CSS: Final = "\n".join(
    (
        f":root{{color-scheme:light dark;{_LIGHT}}}",
        f"@media (prefers-color-scheme:dark){{:root{{{_DARK}}}}}",
        "*{box-sizing:border-box}",
        "body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}",
        "main{max-width:1180px;margin:0 auto;padding:24px 20px 60px}",
        "h1{font-size:26px;line-height:1.2;margin:0;overflow-wrap:anywhere}",
        "h2{font-size:17px;margin:32px 0 8px}",
        ".kind{margin:0 0 4px;color:var(--faint);font-size:13px;letter-spacing:.04em}",
        ".where{margin:6px 0 0;color:var(--faint);overflow-wrap:anywhere}",
        ".verdict{margin:22px 0 0;font-size:18px;line-height:1.45;max-width:62em}",
        ".verdict p{margin:0 0 6px}",
        ".notes{margin:16px 0 0;padding:10px 14px 10px 32px;border-radius:6px}",
        ".notes{background:var(--soft);color:var(--warn)}",
        ".scroll{overflow-x:auto}",
        "table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}",
        "th,td{padding:6px 10px;border-bottom:1px solid var(--rule);text-align:right;white-space:nowrap}",
        "thead th{color:var(--faint);font-weight:500;font-size:13px}",
        "tbody th{font-weight:600;position:sticky;left:0;background:var(--paper)}",
        "th:first-child,.words td,.words th{text-align:left}",
        ".words td:last-child{white-space:normal;overflow-wrap:anywhere;min-width:16em}",
        ".gallery{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,460px),1fr))}",
        ".gallery{gap:28px 36px;margin-top:32px;align-items:end}",
        "figure{margin:0;min-width:0}",
        "figure.wide{margin-top:32px;overflow-x:auto}",
        "figure.wide svg{min-width:640px}",
        "details{margin-top:14px;border-top:1px solid var(--rule);padding-top:12px}",
        "details.run{margin-top:20px}",
        "summary{cursor:pointer;font-weight:600}",
        "dl{display:grid;grid-template-columns:minmax(9em,max-content) 1fr;gap:4px 20px;margin:10px 0}",
        "dt{color:var(--faint)}",
        "dd{margin:0;overflow-wrap:anywhere}",
        "@media (max-width:600px){main{padding:16px 14px 40px}dl{grid-template-columns:1fr;gap:0}dd{margin-bottom:8px}",
        ".verdict{font-size:16px}}",
        f"@media print{{:root{{{_LIGHT}}}body{{font-size:11px}}main{{max-width:none;padding:0}}",
        "h1{font-size:20px}h2{font-size:13px;margin-top:18px}thead th,.kind{font-size:10px}.verdict{font-size:13px}",
        "figure,tr,dt{break-inside:avoid}.scroll{overflow:visible}th,td{padding:3px 5px}",
        ".gallery{grid-template-columns:1fr 1fr;gap:14px}details:not([open]){display:none}}",
    )
)
"""For screens of any width, in light and dark, and for paper."""


def html(document: Document) -> str:
    """The page: about 60 kB a run, whatever the number of requests."""
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
    yield _table("Trials", words.TRIALS, words.trial_rows(document), kind="words")
    yield _gallery(curves_of(document))
    if several:
        yield _table("Runs", figures.run_titles(step), words.run_rows(document.runs, step))
    for place, run in enumerate(document.runs):
        body = _verdict(words.verdict(run)) + "".join(_run(run))
        name = text(words.run_name(run, place, step))
        yield f"<details class=run><summary>{name}</summary>{body}</details>" if several else body
    yield from _foot(document)


def _head(document: Document) -> Iterator[str]:
    target = document.target
    yield f"<header><p class=kind>twofold bench {text(document.command)}</p><h1>{text(target.model)}</h1>"
    began = [time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.began_unix)) for run in document.runs[:1]]
    where = [target.url, target.endpoint, *([target.server] if target.server else []), *began]
    yield f"<p class=where>{', '.join(map(text, where))}</p></header>"


def _verdict(sentences: Iterable[str]) -> str:
    found = "".join(f"<p>{text(sentence)}</p>" for sentence in sentences)
    return f"<section class=verdict>{found}</section>" if found else ""


def _run(run: Run) -> Iterator[str]:
    notes = "".join(f"<li>{text(note)}</li>" for note in words.notes(run))
    yield f"<ul class=notes>{notes}</ul>" if notes else ""
    yield _table("Latency", words.LATENCY, words.latency_rows(run))
    yield _table("Rates", words.THROUGHPUT, words.rate_rows(run))
    yield _gallery(charts_of(run))
    chart = timeline(run)
    if chart is not None and chart.y.high is not None:
        height = 60 + max(60.0, _TIMELINE_ROW * chart.y.high)
        yield f"<figure class=wide>{svg(chart, width=1000, height=height)}</figure>"
    yield _table(
        "Errors", words.ERRORS[::-1], (row[::-1] for row in islice(words.error_rows(run), _MAX_ERRORS)), kind="words"
    )
    yield _facts("Load", run.load)
    yield _facts("Counts", _counts(run))


def _counts(run: Run) -> dict[str, Any]:
    found = {name: figures.value_at(run.summary, name) for name in ("measured", "concurrency", "tokens", "client")}
    requests, verdicts = figures.value_at(run.summary, "requests"), figures.value_at(run.summary, "mlperf")
    if isinstance(requests, Mapping):
        found["requests"] = {name: value for name, value in requests.items() if name != "errors"}
    verdicts = [each for each in verdicts if isinstance(each, Mapping)] if isinstance(verdicts, list | tuple) else []
    results = {figures.value_at(each, "scenario", "name"): "met" if each.get("met") else "not met" for each in verdicts}
    found["mlperf"] = {name: result for name, result in results.items() if isinstance(name, str)}
    itl = figures.value_at(run.summary, "itl")
    shares = ("several_share", "assumed_share", "merged", "empty", "pings")
    found["chunks"] = {name: figures.value_at(itl, name) for name in shares} if isinstance(itl, Mapping) else None
    found["misses"] = figures.value_at(run.summary, "goodput", "misses")
    return found


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
    meanings += [(f"rate, {title}", meaning) for title, _, meaning in WINDOWS]
    rows = "".join(f"<dt>{text(name)}</dt><dd>{text(meaning)}</dd>" for name, meaning in meanings)
    yield f"<section><h2>What the figures mean</h2><dl>{rows}</dl>"
    for name in ("words", "percentiles", "failures", "queue"):
        sentence = figures.value_at(document.runs[0].summary, "measured", name) if document.runs else None
        if isinstance(sentence, str):
            label = "Rule" if name == "words" else name.capitalize()
            yield f"<p>{label}: {text(sentence)}.</p>"
    yield "</section>"


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
