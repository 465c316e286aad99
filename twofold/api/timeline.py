"""Tokens by time in replies: in chunks of a stream as they are made, and whole in the record of a request.

Times are milliseconds since the request's arrival at its engine, which is the zero of queue, prefill and decode, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType, field

from twofold.api.body import NonNegativeFloat, NonNegativeInt, ReplyObject
from twofold.core.forecast import RequestProgress
from twofold.core.record import WaitReason
from twofold.core.report import RequestMetrics
from twofold.core.timeline import TokensMade

Origins: TypeAlias = Annotated[
    str,
    Meta(
        pattern="^[dsg]*$",
        description="One letter a token: d drawn, s drafted and accepted, g the only one that its grammar allowed.",
    ),
]
WaitWord: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": [each.name.lower() for each in WaitReason]})]
Milliseconds: TypeAlias = Sequence[NonNegativeFloat]
Counts: TypeAlias = Sequence[NonNegativeInt]


class ChunkTokens(ReplyObject, kw_only=True):
    """When, in which step and how the tokens of a chunk were made."""

    t_ms: Milliseconds
    step: NonNegativeInt
    origins: Origins = field(name="from")

    @classmethod
    def of(cls, made: TokensMade) -> ChunkTokens:
        return cls(t_ms=[milliseconds(made.at_s)] * len(made.origins), step=made.step, origins=made.origins)


class PromptProgress(ReplyObject, kw_only=True):
    """How far a request is before its first token: waiting requests that go first, or tokens of its prompt that came
    from a cache, that are done, and in all, with the predicted time of its first token."""

    state: Literal["queued", "prefill"]
    ahead: NonNegativeInt | UnsetType = UNSET
    cached: NonNegativeInt | UnsetType = UNSET
    done: NonNegativeInt | UnsetType = UNSET
    of: NonNegativeInt | UnsetType = UNSET
    first_token_ms: NonNegativeFloat | UnsetType | None = UNSET

    @classmethod
    def of_request(cls, progress: RequestProgress) -> PromptProgress:
        if progress.ahead is not None:
            return cls(state="queued", ahead=progress.ahead)
        first_s = progress.first_token_s
        return cls(
            state="prefill",
            cached=progress.cached,
            done=progress.done,
            of=progress.of,
            first_token_ms=None if first_s is None else milliseconds(first_s),
        )


class ChunkProgress(ReplyObject, kw_only=True):
    """How far a request is, and since when it is under way."""

    at_ms: NonNegativeFloat
    progress: PromptProgress


class TimelineSteps(ReplyObject, kw_only=True):
    """The steps in which the request had rows, as columns: the step's number, when it ended, how long it took, rows of
    all requests by phase, this request's own, and how long those alone would have taken, by the step-time model."""

    n: Counts
    end_ms: Milliseconds
    ms: Milliseconds
    prompt_rows: Counts
    answer_rows: Counts
    own_prompt_rows: Counts
    own_answer_rows: Counts
    alone_ms: Sequence[NonNegativeFloat | None]


class TimelinePause(ReplyObject, kw_only=True):
    """A time in which the request did not advance."""

    cause: WaitWord
    start_ms: float
    end_ms: NonNegativeFloat


class Timeline(ReplyObject, kw_only=True):
    """Tokens, steps and pauses of a request; ``arrival_s`` is on its engine's clock, that of a stream's ``zero``."""

    zero: Literal["arrival"] = "arrival"
    arrival_s: NonNegativeFloat
    token_ms: Sequence[Milliseconds]
    step: Sequence[Counts]
    origins: Sequence[Origins] = field(name="from")
    steps: TimelineSteps
    pauses: list[TimelinePause]

    @classmethod
    def of(cls, report: RequestMetrics) -> Timeline | UnsetType:
        """UNSET if the request did not ask for it."""
        made = report.timeline
        if made is None:
            return UNSET
        steps = made.steps
        return cls(
            arrival_s=report.arrival,
            token_ms=[[milliseconds(at - report.arrival) for at in times] for times in report.token_times],
            step=made.token_steps,
            origins=made.origins,
            steps=TimelineSteps(
                n=steps.number,
                end_ms=[*map(milliseconds, steps.ended_s)],
                ms=[*map(milliseconds, steps.seconds)],
                prompt_rows=steps.prompt_rows,
                answer_rows=steps.answer_rows,
                own_prompt_rows=steps.own_prompt_rows,
                own_answer_rows=steps.own_answer_rows,
                alone_ms=[None if alone is None else milliseconds(alone) for alone in steps.alone_s],
            ),
            pauses=[
                TimelinePause(
                    cause=pause.cause.name.lower(),
                    start_ms=milliseconds(pause.start - report.arrival),
                    end_ms=milliseconds(pause.end - report.arrival),
                )
                for pause in report.record.pauses
            ],
        )


def milliseconds(seconds: float) -> float:
    """To a microsecond."""
    return round(seconds * 1000, 3)
