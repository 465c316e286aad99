"""One step on a model runner, and the work of the caller that overlaps it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from time import perf_counter

from twofold.backends.base import ModelRunner
from twofold.core.errors import TwofoldError
from twofold.core.step import SequenceOutcome, StepMasks, StepOutcome, StepPlan, TokenConstraint


def run_step(runner: ModelRunner, plan: StepPlan, overlap: Callable[[], None] | None = None) -> StepOutcome:
    """Computes a step. While its rows are computed, ``overlap`` is called and masks are prepared. An exception of
    ``overlap`` is raised once the rows are computed.
    """
    constraints = plan.constraints
    overlaps = overlap is not None or bool(constraints)
    handle = runner.execute(plan, overlap=overlaps)
    began = perf_counter()
    try:
        if overlap is not None:
            overlap()
        for constraint in constraints.values():
            constraint.prepare()
        all(constraint.wait() for constraint in constraints.values())  # with this thread's core, until one is late
        overlap_s = perf_counter() - began if overlaps else 0.0
    finally:
        handle.wait()
    masks, settled = _ask(constraints)
    outcome = handle.result(masks)
    sequences = outcome.sequences
    if settled:
        sequences = tuple(_settled(sequence, settled) for sequence in sequences)
    return replace(outcome, sequences=sequences, overlap_s=overlap_s)


def _ask(constraints: Mapping[int, TokenConstraint]) -> tuple[StepMasks, dict[int, SequenceOutcome]]:
    """The masks of a step, and the outcomes of sequences that sample nothing: nothing can follow, what may follow is
    not known yet, or the constraint failed."""
    allowed, settled = {}, {}
    for number, constraint in constraints.items():
        try:
            if not constraint.wait():
                settled[number] = SequenceOutcome(number, deferred=True)
            elif constraint.finished:
                settled[number] = SequenceOutcome(number, complete=True)
            elif (mask := constraint.mask()) is not None:
                allowed[number] = bytes(mask)
        except TwofoldError as error:
            settled[number] = SequenceOutcome(number, error=error)
    return StepMasks(allowed, frozenset(settled)), settled


def _settled(computed: SequenceOutcome, settled: Mapping[int, SequenceOutcome]) -> SequenceOutcome:
    mine = settled.get(computed.sequence_id)
    return computed if mine is None else replace(mine, prompt_logprobs=computed.prompt_logprobs)
