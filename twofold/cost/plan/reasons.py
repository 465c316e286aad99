"""Why a plan is as it is, in sentences: what bounds its steps, what sets its number, what is in its memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from twofold.cost.count.step import Span
from twofold.cost.plan.evaluate import Candidate
from twofold.cost.plan.plan import Count, Plan
from twofold.cost.predict.demand import Bound

BOUNDS: Final[dict[Bound, str]] = {
    "weights": "reading weights",
    "arithmetic": "arithmetic",
    "kv": "reading keys and values",
    "links": "messages between devices",
    "overhead": "what steps cost beside their work",
}


def reasons(candidate: Candidate, plan: Plan) -> Iterator[str]:
    """In the order of what matters."""
    yield _number(candidate, plan)
    yield _decode(candidate, plan)
    if guessing := candidate.configuration.speculation:
        yield (
            f"{guessing.drafts} guesses a step give {guessing.tokens:.2f} tokens if {guessing.acceptance:.2g} of them "
            "are right."
        )
    yield _memory(candidate, plan)
    yield from _quality(candidate)


def _number(candidate: Candidate, plan: Plan) -> str:
    """Which limit one replica fewer would miss."""
    count = plan.count
    if not count.both:
        return f"{count.prefill} for prompts, busy {plan.prompt_share:.0%} of the time, and {count.decode} for answers."
    if count.both == 1:
        return f"One replica takes it; prompts take {plan.prompt_share:.0%} of its time."
    fewer = candidate.plan(Count(both=count.both - 1))
    if fewer is None:
        return f"{count.both} replicas, because {count.both - 1} could not take the load."
    for name, limit in candidate.slo.limits():
        if (value := fewer.estimates()[name].at) > limit:
            return f"{count.both} replicas, because with {count.both - 1} {name} would be {value * 1e3:,.0f} ms."
    return f"{count.both} replicas take it."


def _decode(candidate: Candidate, plan: Plan) -> str:
    batch = max(1, round(plan.batch))
    model = candidate.model
    parts = model.steps.demand([(batch, Span(1, candidate.traffic.context - 1))]).parts(model.constants)
    share = getattr(parts, parts.bound) / parts.seconds
    return f"A step of {batch} sequences is bound by {BOUNDS[parts.bound]}: {share:.0%} of it."


def _memory(candidate: Candidate, plan: Plan) -> str:
    return (
        f"{plan.room.weights / 1e9:,.1f} GB of weights on each device leave {plan.room.kv / 1e9:,.1f} GB: room for "
        f"{plan.sequences:,} sequences of {candidate.traffic.context:,} tokens."
    )


def _quality(candidate: Candidate) -> Iterator[str]:
    c = candidate.configuration
    if not c.stored:
        yield f"Weights as {c.weights} can cost quality: hold answers against those of the model as it comes."
    if c.how.kv.bits < 16:
        yield f"Keys and values of {c.how.kv.bits} bits can cost quality in long contexts."
