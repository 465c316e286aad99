"""Plans as jobs, as the API sends them. The documents of answers are those of the planner."""

from __future__ import annotations

from typing import Literal, TypeAlias

from twofold.api.body import NonNegativeFloat, ReplyObject
from twofold.planner.plan.document import PlanReply

PlanStatus: TypeAlias = Literal["queued", "running", "done", "failed"]


class PlanError(ReplyObject):
    """Why a plan failed."""

    message: str
    hint: str | None


class PlanJobReply(ReplyObject, kw_only=True):
    """A plan as a job."""

    id: str
    object: Literal["twofold.plan"] = "twofold.plan"
    status: PlanStatus
    created_at: NonNegativeFloat
    error: PlanError | None
    result: PlanReply | None


class PlanDeleted(ReplyObject):
    """A deleted plan."""

    id: str
    object: Literal["twofold.plan"] = "twofold.plan"
    deleted: bool = True
