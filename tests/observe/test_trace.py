"""Trace files: their events, and that viewers can read them even after a crash."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.metrics import request_metrics
from twofold.core.errors import ResourceError
from twofold.core.record import SequenceRecord, WaitReason
from twofold.core.report import BlockCounts, RequestMetrics, StepReport
from twofold.observe.trace import Tracer

START = 86_400.0
"""Seconds that the clock shows at first: it counts from some moment long ago."""
STEP = StepReport(
    number=0, started=START, decode_rows=8, prefill_rows=120, sequences=9, logit_rows=8, moves=0, predicted_s=0.019,
    seconds=0.02, moves_s=0.0, host_s=0.0, waiting=3, running=9, blocks=BlockCounts(10, 20, 30),
)  # fmt: skip


def request(record: SequenceRecord | None = None, **changes: Any) -> RequestMetrics:
    """Waits a second, prefills for one, decodes for two."""
    plain: dict[str, Any] = {
        "request_id": "chat-7", "arrival": START, "admitted": START + 1, "first_token": START + 2,
        "last_token": START + 4, "finished": START + 4, "prompt_tokens": 9, "cached_tokens": 4, "output_tokens": 3,
        "finish_reasons": ("stop",), "record": record or SequenceRecord(),
    }  # fmt: skip
    return request_metrics(**plain | changes)


def steps(count: int, *, host_s: float = 0.001, length: float = 0.02) -> list[StepReport]:
    """One after the other, with some of the engine's own time between them."""
    return [
        replace(STEP, number=i, started=START + i * (length + host_s), seconds=length, host_s=host_s if i else 0.0)
        for i in range(count)
    ]


def traced(path: Path, *reports: StepReport | RequestMetrics) -> list[dict[str, Any]]:
    """The events of a finished file."""
    with Tracer(path) as tracer:
        for report in reports:
            if isinstance(report, StepReport):
                tracer.on_step(report)
            else:
                tracer.on_request(report)
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def named(events: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    return [event for event in events if event["name"] == name]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "out.json"


def test_every_event_is_well_formed(path: Path) -> None:
    moving = replace(STEP, number=3, started=START + 1, moves=2, moves_s=0.004)
    events = traced(path, *steps(3), moving, request())
    for event in events:
        assert event["ph"] in "XCMbne"
        assert isinstance(event["name"], str)
        assert all(type(event[key]) is int for key in ("ts", "pid", "tid"))
        assert event["ts"] >= 0
        assert ("dur" in event) == (event["ph"] == "X")
        assert event.get("dur", 0) >= 0
        assert ("id" in event) == (event["ph"] in "bne") == ("cat" in event)
        if event["ph"] == "C":
            assert all(isinstance(value, int | float) for value in event["args"].values())


def test_a_step_is_named_by_its_rows(path: Path) -> None:
    (event,) = named(traced(path, STEP), "8 decode + 120 prefill rows")
    assert (event["ts"], event["dur"]) == (86_400_000_000, 20_000)
    assert event["args"] == {
        "step": 0, "decode_rows": 8, "draft_rows": 0, "prefill_rows": 120, "sequences": 9, "logit_rows": 8, "moves": 0,
        "predicted_ms": 19.0, "measured_ms": 20.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("decode", "prefill", "name"), [(1, 0, "1 decode rows"), (0, 7, "7 prefill rows"), (0, 0, "moves only")]
)
def test_names_of_steps_of_one_phase(decode: int, prefill: int, name: str, path: Path) -> None:
    events = traced(path, replace(STEP, decode_rows=decode, prefill_rows=prefill))
    assert len(named(events, name)) == 1


def test_counters_follow_the_steps(path: Path) -> None:
    events = traced(path, STEP, replace(STEP, number=1, started=START + 0.02, predicted_s=None, waiting=0))
    assert [event["args"] for event in named(events, "sequences")] == [
        {"running": 9, "waiting": 3},
        {"running": 9, "waiting": 0},
    ]
    assert named(events, "KV blocks")[0]["args"] == {"held": 30, "cached": 20, "free": 10}
    assert [event["args"] for event in named(events, "step ms")] == [
        {"measured": 20.0, "predicted": 19.0},
        {"measured": 20.0},
    ]


def test_rows_are_zero_while_the_engine_is_idle(path: Path) -> None:
    events = traced(path, STEP, replace(STEP, number=1, started=START + 9, host_s=0.001))
    rows = [(event["ts"] - int(START * 1e6), sum(event["args"].values())) for event in named(events, "rows")]
    assert rows == [(0, 128), (20_000, 0), (9_000_000, 128), (9_020_000, 0)]


def test_slices_follow_each_other_and_nest(path: Path) -> None:
    """Steps that last a third of a microsecond more each, so that rounding could make them overlap."""
    third = 1e-3 / 3
    odd = [replace(step, moves=1, moves_s=third, seconds=third) for step in steps(50, host_s=third, length=2 * third)]
    events = [event for event in traced(path, *odd) if event["ph"] == "X"]
    assert [event["name"] for event in events[:3]] == ["8 decode + 120 prefill rows", "moves", "host"]
    outer = [event for event in events if event["name"] != "moves"]
    for before, after in pairwise(outer):
        assert before["ts"] + before["dur"] <= after["ts"]
    for around, inside in pairwise(events):
        if inside["name"] == "moves":
            assert around["ts"] == inside["ts"]
            assert inside["dur"] <= around["dur"]


def test_the_phases_of_a_request(path: Path) -> None:
    record = SequenceRecord(preemptions=1, recomputed=5, drafted=9, accepted=6, saved_s=0.25)
    record.stall(WaitReason.BLOCKS, 0.5, until=START + 1)
    record.stall(WaitReason.PREEMPTED, 0.25, until=START + 3)
    record.stall(WaitReason.PREFILL, 0.125)
    events = [event for event in traced(path, request(record)) if event["ph"] in "bne"]
    assert [(event["ph"], event["name"], event["ts"] / 1e6 - START) for event in events] == [
        ("b", "chat-7", 0.0),
        ("b", "queue", 0.0),
        ("b", "queued for blocks", 0.5),
        ("e", "queued for blocks", 1.0),
        ("e", "queue", 1.0),
        ("b", "prefill", 1.0),
        ("e", "prefill", 2.0),
        ("n", "first token", 2.0),
        ("b", "decode", 2.0),
        ("b", "preempted", 2.75),
        ("e", "preempted", 3.0),
        ("e", "decode", 4.0),
        ("n", "finish: stop", 4.0),
        ("e", "chat-7", 4.0),
    ]
    assert len({event["id"] for event in events}) == 1
    assert events[0]["args"] == {
        "prompt_tokens": 9, "cached_tokens": 4, "loaded_tokens": 0, "output_tokens": 3,
        "queue_ms": 1000.0, "prefill_ms": 1000.0, "decode_ms": 2000.0,
        "stalls_ms": {"queued for blocks": 500.0, "preempted": 250.0, "waiting behind others' prefill": 125.0},
        "preemptions": 1, "recomputed_tokens": 5, "swapped_blocks": 0,
        "drafted_tokens": 9, "accepted_tokens": 6, "saved_ms": 250.0,
    }  # fmt: skip


def test_requests_of_one_name_have_tracks_of_their_own(path: Path) -> None:
    events = named(traced(path, request(), request()), "chat-7")
    assert [event["id"] for event in events] == ["0x1", "0x1", "0x2", "0x2"]


@pytest.mark.parametrize(
    ("changes", "phases"),
    [
        ({"admitted": None, "first_token": None, "last_token": None}, ["queue"]),
        ({"first_token": None, "last_token": None}, ["queue", "prefill"]),
        ({"last_token": START + 2}, ["queue", "prefill"]),
    ],
)
def test_missing_phases_are_omitted(changes: dict[str, Any], phases: list[str], path: Path) -> None:
    began = [event["name"] for event in traced(path, request(**changes)) if event["ph"] == "b"]
    assert began == ["chat-7", *phases]


def test_pauses_of_several_answers_stay_inside_one_another(path: Path) -> None:
    """They overlap each other and the border between prefill and decode; one lasts longer than the request."""
    record = SequenceRecord()
    for seconds, until in ((1.0, 2.5), (0.5, 2.25), (1.0, 3.0), (9.0, 12.0)):
        record.stall(WaitReason.PREEMPTED, seconds, until=START + until)
    events = [event for event in traced(path, request(record)) if event["ph"] in "be"]
    open_spans: list[str] = []
    for event in events:
        if event["ph"] == "b":
            open_spans.append(event["name"])
        else:
            assert open_spans.pop() == event["name"]
    assert not open_spans
    assert [event["ts"] for event in events] == sorted(event["ts"] for event in events)


@pytest.mark.parametrize("count", [0, 1, 500])
def test_a_trace_is_valid_after_a_crash(count: int, path: Path) -> None:
    tracer = Tracer(path)
    for report in steps(count):
        tracer.on_step(report)
    left = path.read_text()
    events = json.loads(left + "]")
    assert events[0]["args"] == {"name": "twofold"}
    written = sum(event["ph"] == "X" and event["name"] != "host" for event in events)
    assert count - 60 < written <= count or count < 60
    tracer.close()
    assert len(json.loads(path.read_text())) >= len(events)


def test_events_of_a_finished_request_are_written_at_once(path: Path) -> None:
    with Tracer(path) as tracer:
        tracer.on_step(STEP)
        tracer.on_request(request())
        assert len(named(json.loads(path.read_text() + "]"), "chat-7")) == 2


def test_names_that_need_escapes(path: Path) -> None:
    name = 'say "hi"\n\\ 你好 \ud800'
    assert len(named(traced(path, request(request_id=name)), name)) == 2


def test_a_title_names_the_process(path: Path) -> None:
    Tracer(path, "twofold smollm2").close()
    assert json.loads(path.read_text())[0]["args"] == {"name": "twofold smollm2"}


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    for place in (tmp_path, tmp_path / "nowhere" / "out.json"):
        with pytest.raises(ResourceError, match=r"cannot be written") as caught:
            Tracer(place)
        assert caught.value.hint


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no disk that is always full")
def test_a_full_disk_is_reported_by_close() -> None:
    tracer = Tracer(Path("/dev/full"))
    for report in steps(2000):
        tracer.on_step(report)
    with pytest.raises(ResourceError, match="No space left"):
        tracer.close()
    tracer.close()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no disk that is always full")
def test_the_first_error_is_raised() -> None:
    with pytest.raises(ValueError, match="first"), Tracer(Path("/dev/full")):
        raise ValueError("first")
