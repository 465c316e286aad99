"""How many drafts a step gets, and whose."""

from __future__ import annotations

from array import array
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.scheduler.mock import make_scheduler, make_sequence, turn
from tests.support.basis import BASIS
from twofold.core.request import RequestOptions
from twofold.engine.scheduler.sequence import Sequence
from twofold.engine.scheduler.speculation import PAST_TOKENS, Speculator
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel

TEXT = [1, 2, 3, 4, 5, 6, 7, 8] * 3


class FixedTimes(StepTimeModel):
    """Steps of known length: 1 s, and ``row`` seconds for each row."""

    def __init__(self, row: float) -> None:
        super().__init__(BASIS)
        self._row = row

    def predict(self, shape: StepShape) -> float | None:
        return 1.0 + self._row * shape.rows


def generating(number: int = 0, prompt: list[int] | None = None, answer: int = 20, **options: Any) -> Sequence:
    """A sequence whose newest token is not computed."""
    sequence = make_sequence(number, prompt or TEXT, answer, options=RequestOptions(**options))
    sequence.computed = sequence.known - 1
    return sequence


def proposed(speculator: Speculator, *sequences: Sequence, rows: int = 31) -> list[int]:
    """How many drafts each sequence gets, after its text was indexed."""
    for _ in range(2):  # a large batch skips the step after one without drafts
        speculator.propose(sequences, rows)
    speculator.overlap(sequences)
    found = speculator.propose(sequences, rows)
    return [len(found.get(sequence.sequence_id, ())) for sequence in sequences]


def test_a_repeating_text_gets_what_follows_it() -> None:
    sequence = generating()
    found = Speculator(FixedTimes(0.01), 5).propose([sequence], 31)
    assert found == {0: array("i", [1, 2, 3, 4, 5])}


def test_there_are_no_drafts_without_room_text_or_wish() -> None:
    speculator = Speculator(FixedTimes(0.01), 31)
    assert proposed(speculator, generating(), rows=0) == [0]
    assert proposed(speculator, generating(1, list(range(30)))) == [0]
    assert proposed(speculator, generating(2, speculation=False)) == [0]
    assert proposed(speculator, generating(3, answer=1)) == [0]
    assert proposed(speculator, generating(4, answer=3)) == [2]
    assert proposed(Speculator(StepTimeModel(BASIS), 31), generating(5)) == [0]


def test_there_are_no_drafts_where_rows_cost_as_much_as_steps() -> None:
    """With n sequences a sure draft is worth 1 / n of a step."""
    for row, expected in ((0.02, True), (1.0, False)):
        many = [generating(number) for number in range(16)]
        assert any(proposed(Speculator(FixedTimes(row), 31), *many, rows=99)) is expected


@settings(max_examples=100, deadline=None)
@given(st.floats(0.001, 1.5), st.lists(st.sampled_from([6, 12, 20]), min_size=1, max_size=3), st.integers(0, 9))
def test_the_number_of_drafts_maximises_expected_tokens_a_second(row: float, texts: list[int], rows: int) -> None:
    speculator = Speculator(FixedTimes(row), 4)
    many = [generating(number, (list(range(50, 50 + size)) * 3)[: 2 * size]) for number, size in enumerate(texts)]
    counts = proposed(speculator, *many, rows=rows)
    assert sum(counts) <= rows

    def rate(drafts: tuple[int, ...]) -> float:
        expected = float(len(many))
        for sequence, count in zip(many, drafts, strict=True):
            drafting = speculator._drafting.get(sequence.sequence_id)
            proposal = drafting.proposal if drafting else None
            if proposal is None and count:
                return 0.0
            chance = 1.0
            for index in range(count if proposal else 0):
                assert proposal is not None
                chance *= speculator._chance(sequence, proposal, index)
                expected += chance
        return expected / (1 + row * (len(many) + sum(drafts)))

    best = max(rate(each) for each in product(range(5), repeat=len(many)) if sum(each) <= rows)
    assert rate(tuple(counts)) == pytest.approx(best)


def test_large_batches_without_drafts_are_looked_at_more_and_more_rarely() -> None:
    speculator = Speculator(FixedTimes(0.02), 31)
    many = [generating(number, list(range(30 * number, 30 * number + 30))) for number in range(8)]
    looked = []
    for step in range(60):
        speculator._drafting.clear()
        speculator.propose(many, 99)
        if speculator._drafting:
            looked.append(step)
    assert looked == [0, 2, 6, 14, 30, 46]
    speculator.propose(many[:1], 99)
    assert speculator._drafting, "a single sequence is always looked at"


def test_a_completion_is_proposed_only_under_its_own_salt() -> None:
    speculator = Speculator(FixedTimes(0.01), 8)
    first = generating(0, [50, 51, 52], cache_salt="a")
    speculator.propose([first], 9)
    first.tokens.extend([60, 61, 62, 63, 64, 65])
    first.finish("abort")
    speculator.left(first, 0.0)
    speculator.overlap(())
    others = [generating(1 + i, [9, 60, 61, 62], cache_salt=salt) for i, salt in enumerate("ab")]
    assert proposed(speculator, *others) == [3, 0]
    assert len(speculator._memory("a").past) == 6
    for _ in range(9):
        speculator._memory("a").past.add(range(PAST_TOKENS))
    assert len(speculator._memory("a").past) <= PAST_TOKENS


def test_drafts_preempt_nothing_and_use_only_what_rows_are_left() -> None:
    """Blocks have 4 positions. Drafts of the first sequence could take 9 of 14 blocks; the second one needs 7."""
    scheduler = make_scheduler(seqs=2, blocks=14, rows=60, logit_rows=14, features=[Speculator(FixedTimes(0.001), 31)])
    for number, answer in enumerate((12, 3)):
        scheduler.add(make_sequence(number, TEXT, answer), 0.0)
    drafts = []
    while scheduler.has_work:
        plan, _ = turn(scheduler, token=1)
        drafts += [step.drafts for step in plan.steps]
        assert plan.rows <= 60
        assert sum(step.logit_rows for step in plan.steps) <= 14
    assert max(drafts) > 4
    assert scheduler.preemptions == 0
    scheduler.check_idle()
