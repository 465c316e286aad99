"""Why a plan is as it is, in sentences: what bounds its steps, what sets its number, what is in its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twofold.planner.count.step import SequenceRows
from twofold.planner.plan.evaluate import Candidate
from twofold.planner.plan.plan import CapacityPlan, Count
from twofold.planner.predict.demand import Bound

BOUNDS: Final[dict[Bound, str]] = {
    "weights": "reading weights",
    "arithmetic": "arithmetic",
    "kv": "reading keys and values",
    "links": "communication",
    "overhead": "fixed overhead",
}


def reasons(candidate: Candidate, plan: CapacityPlan) -> Iterator[str]:
    """In the order of what matters."""
    yield _number(candidate, plan)
    yield _decode(candidate, plan)
    if guessing := candidate.configuration.speculation:
        yield (
            f"{guessing.drafts} draft tokens per step yield {guessing.tokens:.2f} tokens at an acceptance rate of "
            f"{guessing.acceptance:.2g}."
        )
    yield _memory(candidate, plan)
    yield from _quality(candidate)


def _number(candidate: Candidate, plan: CapacityPlan) -> str:
    """Which limit one replica fewer would miss."""
    count = plan.count
    if not count.both:
        return f"{count.prefill} for prefill, {plan.prompt_share:.0%} utilized, and {count.decode} for decode."
    if count.both == 1:
        return f"One replica is enough; prefill takes {plan.prompt_share:.0%} of its time."
    fewer = candidate.plan(Count(both=count.both - 1))
    if fewer is None:
        return f"{count.both} replicas, because {count.both - 1} cannot sustain the load."
    for name, limit in candidate.slo.limits():
        if (value := fewer.estimates()[name].at) > limit:
            return (
                f"{count.both} replicas, because with {count.both - 1} {name.upper()} would be {value * 1e3:,.0f} ms."
            )
    return f"{count.both} replicas are enough."


def _decode(candidate: Candidate, plan: CapacityPlan) -> str:
    batch = max(1, round(plan.batch))
    model = candidate.model
    parts = model.steps.demand([(batch, SequenceRows(1, candidate.traffic.context - 1))]).parts(model.constants)
    share = getattr(parts, parts.bound) / parts.seconds
    return f"A decode step of {batch} sequences is dominated by {BOUNDS[parts.bound]} ({share:.0%})."


def _memory(candidate: Candidate, plan: CapacityPlan) -> str:
    return (
        f"{plan.room.weights / 1e9:,.1f} GB of weights on each device leave {plan.room.kv / 1e9:,.1f} GB: room for "
        f"{plan.sequences:,} sequences of {candidate.traffic.context:,} tokens."
    )


def _quality(candidate: Candidate) -> Iterator[str]:
    c = candidate.configuration
    if not c.stored:
        yield f"{c.weights} weights may reduce quality: compare output quality with the unquantized model."
    if c.how.kv.bits < 16:
        yield f"{c.how.kv.bits}-bit KV may reduce quality in long contexts."
