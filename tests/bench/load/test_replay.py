"""Replays: parts of a trace, scaled times and lengths, and shared prefixes that stay shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, TypeVar

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.load.player import ended, played
from twofold.bench.load.base import Ask, PromptMessage, Shared
from twofold.bench.load.replay import TracePart, TraceReplay, TraceScale
from twofold.bench.load.trace import Trace, read_trace
from twofold.core.errors import ParameterError

T = TypeVar("T")


def prompt(ask: Ask) -> tuple[PromptMessage, ...]:
    return (*ask.history, *(ask.messages or (PromptMessage("user", f"question {ask.index}"),)))


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    values = [{"at_s": 10.0 + k * k, "input_tokens": 10 * (k + 1), "output_tokens": k + 1} for k in range(6)]
    return made(tmp_path, *values)


def made(folder: Path, *values: dict[str, Any]) -> Trace:
    path = folder / "own.jsonl"
    path.write_bytes(b"".join(orjson.dumps(value) + b"\n" for value in values))
    return read_trace(path)


def due(load: TraceReplay) -> list[float]:
    return [ask.due_s for ask in load.begin()]


def test_the_first_request_is_due_at_0(trace: Trace) -> None:
    load = TraceReplay(trace, prompt)
    assert due(load) == [0, 1, 4, 9, 16, 25]
    assert [ask.index for ask in load.begin()] == list(range(6))
    assert load.duration_s == 25
    assert list(load.begin()) == list(load.begin())


def test_a_speed_of_2_is_twice_as_fast(trace: Trace) -> None:
    assert due(TraceReplay(trace, prompt, scale=TraceScale(speed=2))) == [0, 0.5, 2, 4.5, 8, 12.5]


def test_the_whole_is_scaled_to_a_rate(trace: Trace) -> None:
    load = TraceReplay(trace, prompt, scale=TraceScale(rate=10))
    assert load.duration_s == pytest.approx(5 / 10)
    assert load.describe()["rate"] == pytest.approx(10)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (TracePart(from_s=1), [0, 3, 8, 15, 24]),
        (TracePart(until_s=9), [0, 1, 4]),
        (TracePart(from_s=2, until_s=17), [0, 5, 12]),
        (TracePart(requests=2), [0, 1]),
        (TracePart(from_s=2, until_s=17, requests=2), [0, 5]),
        (TracePart(requests=100), [0, 1, 4, 9, 16, 25]),
    ],
)
def test_parts(trace: Trace, part: TracePart, expected: list[float]) -> None:
    assert due(TraceReplay(trace, prompt, part=part)) == expected


def test_a_part_without_requests(trace: Trace) -> None:
    with pytest.raises(ParameterError, match=r"own.jsonl has no request in that part of its 25 s"):
        TraceReplay(trace, prompt, part=TracePart(from_s=26))


def test_a_rate_needs_time_to_pass(trace: Trace) -> None:
    with pytest.raises(ParameterError, match="arrive at once"):
        TraceReplay(trace, prompt, part=TracePart(requests=1), scale=TraceScale(rate=1))


@pytest.mark.parametrize("wrong", [{"speed": 0}, {"speed": 2, "rate": 2}, {"rate": -1}, {"input": 0}, {"output": -1}])
def test_impossible_scales(wrong: dict[str, float]) -> None:
    with pytest.raises(ParameterError):
        TraceScale(**wrong)


@pytest.mark.parametrize("wrong", [{"from_s": -1}, {"from_s": 5, "until_s": 4}, {"requests": 0}])
def test_impossible_parts(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        TracePart(**wrong)


def test_lengths_are_scaled_and_stay_at_least_1(trace: Trace) -> None:
    asks = list(TraceReplay(trace, prompt, scale=TraceScale(input=0.5, output=0.1)).begin())
    assert [ask.input_tokens for ask in asks] == [5, 10, 15, 20, 25, 30]
    assert [ask.output_tokens for ask in asks] == [1, 1, 1, 1, 1, 1]


def test_pieces_that_no_other_request_has_are_unique_tokens(tmp_path: Path) -> None:
    base = {"at_s": 0, "input_tokens": 100, "output_tokens": 1}
    shared: list[list[list[int]]] = [[[1, 40], [2, 30]], [[1, 40], [3, 60]], [[1, 40], [2, 30], [4, 30]], [[5, 20]]]
    trace = made(tmp_path, *(base | {"shared": pieces} for pieces in shared))
    asks = list(TraceReplay(trace, prompt).begin())
    assert [ask.shared for ask in asks] == [
        (Shared(1, 40), Shared(2, 30)),
        (Shared(1, 40),),
        (Shared(1, 40), Shared(2, 30)),
        (),
    ]
    assert [ask.shared for ask in TraceReplay(trace, prompt, part=TracePart(requests=2)).begin()] == [
        (Shared(1, 40),)
    ] * 2


def common(one: Sequence[T], other: Sequence[T]) -> list[T]:
    """How both begin."""
    return [a for a, _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))]


def test_pieces_before_a_part_do_not_count(tmp_path: Path) -> None:
    base = {"input_tokens": 100, "output_tokens": 1}
    shared: list[list[list[int]]] = [[[9, 10], [8, 10]], [[1, 40], [9, 30]], [[1, 40], [3, 60]]]
    trace = made(tmp_path, *(base | {"at_s": k, "shared": pieces} for k, pieces in enumerate(shared)))
    asks = list(TraceReplay(trace, prompt, part=TracePart(from_s=1)).begin())
    assert [ask.shared for ask in asks] == [(Shared(1, 40),)] * 2


prompts = st.lists(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 50)), max_size=5), min_size=2, max_size=6)


@settings(max_examples=40, deadline=None)
@given(prompts, st.floats(0.05, 3))
def test_scaled_prompts_share_the_same_prefixes(
    tmp_path_factory: pytest.TempPathFactory, prompts: list[list[tuple[int, int]]], scale: float
) -> None:
    values = [
        {"at_s": 0, "input_tokens": 1 + sum(tokens for _, tokens in pieces), "output_tokens": 1, "shared": pieces}
        for pieces in prompts
    ]
    trace = made(tmp_path_factory.getbasetemp(), *values)
    asks = list(TraceReplay(trace, prompt, scale=TraceScale(input=scale)).begin())
    for ask, value in zip(asks, values, strict=True):
        assert ask.input_tokens == max(1, round(scale * value["input_tokens"]))  # type: ignore[operator]
        assert sum(piece.tokens for piece in ask.shared) <= ask.input_tokens
    for (one, first), (other, second) in pairwise(zip(asks, prompts, strict=True)):
        wanted = round(scale * sum(tokens for _, tokens in common(first, second)))
        assert sum(piece.tokens for piece in common(one.shared, other.shared)) >= wanted


SESSIONS = (
    {"at_s": 0.0, "session": 8, "input_tokens": 100, "output_tokens": 5},
    {"at_s": 1.0, "input_tokens": 30, "output_tokens": 6},
    {"after_s": 4.0, "session": 8, "turn": 1, "prompt": "Go on.", "output_tokens": 7, "fields": {"top_p": 0.5}},
    {"at_s": 2.0, "session": 9, "input_tokens": 50, "output_tokens": 8},
    {"after_s": 1.0, "session": 9, "turn": 1, "input_tokens": 20, "output_tokens": 9},
    {"after_s": 2.0, "session": 8, "turn": 2, "input_tokens": 10, "output_tokens": 10},
)


def test_later_turns_wait_for_the_previous_completion_and_repeat_it(tmp_path: Path) -> None:
    load = TraceReplay(made(tmp_path, *SESSIONS), prompt, scale=TraceScale(speed=2))
    first, *_ = load.begin()
    second = load.follow(ended(first, 6.0, text="an answer"), 6.1)
    assert second == Ask(
        3,
        8.0,
        0,
        7,
        messages=(PromptMessage("user", "Go on."),),
        history=(PromptMessage("user", "question 0"), PromptMessage("assistant", "an answer")),
        session=8,
        turn=1,
        fields={"top_p": 0.5},
    )
    third = load.follow(ended(second, 9.0, text="more"), 9.1)
    assert third is not None
    assert (third.index, third.due_s, third.turn) == (4, 10.0, 2)
    assert [message.text for message in third.history] == ["question 0", "an answer", "Go on.", "more"]
    assert load.follow(ended(third, 11.0), 11.0) is None


def test_requests_of_a_replay_are_numbered_through(tmp_path: Path) -> None:
    load = TraceReplay(made(tmp_path, *SESSIONS), prompt)
    assert sorted(ask.index for ask in played(load, 0.5)) == list(range(6))
    assert load.describe()["later_turns"] == 3


def test_a_part_holds_the_later_turns_of_its_sessions_alone(tmp_path: Path) -> None:
    load = TraceReplay(made(tmp_path, *SESSIONS), prompt, part=TracePart(from_s=1.0))
    began = played(load, 0.5)
    assert [(ask.index, ask.session, ask.turn) for ask in began] == [(0, None, 0), (1, 9, 0), (2, 9, 1)]


def test_a_session_ends_where_a_turn_failed(tmp_path: Path) -> None:
    load = TraceReplay(made(tmp_path, *SESSIONS), prompt)
    first, *_ = load.begin()
    assert load.follow(ended(first, 3.0, outcome="failed"), 3.0) is None


def test_prompts_that_are_given_cannot_be_scaled(tmp_path: Path) -> None:
    with pytest.raises(ParameterError, match="contains prompt texts, whose length cannot be scaled"):
        TraceReplay(made(tmp_path, *SESSIONS), prompt, scale=TraceScale(input=2))
    assert len(list(TraceReplay(made(tmp_path, *SESSIONS), prompt, scale=TraceScale(output=2)).begin())) == 3


def test_a_description(trace: Trace) -> None:
    said = dict(
        TraceReplay(trace, prompt, part=TracePart(requests=3), scale=TraceScale(speed=2), max_open=4).describe()
    )
    assert len(said.pop("sha256")) == 64
    assert said == {
        "kind": "trace",
        "format": "twofold",
        "file": "own.jsonl",
        "from_s": 0.0,
        "until_s": None,
        "requests": 3,
        "later_turns": 0,
        "duration_s": 2.0,
        "rate": 1.0,
        "speed": 2,
        "input_scale": 1.0,
        "output_scale": 1.0,
        "concurrency": 4,
        "skipped_lines": 0,
        "first_skipped": None,
        "unused_fields": [],
    }


@pytest.mark.data
def test_the_real_mooncake_trace_keeps_its_prefixes(test_data: Path) -> None:
    trace = read_trace(test_data / "traces" / "mooncake_conversation.jsonl.gz")
    asks = list(TraceReplay(trace, prompt, scale=TraceScale(rate=5)).begin())
    assert len(asks) == 12_031
    assert asks[-1].due_s == pytest.approx(12_030 / 5)
    assert all(a.due_s <= b.due_s for a, b in pairwise(asks))
    named = Counter(piece.key for ask in asks for piece in ask.shared)
    assert len(named) == 44_144
    assert min(named.values()) == 2
    assert sum(piece.tokens for ask in asks for piece in ask.shared) / sum(ask.input_tokens for ask in asks) == (
        pytest.approx(0.519, abs=0.02)
    )
