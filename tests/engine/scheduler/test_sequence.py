"""The laws of one sequence."""

from __future__ import annotations

import pytest

from tests.engine.scheduler.mock import END, make_manager, make_sequence
from twofold.core.step import Logits
from twofold.engine.scheduler.sequence import TRANSITIONS, Sequence, SequenceState


def admit(sequence: Sequence, computed: int = 0) -> Sequence:
    holding = make_manager().open(sequence.tokens, "", 0.0, most=0)
    sequence.admit(holding, computed)
    return sequence


class OneOf:
    """A constraint: the answer is one of these texts of tokens."""

    ready = True

    def __init__(self, *answers: list[int], shortened: bool = False) -> None:
        self._answers = list(answers)
        self._taken: list[int] = []
        self.shortened = shortened

    def mask(self) -> memoryview:
        return memoryview(b"")

    def prepare(self) -> None:
        """Nothing to make."""

    def wait(self) -> bool:
        return self.ready

    def advance(self, token: int) -> None:
        self._taken.append(token)

    @property
    def finished(self) -> bool:
        return self._taken in self._answers


def test_a_whole_life() -> None:
    sequence = admit(make_sequence(prompt=[1] * 5, answer=2))
    assert (sequence.state, sequence.positions_needed) == (SequenceState.RUNNING, 6)
    step = sequence.next_step(5)
    assert (list(step.tokens), step.start, step.logits, len(step.tables)) == ([1] * 5, 0, Logits.LAST, 1)
    assert step.draw is not None
    assert step.draw.position == 5
    sequence.advance(5)
    assert sequence.append([7]) == (7,)
    step = sequence.next_step(1)
    assert (list(step.tokens), step.start) == ([7], 5)
    sequence.advance(1)
    assert sequence.append([8]) == (8,)
    assert (sequence.state, sequence.finish_reason) == (SequenceState.FINISHED, "length")


def test_a_chunk_that_does_not_reach_the_end_draws_nothing() -> None:
    sequence = make_sequence(prompt=5)
    admit(sequence)
    step = sequence.next_step(4)
    assert (step.logits, step.draw) == (Logits.NONE, None)


def test_scored_tokens_follow_the_rows() -> None:
    sequence = make_sequence(prompt=5, scores_prompt=True, prompt_logprobs=2)
    sequence.tokens[:] = type(sequence.tokens)("i", [10, 11, 12, 13, 14])
    admit(sequence)
    first = sequence.next_step(3)
    assert (list(first.scored), first.logits, first.draw, first.alternatives) == ([11, 12, 13], Logits.ALL, None, 2)
    sequence.advance(3)
    last = sequence.next_step(2)
    assert (list(last.scored), last.logits) == ([14], Logits.ALL)
    assert last.draw is not None
    sequence.advance(2)
    sequence.append([3])
    assert (list(sequence.next_step(1).scored), sequence.next_step(1).logits) == ([], Logits.LAST)


def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    sequence = make_sequence(prompt=1, scores_prompt=True, prompt_logprobs=0)
    admit(sequence)
    assert sequence.next_step(1).logits is Logits.LAST


def test_an_end_token_stops_and_is_kept() -> None:
    sequence = make_sequence(answer=5)
    admit(sequence)
    sequence.advance(5)
    assert sequence.append([4, END, 4]) == (4, END)
    assert (sequence.finish_reason, sequence.stop_token) == ("stop", END)


@pytest.mark.parametrize(("least", "suppressed"), [(2, (END,)), (0, ())])
def test_min_tokens_suppresses_what_would_end(least: int, suppressed: tuple[int, ...]) -> None:
    sequence = make_sequence(min_tokens=least)
    admit(sequence)
    draw = sequence.next_step(5).draw
    assert draw is not None
    assert tuple(draw.suppressed) == suppressed


def test_ignore_eos_leaves_stop_tokens() -> None:
    sequence = make_sequence(answer=5, ignore_eos=True, stop_token_ids=[6])
    admit(sequence)
    sequence.advance(5)
    assert sequence.append([END, 6]) == (END, 6)
    assert sequence.stop_token == 6


def test_only_penalties_carry_the_tokens() -> None:
    plain, penalised = make_sequence(), make_sequence(presence_penalty=1.0)
    for sequence in (plain, penalised):
        admit(sequence)
        sequence.advance(5)
        sequence.append([4])
    first, second = plain.next_step(1).draw, penalised.next_step(1).draw
    assert first is not None
    assert second is not None
    assert (list(first.prompt), list(first.answer)) == ([], [])
    assert (list(second.prompt), list(second.answer)) == ([100] * 5, [4])


def test_cursors_cannot_break_their_order() -> None:
    sequence = make_sequence(prompt=5)
    admit(sequence)
    with pytest.raises(AssertionError, match="at least one"):
        sequence.advance(0)
    with pytest.raises(AssertionError, match="every known token"):
        sequence.append([1])
    with pytest.raises(AssertionError, match="is broken"):
        sequence.advance(6)


@pytest.mark.parametrize("state", list(SequenceState))
@pytest.mark.parametrize("target", list(SequenceState))
def test_the_table_of_transitions_is_kept(state: SequenceState, target: SequenceState) -> None:
    sequence = make_sequence()
    sequence.state = state
    if target in TRANSITIONS[state]:
        sequence._become(target)
        assert sequence.state is target
    else:
        with pytest.raises(AssertionError, match="cannot become"):
            sequence._become(target)


def test_a_preempted_sequence_computes_again_and_draws_once_more_where_it_was() -> None:
    sequence = admit(make_sequence(prompt=5, answer=4))
    sequence.advance(5)
    sequence.append([4])
    sequence.preempt()
    assert (sequence.state, sequence.computed, sequence.known, sequence.most_cached) == (SequenceState.WAITING, 0, 6, 5)
    step = admit(sequence).next_step(6)
    assert step.draw is not None
    assert step.draw.position == 6


def test_scores_are_asked_for_once_however_often_a_prompt_is_computed() -> None:
    sequence = admit(make_sequence(prompt=7, scores_prompt=True, prompt_logprobs=0))
    assert sequence.most_cached == 0
    sequence.advance(3)
    sequence.preempt()
    admit(sequence)
    assert (sequence.longest_chunk, sequence.most_cached) == (3, 3)
    assert (list(sequence.next_step(3).scored), sequence.next_step(3).logits) == ([], Logits.NONE)
    sequence.advance(3)
    assert (len(sequence.next_step(4).scored), sequence.next_step(4).logits) == (3, Logits.ALL)


def test_mean_pooling_asks_for_every_row_once_and_draws_nothing() -> None:
    sequence = admit(make_sequence(prompt=5, answer=0, pooling="mean"))
    assert (sequence.next_step(2).pooling, sequence.positions_needed) == ("mean", 5)
    sequence.advance(2)
    sequence.preempt()
    admit(sequence)
    assert sequence.next_step(2).pooling is None
    sequence.advance(2)
    last = sequence.next_step(3)
    assert (last.pooling, last.draw, last.logits) == ("mean", None, Logits.NONE)


def test_last_pooling_asks_for_the_last_row_only() -> None:
    sequence = admit(make_sequence(prompt=5, answer=0, pooling="last"))
    assert [sequence.next_step(rows).pooling for rows in (4, 5)] == [None, "last"]


@pytest.mark.parametrize(("shortened", "reason"), [(False, "stop"), (True, "length")])
def test_a_constraint_ends_its_answer(shortened: bool, reason: str) -> None:
    sequence = admit(make_sequence(answer=5, constraint=OneOf([4, 5], shortened=shortened)))
    sequence.advance(5)
    assert sequence.append([4]) == (4,)
    sequence.advance(1)
    assert sequence.append([5, 6]) == (5,)
    assert (sequence.finish_reason, sequence.stop_token) == (reason, None)


def test_an_end_token_under_a_shortened_constraint_is_length() -> None:
    sequence = admit(make_sequence(answer=5, constraint=OneOf(shortened=True)))
    sequence.advance(5)
    sequence.append([END])
    assert (sequence.finish_reason, sequence.stop_token) == ("length", END)


def test_a_beam_rests_until_it_is_extended() -> None:
    sequence = admit(make_sequence(prompt=5, answer=3, candidates=2))
    draw = sequence.next_step(5).draw
    assert draw is not None
    assert draw.candidates == 2
    sequence.advance(5)
    sequence.rest()
    assert (sequence.pending, sequence.wants_draw) == (0, False)
    sequence.extend(4)
    assert (sequence.pending, sequence.wants_draw) == (1, True)
    with pytest.raises(AssertionError, match="gave candidates"):
        sequence.extend(4)


def test_a_resting_beam_computes_again_without_another_draw() -> None:
    sequence = admit(make_sequence(prompt=5, answer=3, candidates=2))
    sequence.advance(5)
    sequence.rest()
    sequence.preempt()
    assert admit(sequence).next_step(5).draw is None
