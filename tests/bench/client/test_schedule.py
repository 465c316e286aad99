"""Requests are sent in the order of their due times, and are prepared ahead of time."""

from __future__ import annotations

import math
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.bench.client.loop import AHEAD_S, LOOK_AHEAD, RequestSchedule
from twofold.bench.load.base import Ask


class Maker:
    """Makes the bytes of requests, and records for which requests."""

    def __init__(self) -> None:
        self.made: list[int] = []

    def __call__(self, ask: Ask) -> bytes:
        self.made.append(ask.index)
        return b"%d" % ask.index


def asks(*due: float) -> Iterator[Ask]:
    return (Ask(index, due_s, 1, 1) for index, due_s in enumerate(due))


def take_all(schedule: RequestSchedule, now_s: float = math.inf) -> list[int]:
    taken = []
    while (one := schedule.take(now_s)) is not None:
        ask, data = one
        assert data == b"%d" % ask.index
        taken.append(ask.index)
    return taken


@given(
    known=st.lists(st.floats(0, 10), max_size=80).map(sorted),
    followers=st.lists(st.floats(0, 10), max_size=40),
    ahead=st.integers(0, 200),
)
@settings(max_examples=60, deadline=None)
def test_requests_are_taken_in_the_order_of_due_times(known: list[float], followers: list[float], ahead: int) -> None:
    maker = Maker()
    schedule = RequestSchedule(asks(*known), maker)
    due = dict(enumerate(known)) | {100 + index: due_s for index, due_s in enumerate(followers)}
    for index, due_s in enumerate(followers):
        schedule.add(Ask(100 + index, due_s, 1, 1))
    for _ in range(ahead):
        schedule.work_ahead(0.0)
    taken = take_all(schedule)
    assert [due[index] for index in taken] == sorted(due.values())
    assert sorted(maker.made) == sorted(due)  # each made once
    assert schedule.exhausted


def test_no_request_is_taken_before_it_is_due() -> None:
    schedule = RequestSchedule(asks(1.0, 2.0), Maker())
    assert schedule.take(0.5) is None
    assert schedule.next_due_s == 1.0
    assert take_all(schedule, 1.0) == [0]
    assert not schedule.exhausted
    assert take_all(schedule, 2.0) == [1]
    assert schedule.next_due_s == math.inf


def test_only_the_next_ones_are_prepared() -> None:
    maker = Maker()
    schedule = RequestSchedule(asks(*(index * 0.01 for index in range(1000))), maker)
    while schedule.work_ahead(0.0):
        pass
    assert sorted(maker.made) == list(range(LOOK_AHEAD))
    later = RequestSchedule(asks(AHEAD_S + 1.0), maker)
    maker.made.clear()
    while later.work_ahead(0.0):
        pass
    assert maker.made == []
    while later.work_ahead(1.5):
        pass
    assert maker.made == [0]


def test_a_load_is_taken_one_by_one() -> None:
    taken = []

    def endless() -> Iterator[Ask]:
        for index in range(10**9):
            taken.append(index)
            yield Ask(index, index * 1.0, 1, 1)

    schedule = RequestSchedule(endless(), Maker())
    assert take_all(schedule, 5.0) == list(range(6))
    assert len(taken) == 7


def test_due_requests_that_were_never_taken_are_listed() -> None:
    schedule = RequestSchedule(asks(0.0, 1.0, 2.0, 3.0), Maker())
    assert take_all(schedule, 0.0) == [0]
    schedule.add(Ask(9, 1.5, 1, 1))
    assert not schedule.all_due(2.5)
    assert [ask.index for ask in schedule.never_taken(2.5)] == [1, 9, 2]
    assert schedule.all_due(3.0)
    assert schedule.last_due_s == 3.0
