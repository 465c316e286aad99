"""Conversations: turns wait for completions, and sessions of a seed do not depend on the order of completions."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.load.player import ended, played
from twofold.bench.load.base import Ask, PromptMessage, Shared
from twofold.bench.load.lengths import Fixed, LogNormal, Pauses, Uniform
from twofold.bench.load.synthetic import PAUSE_S, Arrivals, ConstantSessions, Conversations, Sessions, SharedPrefix
from twofold.core.errors import ParameterError

SHAPE = partial(Conversations, Fixed(3), Fixed(10), Fixed(5), Pauses("fixed", 2.0))
DRAWN = partial(Conversations, Uniform(1, 5), Uniform(1, 99), Uniform(1, 9), Pauses("exp", 2.0))


def prompt(ask: Ask) -> tuple[PromptMessage, ...]:
    return (*ask.history, PromptMessage("user", f"question {ask.index}"))


def sessions(
    opens: Arrivals | ConstantSessions, shape: partial[Conversations] = SHAPE, *, seed: int = 0, most: int | None = 4
) -> Sessions:
    return Sessions(opens, shape(seed=seed), prompt, sessions=most)


def test_the_next_turn_repeats_the_conversation() -> None:
    load = sessions(Arrivals(1.0, "constant"))
    first = next(load.begin())
    second = load.follow(ended(first, 7.0, text="an answer"), 7.1)
    assert second is not None
    assert (second.session, second.turn, second.index, second.due_s) == (0, 1, 1, 9.0)
    assert second.history == (PromptMessage("user", "question 0"), PromptMessage("assistant", "an answer"))
    third = load.follow(ended(second, 11.0, text="another"), 11.1)
    assert third is not None
    assert [message.text for message in third.history] == ["question 0", "an answer", "question 1", "another"]
    assert load.follow(ended(third, 12.0), 12.0) is None


def test_sessions_arrive_and_their_requests_are_numbered_through() -> None:
    began = played(sessions(Arrivals(1.0, "constant"), DRAWN), 0.5)
    assert sorted(ask.index for ask in began) == list(range(len(began)))
    assert [ask.due_s for ask in began if ask.turn == 0] == [0.0, 1.0, 2.0, 3.0]
    in_order = sorted(began, key=lambda ask: ask.index)
    assert [(ask.session, ask.turn) for ask in in_order] == sorted((ask.session or 0, ask.turn) for ask in began)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**40),
    st.floats(0.01, 20),
    st.floats(0.01, 20),
    st.sampled_from((Arrivals(0.7), ConstantSessions(3))),
)
def test_requests_do_not_depend_on_the_speed_of_completions(
    seed: int, quick: float, slow: float, opens: Arrivals | ConstantSessions
) -> None:
    def what(service_s: float) -> list[tuple[int, int, int]]:
        began = played(sessions(opens, DRAWN, seed=seed, most=12), service_s)
        return sorted((ask.index, ask.input_tokens, ask.output_tokens) for ask in began)

    assert what(quick) == what(slow)


def test_a_fixed_number_of_sessions_is_open() -> None:
    load = sessions(ConstantSessions(2, ramp_s=1.0), most=5)
    assert [ask.due_s for ask in load.begin()] == [0.0, 0.5]
    began = played(load, 1.0)
    spans: dict[int, list[float]] = defaultdict(list)
    for ask in began:
        assert ask.session is not None
        spans[ask.session] += [ask.due_s, ask.due_s + 1.0]
    assert sorted(spans) == [0, 1, 2, 3, 4]
    assert [(min(span), max(span)) for _, span in sorted(spans.items())] == [
        (0.0, 7.0),
        (0.5, 7.5),
        (7.0, 14.0),
        (7.5, 14.5),
        (14.0, 21.0),
    ]


@pytest.mark.parametrize(("outcome", "text"), [("ok", ""), ("failed", "x"), ("unfinished", "x")])
def test_a_session_ends_without_a_completion(outcome: str, text: str) -> None:
    load = sessions(Arrivals(1.0))
    first = next(load.begin())
    assert load.follow(ended(first, 5.0, outcome=outcome, text=text), 5.0) is None  # type: ignore[arg-type]


def test_a_failed_session_is_replaced_after_a_pause() -> None:
    load = sessions(ConstantSessions(1))
    (first,) = load.begin()
    another = load.follow(ended(first, 0.001, outcome="broken"), 0.001)
    assert another is not None
    assert (another.session, another.turn, another.due_s, another.history) == (1, 0, PAUSE_S, ())


@pytest.mark.parametrize("opens", [Arrivals(2.0), ConstantSessions(3)])
def test_no_turn_is_due_after_the_end(opens: Arrivals | ConstantSessions) -> None:
    load = Sessions(opens, DRAWN(), prompt, duration_s=20.0)
    began = played(load, 0.5)
    assert max(ask.due_s for ask in began) < 20
    assert any(ask.turn > 0 for ask in began)


def test_only_first_turns_begin_alike() -> None:
    shape = partial(Conversations, Fixed(3), Fixed(10), Fixed(5), Pauses("fixed", 1.0), SharedPrefix(0.5))
    began = played(sessions(Arrivals(1.0), shape, most=2), 0.5)
    assert {(ask.turn, ask.input_tokens, ask.shared) for ask in began} == {
        (0, 10, (Shared(0, 5),)),
        (1, 10, ()),
        (2, 10, ()),
    }


def test_a_plan_is_the_same_whenever_it_is_asked_for() -> None:
    one, other = DRAWN(seed=3), DRAWN(seed=3)
    assert one.plan(40) == [other.plan(session) for session in range(41)][40] == one.plan(40)


def test_sessions_that_could_be_endless() -> None:
    with pytest.raises(ParameterError, match="A session may have 1000 turns"):
        Conversations(LogNormal(5, 1), Fixed(1), Fixed(1), Pauses("fixed", 0))
    with pytest.raises(ParameterError, match="needs an end: a duration, a number of sessions or both"):
        sessions(ConstantSessions(1), most=None)
    with pytest.raises(ParameterError, match="An infinite rate needs a number of sessions"):
        Sessions(Arrivals(float("inf")), SHAPE(), prompt, duration_s=3.0)


def test_a_description() -> None:
    held = sessions(ConstantSessions(2, ramp_s=1.0)).describe()
    assert held == {
        "kind": "sessions",
        "concurrency": 2,
        "ramp_s": 1.0,
        "pause_after_failure_s": PAUSE_S,
        "most_open": None,
        "duration_s": None,
        "sessions": 4,
        "turns": {"kind": "fixed", "length": 3},
        "first_tokens": {"kind": "fixed", "length": 10},
        "new_tokens": {"kind": "fixed", "length": 10},
        "output_tokens": {"kind": "fixed", "length": 5},
        "think_s": {"kind": "fixed", "seconds": 2.0},
        "shared": None,
        "seed": 0,
    }
    assert sessions(Arrivals(2.0)).describe()["arrivals"] == {"kind": "poisson", "rate": 2.0}
