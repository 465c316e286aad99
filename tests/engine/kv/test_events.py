"""Random events on the block manager: all laws hold all the time, and every sequence finds its own contents."""

from __future__ import annotations

from array import array
from collections import Counter
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.engine.kv.twin import BLOCK, LAYOUTS, PIN_SECONDS, Text, Twin

EVENTS = 2_500
MAX_TEXTS = 7
WEIGHTS = {"open": 6, "step": 24, "fork": 2, "close": 4, "pin": 3, "swap_out": 2, "swap_in": 3, "time": 1}


def prompt(random: Random, twin: Twin) -> array[int]:
    """New, or like another one up to some place. Few symbols, so that beginnings are shared."""
    start: array[int] = array("i")
    if twin.texts and random.random() < 0.7:
        other = random.choice(twin.texts).tokens
        start = other[: random.randrange(len(other) + 1)]
    return start + array("i", random.choices(range(3), k=random.randint(1, 24)))


def random_event(random: Random, twin: Twin) -> str:
    """One event at random; its name, or "" if it was not possible."""
    event = random.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    if event == "time":
        twin.pass_time(random.uniform(0, 20))
        return event
    if event in {"open", "fork"} and len(twin.texts) >= MAX_TEXTS:
        return ""
    if event == "open":
        twin.open(prompt(random, twin), random.choice("aab"))
        return event
    candidates = twin.waiting() if event == "swap_in" else twin.texts if event == "close" else twin.running()
    return event if candidates and _done(random, twin, event, random.choice(candidates)) else ""


def _done(random: Random, twin: Twin, event: str, text: Text) -> bool:
    """Whether the event was possible for this sequence."""
    if event == "step":
        return twin.step(text, random.choice((1, 1, 2, 5, 9)), random.randrange(3))
    if event == "pin":
        return twin.pin(text, random.randint(1, text.computed + 1), random.choice(PIN_SECONDS))
    if event == "close":
        twin.close(text)
        return True
    if event == "fork":
        return twin.fork(text, random.choice((0, 0, 1, 7)))
    return {"swap_out": twin.swap_out, "swap_in": twin.swap_in}[event](text)


@pytest.mark.parametrize("caching", [True, False], ids=["cached", "plain"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_ten_thousand_events(layout: str, caching: bool) -> None:
    random, twin = Random(layout), Twin(LAYOUTS[layout], caching)
    caching = twin.manager.prefix_caching
    assert not (caching and twin.manager.states), "prefixes are shared without their states"
    seen: Counter[str] = Counter()
    for number in range(EVENTS if caching else EVENTS // 5):
        seen[random_event(random, twin)] += 1
        if number % 3 == 0:
            twin.check()
    assert min(seen[event] for event in WEIGHTS if caching or event != "pin") > 0
    counters = twin.manager.counters
    assert counters.queries >= counters.hits
    if caching:
        assert counters.evicted > 0
        assert counters.hits > 0
    for text in list(twin.texts):
        twin.close(text)
    twin.pass_time(1_000)
    twin.check()
    assert not any((*twin.manager.held, *twin.manager.pinned))
    assert twin.manager.free_slots == tuple(size.host_slots for size in twin.paged)


class Machine(RuleBasedStateMachine):
    """The same events, chosen and shortened by hypothesis."""

    @initialize(layout=st.sampled_from(sorted(LAYOUTS)), caching=st.sampled_from([True, True, False]))
    def begin(self, layout: str, caching: bool) -> None:
        self.twin = Twin(LAYOUTS[layout], caching)

    @precondition(lambda self: len(self.twin.texts) < MAX_TEXTS)
    @rule(data=st.data(), salt=st.sampled_from("ab"), more=st.lists(st.integers(0, 2), min_size=1, max_size=20))
    def open(self, data: st.DataObject, salt: str, more: list[int]) -> None:
        start: array[int] = array("i")
        if self.twin.texts:
            other = data.draw(st.sampled_from(self.twin.texts)).tokens
            start = other[: data.draw(st.integers(0, len(other)))]
        self.twin.open(start + array("i", more), salt)

    @precondition(lambda self: self.twin.running())
    @rule(data=st.data(), rows=st.integers(1, 10), drawn=st.integers(0, 2))
    def step(self, data: st.DataObject, rows: int, drawn: int) -> None:
        self.twin.step(self._running(data), rows, drawn)

    @precondition(lambda self: self.twin.running() and len(self.twin.texts) < MAX_TEXTS)
    @rule(data=st.data(), back=st.integers(0, 9))
    def fork(self, data: st.DataObject, back: int) -> None:
        self.twin.fork(self._running(data), back)

    @precondition(lambda self: self.twin.texts)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        self.twin.close(data.draw(st.sampled_from(self.twin.texts)))

    @precondition(lambda self: self.twin.running())
    @rule(data=st.data(), seconds=st.sampled_from(PIN_SECONDS))
    def pin(self, data: st.DataObject, seconds: float) -> None:
        text = self._running(data)
        self.twin.pin(text, data.draw(st.integers(0, text.computed + BLOCK)), seconds)

    @precondition(lambda self: self.twin.running())
    @rule(data=st.data())
    def swap_out(self, data: st.DataObject) -> None:
        self.twin.swap_out(self._running(data))

    @precondition(lambda self: self.twin.waiting())
    @rule(data=st.data())
    def swap_in(self, data: st.DataObject) -> None:
        self.twin.swap_in(data.draw(st.sampled_from(self.twin.waiting())))

    @rule(seconds=st.floats(0, 50))
    def pass_time(self, seconds: float) -> None:
        self.twin.pass_time(seconds)

    @invariant()
    def laws(self) -> None:
        if hasattr(self, "twin"):
            self.twin.check()

    def _running(self, data: st.DataObject) -> Text:
        return data.draw(st.sampled_from(self.twin.running()))


Machine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestMachine = Machine.TestCase
