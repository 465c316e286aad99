"""The laws of one sequence."""

from __future__ import annotations

import pytest

from tests.sched.mock import END, make_sequence
from twofold.core.step import Logits
from twofold.kv.pool import BlockPool
from twofold.sched.sequence import TRANSITIONS, State


def pool() -> BlockPool:
    return BlockPool(16, 4)


def test_a_whole_life() -> None:
    blocks, sequence = pool(), make_sequence(prompt=5, answer=2)
    sequence.admit(blocks, now=3.5)
    assert (sequence.state, sequence.admitted_at, blocks.held) == (State.RUNNING, 3.5, 2)
    step = sequence.next_step(5)
    assert (list(step.tokens), step.start, step.logits, len(step.tables[0])) == ([1] * 5, 0, Logits.LAST, 2)
    assert step.draw is not None
    assert step.draw.position == 5
    sequence.advance(5)
    assert sequence.append([7]) == (7,)
    step = sequence.next_step(1)
    assert (list(step.tokens), step.start) == ([7], 5)
    sequence.advance(1)
    assert sequence.append([8]) == (8,)
    assert (sequence.state, sequence.finish_reason, blocks.held) == (State.FINISHED, "length", 0)


def test_a_chunk_that_does_not_reach_the_end_draws_nothing() -> None:
    sequence = make_sequence(prompt=5)
    sequence.admit(pool(), 0.0)
    step = sequence.next_step(4)
    assert (step.logits, step.draw) == (Logits.NONE, None)


def test_scored_tokens_follow_the_rows() -> None:
    sequence = make_sequence(prompt=5, scores_prompt=True, prompt_logprobs=2)
    sequence.tokens[:] = type(sequence.tokens)("i", [10, 11, 12, 13, 14])
    sequence.admit(pool(), 0.0)
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
    sequence.admit(pool(), 0.0)
    assert sequence.next_step(1).logits is Logits.LAST


def test_an_end_token_stops_and_is_kept() -> None:
    sequence = make_sequence(answer=5)
    sequence.admit(pool(), 0.0)
    sequence.advance(5)
    assert sequence.append([4, END, 4]) == (4, END)
    assert (sequence.finish_reason, sequence.stop_token) == ("stop", END)


@pytest.mark.parametrize(("least", "suppressed"), [(2, (END,)), (0, ())])
def test_min_tokens_suppresses_what_would_end(least: int, suppressed: tuple[int, ...]) -> None:
    sequence = make_sequence(min_tokens=least)
    sequence.admit(pool(), 0.0)
    draw = sequence.next_step(5).draw
    assert draw is not None
    assert tuple(draw.suppressed) == suppressed


def test_ignore_eos_leaves_stop_tokens() -> None:
    sequence = make_sequence(answer=5, ignore_eos=True, stop_token_ids=[6])
    sequence.admit(pool(), 0.0)
    sequence.advance(5)
    assert sequence.append([END, 6]) == (END, 6)
    assert sequence.stop_token == 6


def test_only_penalties_carry_the_tokens() -> None:
    plain, penalised = make_sequence(), make_sequence(presence_penalty=1.0)
    for sequence in (plain, penalised):
        sequence.admit(pool(), 0.0)
        sequence.advance(5)
        sequence.append([4])
    first, second = plain.next_step(1).draw, penalised.next_step(1).draw
    assert first is not None
    assert second is not None
    assert (list(first.prompt), list(first.answer)) == ([], [])
    assert (list(second.prompt), list(second.answer)) == ([1] * 5, [4])


def test_cursors_cannot_break_their_order() -> None:
    sequence = make_sequence(prompt=5)
    sequence.admit(pool(), 0.0)
    with pytest.raises(AssertionError, match="at least one"):
        sequence.advance(0)
    with pytest.raises(AssertionError, match="every known token"):
        sequence.append([1])
    with pytest.raises(AssertionError, match="is broken"):
        sequence.advance(6)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("target", list(State))
def test_the_table_of_transitions_is_kept(state: State, target: State) -> None:
    sequence = make_sequence()
    sequence.state = state
    if target in TRANSITIONS[state]:
        sequence._become(target)
        assert sequence.state is target
    else:
        with pytest.raises(AssertionError, match="cannot become"):
            sequence._become(target)
