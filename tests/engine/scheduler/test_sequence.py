"""The laws of one sequence."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from tests.engine.scheduler.mock import END, make_manager, make_sequence
from twofold.core.step import SamplingSpec
from twofold.engine.scheduler.sequence import TRANSITIONS, Sequence, SequenceState


def admit(sequence: Sequence, computed: int = 0) -> Sequence:
    tables = make_manager().open(sequence.tokens, "", 0.0, most=0)
    sequence.admit(tables, computed)
    return sequence


def sampling_of(sequence: Sequence) -> SamplingSpec:
    """How the sequence is sampled, as a step gives it to the runner."""
    begin = sequence.next_step(sequence.pending).begin
    assert begin is not None
    assert begin.sampling is not None
    return begin.sampling


class OneOf:
    """A constraint: the completion is one of these lists of tokens."""

    ready = True

    def __init__(self, *answers: list[int], shortened: bool = False) -> None:
        self._answers = list(answers)
        self._taken: list[int] = []
        self.shortened = shortened

    forced = ()

    def masks(self) -> list[memoryview]:
        return [memoryview(b"")]

    def prepare(self, drafts: Iterable[int] = ()) -> None:
        """Nothing to make."""

    def wait(self) -> bool:
        return self.ready

    def advance(self, tokens: Iterable[int]) -> None:
        self._taken += tokens

    @property
    def finished(self) -> bool:
        return self._taken in self._answers


def test_a_whole_life() -> None:
    sequence = admit(make_sequence(prompt=[1] * 5, answer=2))
    assert (sequence.state, sequence.positions_needed) == (SequenceState.RUNNING, 6)
    step = sequence.next_step(5)
    assert (list(step.tokens), step.start, step.end, step.samples, step.logit_rows) == ([1] * 5, 0, 5, 1, 1)
    assert step.begin is not None
    assert sequence.next_step(5).begin is None
    sequence.advance(5)
    assert sequence.append([7]) == (7,)
    step = sequence.next_step(1)
    assert (list(step.tokens), step.start) == ([7], 5)
    sequence.advance(1)
    assert sequence.append([8]) == (8,)
    assert (sequence.state, sequence.finish_reason) == (SequenceState.FINISHED, "length")


def test_a_chunk_before_the_end_samples_nothing() -> None:
    sequence = make_sequence(prompt=5)
    admit(sequence)
    step = sequence.next_step(4)
    assert (step.logit_rows, step.samples) == (0, 0)


def test_scored_tokens_follow_the_rows() -> None:
    sequence = make_sequence(prompt=5, reports_prompt=True, prompt_logprobs=2)
    sequence.tokens[:] = type(sequence.tokens)("i", [10, 11, 12, 13, 14])
    admit(sequence)
    first = sequence.next_step(3)
    assert (list(first.scored), first.logit_rows, first.samples, first.alternatives) == ([11, 12, 13], 3, 0, 2)
    sequence.advance(3)
    last = sequence.next_step(2)
    assert (list(last.scored), last.logit_rows, last.samples) == ([14], 2, 1)
    sequence.advance(2)
    sequence.append([3])
    assert (list(sequence.next_step(1).scored), sequence.next_step(1).logit_rows) == ([], 1)


def test_a_prompt_of_one_token_has_nothing_to_score() -> None:
    sequence = make_sequence(prompt=1, reports_prompt=True, prompt_logprobs=0)
    admit(sequence)
    assert sequence.next_step(1).logit_rows == 1


def test_an_end_token_stops_and_is_kept() -> None:
    sequence = make_sequence(answer=5)
    admit(sequence)
    sequence.advance(5)
    assert sequence.append([4, END, 4]) == (4, END)
    assert (sequence.finish_reason, sequence.stop_token) == ("stop", END)


@pytest.mark.parametrize(("least", "suppressed", "until"), [(2, (END,), 7), (0, (), 0)])
def test_min_tokens_suppresses_what_would_end(least: int, suppressed: tuple[int, ...], until: int) -> None:
    sampling = sampling_of(admit(make_sequence(min_tokens=least)))
    assert (sampling.suppressed, sampling.suppressed_until) == (suppressed, until)


def test_ignore_eos_leaves_stop_tokens() -> None:
    sequence = make_sequence(answer=5, ignore_eos=True, stop_token_ids=[6])
    admit(sequence)
    sequence.advance(5)
    assert sequence.append([END, 6]) == (END, 6)
    assert sequence.stop_token == 6


def test_only_penalties_carry_the_tokens() -> None:
    for penalty, kept in (0.0, []), (1.0, [100, 100]):
        begin = admit(make_sequence(presence_penalty=penalty), 2).next_step(3).begin
        assert begin is not None
        assert begin.sampling is not None
        assert (list(begin.tokens), begin.sampling.prompt_length) == (kept, 5)


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


def test_a_preempted_sequence_computes_again_and_then_goes_on_sampling() -> None:
    sequence = admit(make_sequence(prompt=5, answer=4))
    sequence.advance(5)
    sequence.append([4])
    sequence.preempt()
    assert (sequence.state, sequence.computed, sequence.known, sequence.max_cached) == (SequenceState.WAITING, 0, 6, 5)
    step = admit(sequence).next_step(6)
    assert (step.samples, step.end) == (1, 6)


def test_scores_are_requested_once_even_if_a_prompt_is_computed_again() -> None:
    sequence = admit(make_sequence(prompt=7, reports_prompt=True, prompt_logprobs=0))
    assert sequence.max_cached == 0
    sequence.advance(3)
    sequence.preempt()
    admit(sequence)
    assert (sequence.longest_chunk, sequence.max_cached) == (3, 3)
    assert (list(sequence.next_step(3).scored), sequence.next_step(3).logit_rows) == ([], 0)
    sequence.advance(3)
    assert (len(sequence.next_step(4).scored), sequence.next_step(4).logit_rows) == (3, 4)


def test_mean_pooling_requests_every_row_once_and_samples_nothing() -> None:
    sequence = admit(make_sequence(prompt=5, answer=0, pooling="mean"))
    assert (sequence.next_step(2).pooling, sequence.positions_needed) == ("mean", 5)
    sequence.advance(2)
    sequence.preempt()
    admit(sequence)
    assert sequence.next_step(2).pooling is None
    sequence.advance(2)
    last = sequence.next_step(3)
    assert (last.pooling, last.samples, last.logit_rows) == ("mean", 0, 0)


def test_last_pooling_requests_only_the_last_row() -> None:
    sequence = admit(make_sequence(prompt=5, answer=0, pooling="last"))
    assert [sequence.next_step(rows).pooling for rows in (4, 5)] == [None, "last"]


@pytest.mark.parametrize(("shortened", "reason"), [(False, "stop"), (True, "length")])
def test_a_constraint_ends_its_completion(shortened: bool, reason: str) -> None:
    sequence = admit(make_sequence(answer=5, constraint=OneOf([4, 5], shortened=shortened)))
    sequence.advance(5)
    assert sequence.append([4]) == (4,)
    sequence.advance(1)
    assert sequence.append([5]) == (5,)
    assert (sequence.finish_reason, sequence.stop_token) == (reason, None)


def test_an_end_token_under_a_shortened_constraint_is_length() -> None:
    sequence = admit(make_sequence(answer=5, constraint=OneOf(shortened=True)))
    sequence.advance(5)
    sequence.append([END])
    assert (sequence.finish_reason, sequence.stop_token) == ("length", END)


def test_a_beam_rests_until_it_is_extended() -> None:
    sequence = admit(make_sequence(prompt=5, answer=3, candidates=2))
    step = sequence.next_step(5)
    assert (step.samples, step.candidates) == (1, 2)
    sequence.advance(5)
    sequence.rest()
    assert (sequence.pending, sequence.samples_next) == (0, False)
    sequence.extend(4)
    assert (sequence.pending, sequence.samples_next) == (1, True)
    with pytest.raises(AssertionError, match="gave candidates"):
        sequence.extend(4)


def test_a_resting_beam_computes_again_without_new_candidates() -> None:
    sequence = admit(make_sequence(prompt=5, answer=3, candidates=2))
    sequence.advance(5)
    sequence.rest()
    sequence.preempt()
    assert admit(sequence).next_step(5).samples == 0


def test_accepted_drafts_become_known_and_computed_together() -> None:
    sequence = admit(make_sequence(prompt=5, answer=9))
    step = sequence.next_step(5, drafts=[7, 8, 4])
    assert (list(step.tokens), step.samples, step.drafts, step.logit_rows) == ([100] * 5 + [7, 8, 4], 4, 3, 4)
    sequence.advance(5)
    assert sequence.append([7, 8, 6]) == (7, 8, 6)
    assert (sequence.known, sequence.computed, sequence.decodes) == (8, 7, True)
    assert (list(sequence.next_step(1).tokens), sequence.next_step(1).start) == ([6], 7)


def test_an_accepted_draft_may_end_the_sequence() -> None:
    sequence = admit(make_sequence(prompt=5, answer=9))
    sequence.advance(5)
    assert sequence.append([7, END, 6]) == (7, END)
    assert (sequence.finish_reason, sequence.known) == ("stop", 7)


def test_whether_it_generates_is_a_fact_of_the_sequence() -> None:
    sequence = make_sequence(prompt=5, answer=9)
    assert not sequence.decodes
    admit(sequence, 2)
    assert not sequence.decodes
    sequence.advance(3)
    sequence.append([7])
    assert sequence.decodes
    assert sequence.next_step(1, drafts=[1, 2]).decode
    sequence.preempt()
    assert not sequence.decodes
    assert not admit(sequence).next_step(6).decode
