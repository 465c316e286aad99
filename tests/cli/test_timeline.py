"""The timeline of a request with known times."""

from __future__ import annotations

from dataclasses import replace

import pytest

from twofold.cli.chat.phases import EDGE, LABEL, NOTES, draw_timeline
from twofold.core.record import SequenceRecord, WaitReason
from twofold.core.report import RequestMetrics

COLUMNS = 40
WIDTH = COLUMNS + LABEL + NOTES


def metrics(
    *completions: tuple[float, ...], scheduled: float | None = 1.0, first: float | None = 2.0, end: float = 4.0
) -> RequestMetrics:
    """A request that arrives at 0, is scheduled at 1, has its first token at 2 and ends at 4."""
    return RequestMetrics(0.0, scheduled, first, end, completions, prompt_tokens=9, cached_tokens=4)


def bars(text: str) -> dict[str, str]:
    """The bars of the timeline by label."""
    rows = [line.split(EDGE) for line in text.splitlines() if EDGE in line]
    return {label.strip(): bar for label, bar, _ in rows}


def test_phases_follow_each_other() -> None:
    drawn = bars(draw_timeline(metrics((2.0, 3.0, 4.0)), WIDTH))
    assert drawn["queue"] == "█" * 10 + " " * 30
    assert drawn["prefill"] == " " * 10 + "█" * 10 + " " * 20
    assert drawn["decode"] == " " * 20 + "█" + "·" * 9 + "█" + "·" * 8 + "█"


def test_notes_have_the_numbers() -> None:
    queue, prefill, decode, ruler = draw_timeline(metrics((2.0, 2.5, 4.0)), WIDTH).splitlines()
    assert queue.endswith("1,000.0 ms")
    assert prefill.endswith("1,000.0 ms  5 tokens, 4 cached (44%)")
    assert decode.endswith("2,000.0 ms  3 tokens, longest gap 1,500.0 ms")
    assert ruler.split() == ["0", "ms", "4,000.0", "ms"]


def test_columns_are_as_high_as_their_tokens_are_many() -> None:
    drawn = bars(draw_timeline(metrics((2.0, 2.01, 2.02, 2.03, 3.0, 3.01, 4.0)), WIDTH))
    assert drawn["decode"].strip() == "█" + "·" * 9 + "▄" + "·" * 8 + "▂"


def test_each_completion_has_a_line() -> None:
    lines = draw_timeline(metrics((2.0, 3.0), (2.0, 4.0)), WIDTH).splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["decode", "decode"]


def test_one_token_has_no_gap() -> None:
    assert draw_timeline(metrics((2.0,)), WIDTH).splitlines()[2].endswith("1 token")


def test_a_request_that_stopped_early() -> None:
    assert list(bars(draw_timeline(metrics((), first=None), WIDTH))) == ["queue", "prefill"]
    assert list(bars(draw_timeline(metrics((), scheduled=None, first=None), WIDTH))) == ["queue"]


@pytest.mark.parametrize("width", [0, 40, 80, 200])
def test_it_fits_the_terminal_where_there_is_room(width: int) -> None:
    lines = draw_timeline(metrics((2.0, 3.0, 4.0)), width).splitlines()
    assert max(map(len, lines)) <= max(width, LABEL + NOTES + 20)
    assert len({line.rindex(EDGE) for line in lines[:3]}) == 1


def test_no_time_at_all() -> None:
    nothing = RequestMetrics(1.0, 1.0, 1.0, 1.0, ((1.0,),), prompt_tokens=1)
    assert list(bars(draw_timeline(nothing, WIDTH))) == ["queue", "prefill", "decode"]


def test_stalls_have_lines_by_cause() -> None:
    record = SequenceRecord()
    record.stall(WaitReason.TURN, 1.0, until=1.0)
    record.stall(WaitReason.PREEMPTED, 0.5, until=2.75)
    record.stall(WaitReason.PREEMPTED, 0.01, until=3.5)
    record.stall(WaitReason.PREFILL, 0.1)
    lines = draw_timeline(replace(metrics((2.0, 3.0, 4.0)), record=record), WIDTH).splitlines()
    stalled = [line.split(EDGE) for line in lines if line.startswith("stalled")]
    assert [bar for _, bar, _ in stalled] == [
        "▒" * 10 + " " * 30,
        " " * 22 + "▒" * 5 + " " * 7 + "▒" + " " * 5,
        " " * 40,
    ]
    assert [note.split("ms  ")[1] for _, _, note in stalled] == [
        "waiting behind others",
        "preempted",
        "waiting behind others' prefill",
    ]
    assert lines[-1].split() == ["0", "ms", "4,000.0", "ms"]
