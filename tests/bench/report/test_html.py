from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import msgspec
import pytest

from tests.bench.report.runs import HOSTILE, completed, document, failed, mixed, record
from twofold.bench.draw.chart import Dots, Guide, Spans, StepLine
from twofold.bench.report.charts import MAX_ROWS, cdf, charts_of, curves_of, front, open_requests, over_time, timeline
from twofold.bench.report.document import Document
from twofold.bench.report.html import html

VOID = {"meta", "br"}


class Page(HTMLParser):
    """Checks that tags close in order, and gathers tags, attributes and text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.words = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data


def test_a_page_has_the_results() -> None:
    page = Page(html(document(mixed(40))))
    for words in ("36 of 40 requests succeeded (4 refused).", "TTFT", "goodput", "What the figures mean", "429"):
        assert words in page.words


def test_a_page_loads_nothing_and_runs_nothing() -> None:
    text = html(document(mixed(40), mixed(40, rate=8.0)))
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object", "base", "form"} & set(page.tags)
    assert not {"src", "href", "action", "style"} & {name for name, _ in page.attributes}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert "url(" not in text
    assert "@import" not in text
    assert "default-src 'none'" in text


def test_names_and_messages_of_others_are_escaped() -> None:
    made = document(mixed(40), model=HOSTILE)
    page = Page(html(made))
    assert "script" not in page.tags
    assert page.words.count(HOSTILE) >= 2


def test_every_chart_is_sound_xml() -> None:
    found = re.findall(r"<svg.*?</svg>", html(document(mixed(40), mixed(40, rate=8.0))), re.DOTALL)
    assert len(found) > 10
    for text in found:
        ElementTree.fromstring(text)


@pytest.mark.parametrize(
    "made",
    [
        document(),
        document(record([])),
        document(record([failed(0, 0.0)])),
        document(record([completed(0, 0.0)])),
        document(record([completed(0, 0.0, gaps=())])),
        document(record([failed(0, 0.0, "unfinished")], interrupted=True)),
        document(mixed(40), chunks=False),
        document(record([]), record([failed(0, 0.0)])),
        msgspec.structs.replace(
            document(mixed(4)), runs=[msgspec.structs.replace(document(mixed(4)).runs[0], summary={"latency": 3})]
        ),
    ],
)
def test_every_document_has_a_page(made: Document) -> None:
    Page(html(made))


def test_a_page_stays_small_with_many_requests() -> None:
    assert len(html(document(mixed(5000, rate=100.0)))) < 700_000


def test_a_search_shows_its_rate_and_its_trials() -> None:
    trial = {
        "rate": 4.0,
        "seconds": 30.0,
        "requests": 120,
        "attainment": 0.95,
        "passed": True,
        "sure": False,
        "why": "ok",
    }
    found = {"words": "At 4 requests a second it works.", "rate": 4.0, "trials": [trial]}
    page = Page(html(msgspec.structs.replace(document(mixed(40), mixed(40, rate=8.0)), search=found)))
    for words in ("At 4 requests a second it works.", "Trials", "pass (inconclusive)", "sustained: 4/s"):
        assert words in page.words


def test_a_curve_counts_failures_and_so_ends_below_one() -> None:
    (chart, *_) = charts_of(document(mixed(40)).runs[0])
    due = next(mark for mark in chart.marks if isinstance(mark, StepLine))
    assert due.points[-1][1] == pytest.approx(0.9)
    assert any(isinstance(mark, Guide) and mark.value == 0.5 for mark in chart.marks)
    assert "4 failures" in chart.note


def test_a_long_curve_keeps_both_ends_and_the_tail() -> None:
    import numpy as np  # noqa: PLC0415 - only this test makes many values

    points = cdf(np.arange(1, 100_001, dtype=np.float64))
    assert len(points) < 1000
    assert points[0] == (1.0, 0.0)
    assert points[-1] == (100_000.0, 1.0)
    assert (99_999.0, 0.99999) in points


def test_a_timeline_shows_phases_of_the_first_requests() -> None:
    chart = timeline(document(mixed(400)).runs[0])
    assert chart is not None
    spans = {mark.label: mark.spans for mark in chart.marks if isinstance(mark, Spans)}
    assert len(spans["decode"]) <= MAX_ROWS
    assert f"The first {MAX_ROWS} of 400 requests." == chart.note
    first, decode = spans["prefill"][0], spans["decode"][0]
    assert first.end == decode.start < decode.end


def test_a_request_without_end_is_open_until_the_run_is_over() -> None:
    run = document(record([completed(0, 0.0, gaps=[1.0, 1.0]), failed(1, 0.5, "unfinished")])).runs[0]
    chart, load = timeline(run), open_requests(run)
    assert chart is not None
    assert load is not None
    (span,) = next(mark.spans for mark in chart.marks if isinstance(mark, Spans) and mark.label == "no output")
    over = max(each.ended_s or 0.0 for each in run.requests)
    assert (span.start, span.end) == (0.5, over)
    (line,) = (mark for mark in load.marks if isinstance(mark, StepLine) and mark.label == "at the server")
    assert line.points[-1] == (over, 0.0)


def test_time_before_the_first_token_is_called_prefill_only_where_the_queue_is_known() -> None:
    run = document(mixed(40)).runs[0]
    unknown = [msgspec.structs.replace(each, queue_s=None) for each in run.requests]
    chart = timeline(msgspec.structs.replace(run, requests=unknown))
    assert chart is not None
    labels = {mark.label for mark in chart.marks if isinstance(mark, Spans)}
    assert labels == {"in the client", "queue and prefill", "decode", "no output"}


def test_delays_of_the_client_and_requests_without_output_are_seen_beside_long_latencies() -> None:
    late = completed(0, 0.0, ttft_s=5.0)
    late.started_s = 0.004
    chart = over_time(document(record([late, failed(1, 0.5, "unfinished")])).runs[0])
    assert chart is not None
    dots = {mark.label: mark.points for mark in chart.marks if isinstance(mark, Dots)}
    assert dots["schedule delay above 1 ms"] == [(0.0, 0.004)]
    assert dots["no output (at the top)"] == [(0.5, 5.0)]
    assert chart.y.kind == "log"


def test_a_sweep_begins_with_its_result() -> None:
    words = Page(html(document(mixed(40), mixed(40, rate=8.0)))).words
    assert "2 runs. Highest throughput: " in words
    assert "Highest goodput at 8 requests/s requested: " in words


def test_several_runs_have_curves_by_rate() -> None:
    titles = [chart.title for chart in curves_of(document(mixed(40), mixed(40, rate=8.0)))]
    assert titles == ["TTFT against rate", "TPOT against rate", "Throughput against rate", "Throughput against TPOT"]
    assert list(curves_of(document(mixed(40)))) == []


def test_closed_loops_have_curves_by_clients() -> None:
    runs = [replace(mixed(40, rate=4.0 * count), load={"kind": "closed", "concurrency": count}) for count in (1, 2)]
    titles = [chart.title for chart in curves_of(document(*runs))]
    assert titles[0] == "TTFT against concurrency"
    assert "run 2: 2 concurrent requests" in Page(html(document(*runs))).words


def test_the_front_has_the_pareto_optimal_points() -> None:
    assert front([(3, 30), (1, 10), (2, 5), (4, 20), (3, 25)]) == [(1, 10), (3, 30)]
