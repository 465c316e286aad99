"""Bodies of the planner's endpoints: its questions, within the limits of a server. Models and machines are names of the
tables, or those of this server, and never paths."""

from __future__ import annotations

from typing import Annotated, Any, Final, Self, TypeAlias

from msgspec import Meta

from twofold.api.fields import FieldError
from twofold.planner.explain.question import CurveQuestion, ExplainQuestion, ScenarioFields
from twofold.planner.plan.plan import CHUNKS, DRAFTS, KV, TP, WEIGHTS
from twofold.planner.plan.question import PlanQuestion
from twofold.planner.price.question import PriceQuestion

MAX_CHUNKS: Final = 512
"""Maximum steps of a prompt: each is predicted, for each lever."""
MAX_POINTS: Final = 512
MAX_CONFIGURATIONS: Final = 600
Values: TypeAlias = dict[str, Any]


def _check_chunks(scenario: ScenarioFields) -> None:
    """Raises FieldError for chunks that cut the prompt into too many steps."""
    if scenario.chunk is not None and (scenario.input_tokens or 0) > MAX_CHUNKS * scenario.chunk:
        raise FieldError(
            f"Chunks of {scenario.chunk:,} tokens cut the prompt into more than {MAX_CHUNKS} steps.",
            param="chunk",
            hint=f"Use chunks of at least {-(-(scenario.input_tokens or 0) // MAX_CHUNKS):,} tokens.",
        )


class ExplainRequest(ExplainQuestion, kw_only=True):
    """A scenario, or a request of this server with a scenario of its sizes; unset sizes are those of the request."""

    request: Annotated[str, Meta(min_length=1, max_length=128, description="The id of a recent request.")] | None = None
    prompt: Annotated[int, Meta(ge=0, le=63, description="Which prompt of the request.")] = 0

    @classmethod
    def read(cls, value: object) -> Self:
        """Raises FieldError."""
        request = super().read(value)
        _check_chunks(request)
        return request


class CurveRequest(CurveQuestion, kw_only=True):
    """Machines, and batches on each."""

    @classmethod
    def read(cls, value: object) -> Self:
        """Raises FieldError."""
        request = super().read(value)
        _check_chunks(request)
        points = len(request.machines) * len(request.batches or ())
        if points > MAX_POINTS:
            raise FieldError(
                f"{points} points are too many: at most {MAX_POINTS} are predicted at once.",
                param="batches",
                hint="Name fewer machines or batches.",
            )
        return request


class PriceRequest(PriceQuestion, kw_only=True):
    """A workload at an API: equal requests, the first tokens of which are cached."""


class PlanRequest(PlanQuestion, kw_only=True):
    """Traffic, objectives, and alternatives of which every combination is tried."""

    @classmethod
    def read(cls, value: object) -> Self:
        """Raises FieldError."""
        request = super().read(value)
        drafts = len(request.drafts or DRAFTS) if request.text is not None or request.acceptance is not None else 0
        count = (len(request.chunks or CHUNKS) + request.split) * (1 + drafts)
        choices = (request.tp or TP, request.weights or WEIGHTS, request.kv or KV)
        for each in (request.models, request.hardware, *choices):
            count *= len(each)
        if count > MAX_CONFIGURATIONS:
            raise FieldError(
                f"{count:,} configurations are too many: at most {MAX_CONFIGURATIONS} are tried.",
                param="models",
                hint="Name fewer models, machines, formats or chunks.",
            )
        return request
