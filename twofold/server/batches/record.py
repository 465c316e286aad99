"""A batch as the server stores and reports it.

Invariants
- The status changes only along TRANSITIONS; the time of each change is stored.
- ``output_file_id`` and ``error_file_id`` are reported once the batch has ended; before, the files do not exist.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Literal, Self, TypeAlias

from twofold.api.batch.journal import NOTHING, BatchTally

Status: TypeAlias = Literal[
    "validating", "failed", "in_progress", "finalizing", "completed", "expired", "cancelling", "cancelled"
]

TRANSITIONS: Final[Mapping[Status, frozenset[Status]]] = {
    "validating": frozenset({"failed", "in_progress", "finalizing", "cancelling"}),
    "in_progress": frozenset({"failed", "finalizing", "cancelling"}),
    "finalizing": frozenset({"failed", "completed", "expired"}),
    "cancelling": frozenset({"failed", "cancelled"}),
    "failed": frozenset(),
    "completed": frozenset(),
    "expired": frozenset(),
    "cancelled": frozenset(),
}
"""A batch that expires before its first line goes from validating to finalizing."""
MOMENTS: Final = (
    "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
)  # fmt: skip
"""The changes of status whose times are reported, as in_progress_at."""


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a batch failed. ``line`` of the input counts from 1; None for the whole input."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch. Times are in seconds since 1970.

    key            id of the API key that created it, "" without keys
    expires_at     when unfinished lines are given up
    lifetime_s     of its output files; None: they do not expire
    lines          of the input; 0 until they are counted
    model          of all lines; None where they differ, or name none
    tally          of finished lines, as of the last change of status
    output_file_id, error_file_id   reserved at creation
    """

    id: str
    tenant: str
    key: str
    endpoint: str
    input_file_id: str
    created_at: int
    expires_at: int
    output_file_id: str
    error_file_id: str
    metadata: Mapping[str, str] | None = None
    lifetime_s: int | None = None
    status: Status = "validating"
    lines: int = 0
    model: str | None = None
    tally: BatchTally = NOTHING
    errors: tuple[LineError, ...] = ()
    moments: Mapping[str, int] = field(default_factory=dict)

    @property
    def ended(self) -> bool:
        return not TRANSITIONS[self.status]

    def moved(self, status: Status, now: float, **changes: Any) -> Self:
        """The batch with another status, since ``now``."""
        assert status in TRANSITIONS[self.status], f"a batch does not go from {self.status} to {status}"
        return replace(self, status=status, moments={**self.moments, status: int(now)}, **changes)

    def as_object(self) -> dict[str, Any]:
        """OpenAI's batch object."""
        written = self.ended and self.status != "failed"
        return {
            "id": self.id,
            "object": "batch",
            "endpoint": self.endpoint,
            "model": self.model,
            "errors": {"object": "list", "data": [asdict(one) for one in self.errors]} if self.errors else None,
            "input_file_id": self.input_file_id,
            "completion_window": "24h",
            "status": self.status,
            "output_file_id": self.output_file_id if written and self.tally.completed else None,
            "error_file_id": self.error_file_id if written and self.tally.completed < self.lines else None,
            "created_at": self.created_at,
            "expires_at": self.expires_at,
            **{f"{name}_at": self.moments.get(name) for name in MOMENTS},
            "request_counts": {"total": self.lines, "completed": self.tally.completed, "failed": self.tally.failed},
            "usage": _usage(self.tally),
            "metadata": None if self.metadata is None else dict(self.metadata),
        }


def _usage(tally: BatchTally) -> dict[str, Any]:
    """OpenAI's usage of a batch."""
    return {
        "input_tokens": tally.input_tokens,
        "input_tokens_details": {"cached_tokens": tally.cached_tokens},
        "output_tokens": tally.output_tokens,
        "output_tokens_details": {"reasoning_tokens": tally.reasoning_tokens},
        "total_tokens": tally.input_tokens + tally.output_tokens,
    }
