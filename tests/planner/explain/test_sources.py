"""What is read of a request: from a server's record, a run, a bench; and how what is none of these is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.completions import data_of
from tests.bench.report.runs import document, mixed
from tests.planner.models import SMOLLM2_135M, recorded, steps_of
from tests.server.accounts.requests import served
from tests.support.metrics import request_metrics
from twofold.core.errors import ParameterError
from twofold.core.record import WaitReason
from twofold.observe.served import FetchedBlocks, ServedHandover, ServedMove, ServedRoute
from twofold.planner.explain.report import explain, requests_like
from twofold.planner.explain.scenario import Observed, waterfall
from twofold.planner.explain.sources import read_observed
from twofold.server.records import record_data

RUN: dict[str, Any] = {
    "model": "smol",
    "text": "…",
    "usage": {
        "prompt_tokens": 41, "completion_tokens": 38, "total_tokens": 79, "prompt_tokens_details": {"cached_tokens": 3},
    },
    "timing": {"load_s": 0.1, "queue_s": 0.1, "ttft_s": 0.6, "prefill_s": 0.5, "decode_s": 1.0},
    "stalls": {"blocks": 0.08, "prefill": 0.25},
    "limit": {"prefill": {"share": 0.5, "bound": "arithmetic"}, "decode": {"share": 0.2, "bound": "memory"}},
    "work": {
        name: {
            "rows": rows, "steps": steps, "flops": 10, "weight_bytes": 3.5, "kv_read_bytes": 4, "kv_written_bytes": 1,
            "steps_s": 1.0, "predicted_s": 0.9,
        }
        for name, rows, steps in (("prefill", 38, 1), ("decode", 37, 37))
    },
}  # fmt: skip

BENCH: dict[str, Any] = json.loads(document(mixed(3)).to_json())


def read(value: Any, pick: str | None = None) -> Observed:
    return read_observed(json.dumps(value), "request.json", pick)


def total(seen: Observed) -> float:
    """Measured seconds of all phases."""
    return waterfall(None, seen).seconds


def record(*, ceilings: bool = True, reports: int = 1, routes: tuple[ServedRoute, ...] = ()) -> dict[str, Any]:
    """As the server writes it: 0.2 s of queue, 0.5 s of prefill, 1 s of decode with 0.3 s of others' prompts in it.

    Decode ran beside another sequence.
    """
    work = recorded(41, 1)
    for position in range(41, 78):
        work.decode.add_step(position, 1, step_rows=2, logit_rows=1, seconds=0.02, predicted_s=0.01)
    work.stall(WaitReason.TURN, 0.15, until=0.15)
    work.stall(WaitReason.PREFILL, 0.3)
    report = request_metrics("r", 0.0, 0.2, 0.7, 1.7, 1.7, 41, 0, 38, ("stop",), work)
    known = steps_of(SMOLLM2_135M, "Q4_1") if ceilings else None
    found: dict[str, Any] = data_of(record_data(served(reports=(report,) * reports, routes=routes), known))
    return found


def test_a_record_of_a_server() -> None:
    seen = read(record())
    assert (seen.prompt, seen.output, seen.batch) == (41, 38, 2.0)
    assert {name: spent.seconds for name, spent in seen.phases.items()} == pytest.approx(
        {"queue": 0.2, "prefill": 0.5, "decode": 0.7, "stalls": 0.3}
    )
    assert seen.phases["queue"].why == "waiting behind others"
    decode = seen.phases["decode"]
    assert decode.floor == pytest.approx(0.3166, abs=1e-3)
    assert decode.bound == "memory"
    assert decode.why == "37 rows in 37 steps"
    assert seen.notes == (
        "50% of the rows in its decode steps were its own: it is explained as one of 2 equal requests.",
        "The engine predicted 370 ms for 740 ms of steps: 50% too short.",
    )


def test_drafts_and_loaded_tokens_of_a_record() -> None:
    found = record()
    plain = read(found)
    assert (plain.drafts, plain.loaded, plain.load_s) == (None, 0, 0.0)
    found["prompts"][0] |= {"cached_tokens": 32, "loaded_tokens": 20}
    found["prompts"][0]["speculation"] |= {"drafted_tokens": 40, "accepted_tokens": 30, "saved_s": -0.35}
    found["prompts"][0]["stalls_s"]["loading"] = 0.05
    seen = read(found)
    assert (seen.drafts, seen.loaded, seen.load_s) == ((40, 30, -0.35), 20, 0.05)
    case = requests_like(seen)
    assert (case.cached, case.loaded, case.fresh) == (12, 20, 9)


def test_a_reply_that_carries_its_record() -> None:
    assert read({"object": "chat.completion", "choices": [], "twofold": record()}) == read(record())


def test_what_drafts_gained() -> None:
    drafts = {"drafted_tokens": 500, "accepted_tokens": 412, "saved_s": 1.93}
    note = "Speculation: 412 of 500 drafted tokens were right; 412 steps and 1.93 s saved."
    whole = record()
    whole["prompts"][0]["speculation"] |= drafts
    assert note in read(whole).notes
    del whole["prompts"][0]["speculation"]
    assert read(whole).notes == read(record()).notes, "a record from before there were drafts"
    assert read({**RUN, "speculation": drafts}).notes == (note,)
    lost = read({**RUN, "speculation": {**drafts, "saved_s": -0.25}}).notes
    assert lost[0].endswith("412 steps saved, 250 ms lost.")


def test_the_replica_of_a_prompt_and_where_it_continued() -> None:
    fetched = FetchedBlocks(0, 2, 64, 1_200_000, 0.003)
    moves = (ServedMove(0, "drained"), ServedMove(2, "silent"))
    routes = (
        ServedRoute(1, "least predicted TTFT", 96, 0.12, 0.2, fetched),
        ServedRoute(2, "least predicted TTFT", 1, 0.12, None, moves=moves),
        ServedRoute(0, "its turn", None, None, None),
    )
    whole = record(reports=3, routes=routes)
    plain = len(read(record()).notes)
    assert [read(whole, str(prompt)).notes[plain:] for prompt in range(3)] == [
        (
            "It went to replica 1 (least predicted TTFT); predicted TTFT 120 ms, measured 100 ms: 20% too long; "
            "96 tokens cached there; 64 tokens (1.2 MB) fetched from replica 0 in 3 ms.",
        ),
        (
            "It went to replica 2 (least predicted TTFT); predicted TTFT 120 ms; 1 token cached there.",
            "It continued on replica 0: replica 2 was drained.",
            "It continued on replica 2: replica 0 did not answer.",
        ),
        ("It went to replica 0 (its turn).",),
    ]
    del whole["routes"][1]["moves"]
    assert len(read(whole, "1").notes) == plain + 1, "a record from before there were moves"


def test_what_it_brought_that_another_replica_decodes() -> None:
    route = ServedRoute(0, "its turn", None, None, None)
    moved = replace(route, moves=(ServedMove(1, "handover"),), handover=ServedHandover(1, 3, 0.5, 4_600_000, 0.05))
    stayed = replace(route, handover=ServedHandover(None, 9, -0.02))
    early = replace(route, handover=ServedHandover(1, 1, 0.5, 4_600_000, 0.005, 4_100_000))
    whole, plain = record(reports=3, routes=(moved, stayed, early)), len(read(record()).notes)
    assert [read(whole, str(prompt)).notes[plain + 1 :] for prompt in range(3)] == [
        (
            "It continued on replica 1: replica 0 handed it over.",
            "That was after 3 tokens, for a predicted gain of 500 ms; 4.6 MB were transferred in 50 ms.",
        ),
        ("It stayed there: the best replica that decodes was predicted to end it 20 ms later.",),
        (
            "That was after 1 token, for a predicted gain of 500 ms; 4.6 MB were transferred, 4.1 MB of them before "
            "the first token and the others in 5 ms.",
        ),
    ]


def test_a_record_without_ceilings() -> None:
    seen = read(record(ceilings=False))
    assert seen.phases["decode"].floor is None
    assert seen.phases["decode"].seconds == pytest.approx(0.7)


def test_prompts_of_a_record() -> None:
    several = record(reports=3)
    assert read(several, "2").title.endswith("prompt 2 of 3")
    with pytest.raises(ParameterError, match="holds 3 prompts, so there is no prompt 3"):
        read(several, "3")
    with pytest.raises(ParameterError, match="not a prompt number"):
        read(several, "p99")


def test_a_run() -> None:
    seen = read(RUN)
    assert (seen.model, seen.prompt, seen.cached, seen.output, seen.batch) == ("smol", 41, 3, 38, 1.0)
    assert {name: spent.seconds for name, spent in seen.phases.items()} == {
        "queue": 0.1, "prefill": 0.5, "decode": 0.75, "stalls": 0.25,
    }  # fmt: skip
    assert seen.phases["queue"].why == "queued for blocks"
    assert seen.phases["stalls"].why == "waiting behind others' prefill 250 ms"
    decode = seen.phases["decode"]
    assert (decode.floor, decode.bound, decode.predicted) == (0.2, "memory", 0.9)
    assert (decode.flops, decode.nbytes) == (10, 8.5)


def test_a_run_that_knows_no_limits() -> None:
    seen = read({**RUN, "limit": None, "work": None})
    assert seen.phases["decode"].floor is None
    assert total(seen) == pytest.approx(1.6)


def test_waits_longer_than_the_queue_were_between_steps_of_the_prompt() -> None:
    seen = read({**RUN, "stalls": {"turn": 0.3}})
    assert seen.phases["prefill"].seconds == pytest.approx(0.3)
    assert seen.phases["stalls"].seconds == pytest.approx(0.2)


def test_a_bench_by_index_and_by_percentile() -> None:
    bench = json.loads(document(mixed(40)).to_json())
    requests = [each for each in bench["runs"][0]["requests"] if each["e2e_s"] is not None]
    slowest = max(requests, key=lambda each: each["e2e_s"])
    for pick in ("p100", str(slowest["index"])):
        seen = read(bench, pick)
        assert total(seen) == pytest.approx(slowest["e2e_s"], abs=1e-6)
        assert seen.title.startswith(f"request {slowest['index']}")
        assert (seen.prompt, seen.output, seen.model) == (64, 6, "a/model")
        assert seen.batch >= 1
    middle = sorted(each["e2e_s"] for each in requests)[(len(requests) + 1) // 2 - 1]
    assert total(read(bench)) == pytest.approx(middle, abs=1e-6)


def test_long_gaps_are_stalls() -> None:
    bench = json.loads(document(mixed(3)).to_json())
    request = bench["runs"][0]["requests"][0]
    request |= {"gaps_us": [10_000, 10_000, 510_000, 10_000], "last_s": request["first_s"] + 0.54, "output_tokens": 5}
    seen = read(bench, "0")
    assert seen.phases["stalls"].seconds == pytest.approx(0.5)
    assert seen.phases["decode"].seconds == pytest.approx(0.04)


@pytest.mark.parametrize("gaps", ["x", [1, "x"], [-1], [None], {}])
def test_gaps_that_are_none(gaps: object) -> None:
    bench = json.loads(document(mixed(3)).to_json())
    bench["runs"][0]["requests"][0]["gaps_us"] = gaps
    with pytest.raises(ParameterError, match="gaps_us"):
        read(bench, "0")


@pytest.mark.parametrize("pick", ["9", "41", "p0", "p101", "px", "-1", "first"])
def test_requests_that_are_not_there(pick: str) -> None:
    """The tenth was refused, and so has no times."""
    with pytest.raises(ParameterError):
        read(json.loads(document(mixed(40)).to_json()), pick)


@pytest.mark.parametrize("field", ["prompt_tokens", "completion_tokens"])
def test_what_is_missing_is_named(field: str) -> None:
    usage = {name: value for name, value in RUN["usage"].items() if name != field}
    with pytest.raises(ParameterError, match=f"request.json: usage lacks the field '{field}'"):
        read({**RUN, "usage": usage})


@pytest.mark.parametrize("wrong", ["12", -1, True, [1], 1.5])
def test_what_is_wrong_is_named(wrong: object) -> None:
    with pytest.raises(ParameterError, match="'prompt_tokens'"):
        read({**RUN, "usage": {**RUN["usage"], "prompt_tokens": wrong}})


def test_unknown_stalls_are_refused() -> None:
    with pytest.raises(ParameterError, match="'preempt'") as caught:
        read({**RUN, "stalls": {"preempt": 1.0}})
    assert "'preempted'" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '"x"', "{}", '{"object":"chat.completion"}', b"\xff\xfe\x00"])
def test_what_tells_of_no_request(text: str | bytes) -> None:
    with pytest.raises(ParameterError, match=r"x\.json") as caught:
        read_observed(text, "x.json")
    assert "twofold run --json" in (caught.value.hint or "")


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_any_change_to_a_document_is_read_or_refused(data: st.DataObject) -> None:
    """A field at any depth gets any value."""
    value = json.loads(json.dumps(data.draw(st.sampled_from([RUN, BENCH]))))
    inner: Any = value
    while isinstance(inner, dict | list) and inner:
        key: Any = data.draw(st.sampled_from(sorted(inner) if isinstance(inner, dict) else list(range(len(inner)))))
        if not isinstance(inner[key], dict | list) or not inner[key] or data.draw(st.booleans()):
            inner[key] = data.draw(plain)
            break
        inner = inner[key]
    try:
        seen = read(value)
        requests_like(seen)
        explain(None, seen)
    except ParameterError:
        pass
