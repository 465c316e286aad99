from __future__ import annotations

import io
import math
from array import array

import pytest
from rich.console import Console

from tests.bench.report.runs import completed, failed, mixed
from twofold.bench.load.base import Ask
from twofold.bench.record import RecordedResponse, RequestSample
from twofold.bench.report.live import (
    MAX_GAPS,
    WINDOW_S,
    Goal,
    LiveLines,
    LiveTable,
    ProgressTally,
    RecentValues,
    live,
)


def opened(index: int, due_s: float, moments: list[float]) -> RequestSample:
    return RequestSample(Ask(index, due_s, 8, 8), RecordedResponse(array("d", moments)), "unfinished", due_s, due_s)


def test_percentiles_are_at_most_five_percent_too_high() -> None:
    values = RecentValues()
    for value in range(1, 101):
        values.note(1.0, value / 1000)
    for share, exact in ((0.5, 0.05), (0.99, 0.099)):
        (found,) = values.percentiles(share)
        assert found is not None
        assert exact <= found * 1.000001 <= exact * 1.051


def test_failures_are_infinite_and_nothing_has_no_percentile() -> None:
    values = RecentValues()
    assert values.percentiles(0.5) == [None]
    values.note(1.0, 0.1)
    values.note(1.0, math.inf)
    middle, slow = values.percentiles(0.5, 0.99)
    assert middle == pytest.approx(0.1, rel=0.06)
    assert slow == math.inf


def test_old_values_are_dropped() -> None:
    values, count = RecentValues(), RecentValues()
    values.note(0.5, 1.0)
    count.note(0.5, 100)
    assert count.rate(2.0) == 50
    values.forget(WINDOW_S + 1.0)
    assert values.percentiles(0.5) == [None]
    assert count.rate(WINDOW_S + 1.0) == 0


def test_every_request_and_chunk_is_counted_once() -> None:
    record = mixed(40)
    tally, samples = ProgressTally(), list(record.samples)
    for began in range(1, 41):
        tally.update(began / 4, samples[:began])
    assert (tally.began, tally.done, tally.failed) == (40, 36, 4)
    assert tally.chunks == sum(len(sample.response.moments) for sample in samples)


def test_chunks_of_open_requests_are_counted_as_they_come() -> None:
    sample = opened(0, 0.0, [])
    tally = ProgressTally()
    tally.update(0.1, [sample])
    assert tally.ttft.percentiles(0.5) == [None]
    sample.response.moments.extend((0.2, 0.25))
    tally.update(0.3, [sample])
    sample.response.moments.append(0.35)
    tally.update(0.4, [sample])
    assert tally.chunks == 3
    assert tally.ttft.percentiles(0.5) == [pytest.approx(0.2, rel=0.06)]
    assert tally.itl.percentiles(0.99) == [pytest.approx(0.1, rel=0.06)]


def test_an_update_examines_a_part_of_very_many_requests_in_turn() -> None:
    samples = [opened(index, 0.0, [0.1, 0.2]) for index in range(4000)]
    tally = ProgressTally()
    tally.update(0.1, samples)
    assert 0 < tally.chunks < 8000
    for step in range(10):
        tally.update(0.2 + step / 10, samples)
    assert tally.chunks == 8000
    assert MAX_GAPS < 4000


def test_the_table_is_shown_on_a_terminal() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100, color_system=None)
    with live(console, Goal("smol", duration_s=10.0, rate=4.0)) as shown:
        assert isinstance(shown, LiveTable)
        shown.update(5.0, list(mixed(20).samples), 3)
    for words in ("smol  5 s of 10 s", "18 completed, 3 open, 2 failed", "of 4 requested", "TTFT", "ITL", "of a core"):
        assert words in file.getvalue()


def test_the_table_is_drawn_twice_a_second_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    file = io.StringIO()
    monkeypatch.setattr("twofold.bench.report.live.time.perf_counter", lambda: now)
    shown = LiveTable(Console(file=file, force_terminal=True), Goal("smol"))
    with shown:
        shown.update(0.1, [], 0)
        size = len(file.getvalue())
        now = 0.4
        shown.update(0.5, [], 0)
        assert len(file.getvalue()) == size
        now = 0.6
        shown.update(0.7, [], 0)
        assert len(file.getvalue()) > size


def test_without_a_terminal_there_is_a_line_each_quarter() -> None:
    file = io.StringIO()
    samples = [completed(0, 0.0), failed(1, 0.1)]
    with live(Console(file=file, width=40), Goal("smol", duration_s=10.0)) as shown:
        assert isinstance(shown, LiveLines)
        for step in range(101):
            shown.update(step / 10, samples, 0)
    lines = file.getvalue().splitlines()
    assert [line.split(",")[0] for line in lines] == ["smol: 25%", "smol: 50%", "smol: 75%", "smol: 100%"]
    assert "1 completed, 0 open, 1 failed" in lines[0]


def test_a_run_of_unknown_length_shows_its_seconds() -> None:
    file = io.StringIO()
    with LiveLines(Console(file=file, width=40), Goal("smol")) as shown:
        for second in range(61):
            shown.update(float(second), [], 0)
    assert [line.split(",")[0] for line in file.getvalue().splitlines()] == ["smol: 30 s", "smol: 60 s"]


@pytest.mark.parametrize(
    ("goal", "share"), [(Goal("", requests=10), 0.5), (Goal("", duration_s=4.0), 1.0), (Goal(""), None)]
)
def test_the_reached_share_of_a_goal(goal: Goal, share: float | None) -> None:
    assert goal.reached(8.0, 5) == share
