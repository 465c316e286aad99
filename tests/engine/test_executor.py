"""The executor: what is done while a step computes, what one sequence's fault does to others, pooled hidden states."""

from __future__ import annotations

from array import array
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.backends.sampling.naive import mask_of
from tests.engine.mock import HIDDEN, MockForward
from twofold.backends.base import RunnerSizes
from twofold.backends.runner import HostRunner
from twofold.backends.sampling.base import NumpyRows
from twofold.backends.sampling.sampler import Sampler
from twofold.core.errors import ModelError, ParameterError
from twofold.core.params import SamplingParams
from twofold.core.step import (
    HIDDEN_SCALE,
    SAMPLED,
    BlockMove,
    MoveKind,
    Pooling,
    SamplingSpec,
    SequenceOutcome,
    SequenceStart,
    SequenceStep,
    StepPlan,
    TableChange,
    TokenConstraint,
)
from twofold.engine.engine import run_step
from twofold.models.ops import Batch

VOCAB = 300
GREEDY = SamplingParams(temperature=0)
START = SequenceStart(SamplingSpec(GREEDY, 0, 18))
TOKENS = list(range(40, 58))
BLOCKS = [3, 1, 4, 7, 5]


class RecordingForward(MockForward):
    """Records the order of calls."""

    def __init__(self) -> None:
        super().__init__(vocab=VOCAB)
        self.events: list[str] = []

    def begin(self, batch: Any) -> None:
        self.events.append("begin")
        super().begin(batch)

    def run(self, batch: Any) -> Any:
        result = super().run(batch)
        self.events.append("done")
        return result

    def move(self, moves: Any) -> None:
        self.events.append("move")
        super().move(moves)


class FixedMask:
    """A constraint that always allows the same tokens of a vocabulary of ``size``. ``asked`` counts its masks."""

    finished: bool = False
    shortened: bool = False
    ready: bool = True

    def __init__(self, size: int, tokens: Collection[int]) -> None:
        self._mask, self.asked, self.drafts = mask_of(size, tokens), 0, 0

    forced = ()

    def masks(self) -> list[memoryview]:
        self.asked += 1
        return [self._mask] * (1 + self.drafts)

    def prepare(self, drafts: Sequence[int] = ()) -> None:
        self.drafts = len(drafts)
        with suppress(ParameterError):
            self.masks()

    def wait(self) -> bool:
        return self.ready

    def advance(self, tokens: Sequence[int]) -> None:
        """The same tokens stay allowed."""


class RecordingMask(FixedMask):
    """Records when its mask is computed, which happens once."""

    def __init__(self, events: list[str], tokens: range) -> None:
        super().__init__(VOCAB, tokens)
        self._events = events

    def masks(self) -> list[memoryview]:
        if not self.asked:
            self._events.append("mask")
        return super().masks()


class FailingMask(FixedMask):
    def masks(self) -> list[memoryview]:
        raise ParameterError("The grammar is too complex.", param="structured_outputs")


SIZES = RunnerSizes(
    context=64, sequences=4, rows=64, logit_rows=64, block_size=4, blocks=(64,), host_slots=(0,), kv_type="f32"
)


def make_runner(forward: MockForward) -> HostRunner:
    return HostRunner(forward, Sampler(NumpyRows()), SIZES)


def run_once(plan: StepPlan) -> tuple[SequenceOutcome, ...]:
    """The outcomes of a step on a new model."""
    return run_step(make_runner(MockForward(vocab=VOCAB)), plan).sequences


def step_of(number: int = 0, blocks: list[int] = BLOCKS, **changes: Any) -> SequenceStep:
    """A prompt that starts in ``blocks``; it samples a token unless ``changes`` say otherwise."""
    tables = (TableChange(0, 0, array("i", blocks)),)
    return replace(SequenceStep(number, array("i", TOKENS), 0, tables, samples=1, begin=START), **changes)


def own_blocks(number: int) -> list[int]:
    return [4 * number + block for block in range(4)]


def test_the_overlap_callback_and_masks_run_while_rows_compute() -> None:
    forward = RecordingForward()
    mask = RecordingMask(forward.events, range(5, 9))
    plan = StepPlan((step_of(),), (BlockMove(MoveKind.COPY, 0, 1, 2),), constraints={0: mask})
    outcome = run_step(make_runner(forward), plan, lambda: forward.events.append("meanwhile"))
    assert forward.events == ["move", "begin", "meanwhile", "mask", "done"]
    assert outcome.sequences[0].tokens[0] in range(5, 9)
    assert outcome.seconds > 0
    assert outcome.moves_s > 0


class OtherMask(RecordingMask):
    """A mask that another thread makes; it records who waits for it."""

    def __init__(self, events: list[str], name: str, *, comes: bool) -> None:
        super().__init__(events, range(5, 9))
        self._name, self._comes = name, comes

    def prepare(self, _drafts: Sequence[int] = ()) -> None:
        self._events.append(f"prepare {self._name}")

    def wait(self) -> bool:
        self._events.append(f"wait {self._name}")
        return self._comes


def test_steps_wait_for_masks_while_rows_compute_until_one_is_late() -> None:
    forward = RecordingForward()
    masks = [OtherMask(forward.events, name, comes=name != "b") for name in "abc"]
    steps = tuple(step_of(number, own_blocks(number)) for number in range(3))
    outcome = run_step(make_runner(forward), StepPlan(steps, constraints=dict(enumerate(masks))))
    during = forward.events[1 : forward.events.index("done")]
    assert during == ["prepare a", "prepare b", "prepare c", "wait a", "wait b"]
    assert [sequence.deferred for sequence in outcome.sequences] == [False, True, False]


def test_a_plan_of_moves_alone() -> None:
    forward = RecordingForward()
    outcome = run_step(make_runner(forward), StepPlan((), (BlockMove(MoveKind.COPY, 0, 1, 2),)), forward.events.clear)
    assert outcome.sequences == ()
    assert forward.events == []
    assert forward.batches == 0


def test_an_error_of_the_overlap_callback_is_raised_and_the_step_can_run_again() -> None:
    runner, plan = make_runner(MockForward(vocab=VOCAB)), StepPlan((step_of(),))

    def fail() -> None:
        raise ValueError("no text")

    with pytest.raises(ValueError, match="no text"):
        run_step(runner, plan, fail)
    assert run_step(runner, plan).sequences == run_once(plan)


class LateMask(FixedMask):
    """Is not known in the first step."""

    ready = False

    def masks(self) -> list[memoryview]:
        assert self.ready, "nobody waits for a mask that is not there"
        return super().masks()

    def prepare(self, drafts: Sequence[int] = ()) -> None:
        """Somebody else makes it."""


def test_a_step_does_not_wait_for_a_late_mask() -> None:
    late, done = LateMask(VOCAB, range(5, 9)), FixedMask(VOCAB, range(5, 9))
    done.finished = True
    steps = tuple(step_of(number, own_blocks(number)) for number in range(3))
    runner = make_runner(MockForward(vocab=VOCAB))
    first, second, third = run_step(runner, StepPlan(steps, constraints={0: late, 2: done})).sequences
    assert (first.tokens, first.deferred, first.error) == ((), True, None)
    assert second.tokens
    assert (third.tokens, third.complete) == ((), True)
    late.ready = True
    (again,) = run_step(runner, StepPlan(steps[:1], constraints={0: late})).sequences
    assert again.tokens[0] in range(5, 9)
    assert not again.deferred


def test_a_constraint_that_fails_ends_only_its_sequence() -> None:
    nothing = FixedMask(VOCAB, [])
    constraints: dict[int, TokenConstraint] = {0: FailingMask(VOCAB, []), 2: nothing, 3: nothing}
    steps = tuple(
        step_of(number, own_blocks(number), tokens=array("i", TOKENS[: 4 * number + 4]), candidates=4 * (number == 3))
        for number in range(4)
    )
    first, second, third, fourth = run_once(StepPlan(steps, constraints=constraints))
    assert isinstance(first.error, ParameterError)
    assert second == run_once(StepPlan(steps[1:2]))[0]
    assert isinstance(third.error, ModelError)
    assert isinstance(fourth.error, ModelError)
    assert first.tokens == third.tokens == ()
    assert fourth.candidates == ()


def test_candidates_replace_the_sampled_token() -> None:
    scored = step_of(0, begin=SequenceStart(SamplingSpec(replace(GREEDY, logprobs=7), 0, 18)))
    beams = step_of(1, candidates=7)
    token, candidates = run_once(StepPlan((scored, beams)))
    assert candidates.tokens == ()
    assert candidates.candidates == token.logprobs[0].top
    assert candidates.candidates[0].token == token.tokens[0]


def hidden_of(pooling: Pooling, cuts: list[int]) -> list[array[float]]:
    """The outcomes of one text, cut into steps before the tokens at ``cuts``, beside another sequence."""
    runner, hidden = make_runner(MockForward(vocab=VOCAB)), []
    for start, end in zip([0, *cuts], [*cuts, len(TOKENS)], strict=True):
        step = step_of(3, tokens=array("i", TOKENS[start:end]), start=start, pooling=pooling, samples=0)
        other = step_of(9, [9], tokens=array("i", [7]))
        first, second = run_step(runner, StepPlan((other, step))).sequences
        assert first.hidden is None
        assert second.hidden is not None
        hidden.append(second.hidden)
    return hidden


def test_the_mean_does_not_depend_on_the_cuts() -> None:
    (whole,) = hidden_of("mean", [])
    for cuts in ([1], [17], [5, 6, 11], list(range(1, 18))):
        parts = np.array(hidden_of("mean", cuts))
        assert parts.sum(axis=0).tolist() == whole.tolist()
        assert parts[::-1].sum(axis=0).tolist() == whole.tolist()
    rows = np.array([hidden_of("last", [end] * (end < len(TOKENS)))[0] for end in range(1, len(TOKENS) + 1)])
    assert rows.shape == (len(TOKENS), HIDDEN)
    np.testing.assert_allclose(np.array(whole) / HIDDEN_SCALE / len(TOKENS), rows.mean(axis=0), atol=2 / HIDDEN_SCALE)


def test_last_is_the_last_row_of_each_step() -> None:
    (whole,) = hidden_of("last", [])
    assert hidden_of("last", [4, 9])[-1] == whole


def test_hidden_states_that_are_nan_end_only_their_sequence() -> None:
    class Broken(MockForward):
        def run(self, batch: Batch) -> Any:
            logits = super().run(batch)
            self.hidden = np.full_like(self.hidden, np.nan)
            return logits

    (outcome,) = run_step(make_runner(Broken(vocab=VOCAB)), StepPlan((step_of(pooling="mean", samples=0),))).sequences
    assert isinstance(outcome.error, ModelError)
    assert outcome.hidden is None


PENALISED = SamplingParams(seed=5, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.4, logprobs=2)


@pytest.mark.parametrize("params", [GREEDY, PENALISED], ids=["greedy", "penalised"])
@pytest.mark.parametrize("wrong", [0, 2, 3])
def test_drafts_give_the_tokens_of_single_steps(params: SamplingParams, wrong: int) -> None:
    """Three drafts of which the one at ``wrong`` is another token: those before it are accepted, with one more."""
    start = SequenceStart(SamplingSpec(params, 5, len(TOKENS)))
    runner, found = make_runner(MockForward(vocab=VOCAB)), []
    for number in range(5):
        tokens = array("i", [SAMPLED] if number else TOKENS)
        step = step_of(tokens=tokens, start=number and len(TOKENS) + number - 1, begin=None if number else start)
        (outcome,) = run_step(runner, StepPlan((replace(step, changes=step.changes if not number else ()),))).sequences
        found.append((outcome.tokens[0], outcome.logprobs))
    single = [token for token, _ in found]
    drafts = [token + (index == wrong) for index, token in enumerate(single[1:4])]
    runner = make_runner(MockForward(vocab=VOCAB))
    run_step(runner, StepPlan((step_of(begin=start),)))
    step = SequenceStep(0, array("i", [SAMPLED, *drafts]), len(TOKENS), samples=4, drafts=3)
    (outcome,) = run_step(runner, StepPlan((step,))).sequences
    assert list(outcome.tokens) == single[1 : wrong + 2]
    assert outcome.logprobs == tuple(one for _, logprobs in found[1 : wrong + 2] for one in logprobs)
    after = SequenceStep(0, array("i", [SAMPLED]), len(TOKENS) + len(outcome.tokens), samples=1)
    (next_one,) = run_step(runner, StepPlan((after,))).sequences
    assert next_one.tokens == (single[wrong + 2],) if wrong < 3 else next_one.tokens
