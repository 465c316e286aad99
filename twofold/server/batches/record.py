"""A batch as it is kept and told: what was asked for, how far it is, and what came of it.

Laws
- A batch moves along TRANSITIONS and no other way; each move has its time.
- ``output_file_id`` and ``error_file_id`` are told once the batch ended; before, the files do not exist.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, Final, Literal, Self, TypeAlias

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
"""From validating straight to finalizing goes a batch whose time was up before its first line."""
MOMENTS: Final = (
    "in_progress", "finalizing", "completed", "failed", "expired", "cancelling", "cancelled"
)  # fmt: skip
"""The moves whose times are told, as in_progress_at."""


@dataclass(frozen=True, slots=True)
class BatchTally:
    """Lines answered well and with an error, and the tokens of the answers as their bodies tell them."""

    completed: int = 0
    failed: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0

    def plus(self, line: Mapping[str, Any]) -> Self:
        """With one more line of the journal."""
        if line["error"] is not None:
            return replace(self, failed=self.failed + 1)
        usage = line["response"]["body"].get("usage") or {}
        read, beside = _cached_parts(usage)
        return replace(
            self,
            completed=self.completed + 1,
            input_tokens=self.input_tokens + _first(usage, "prompt_tokens", "input_tokens") + beside,
            cached_tokens=self.cached_tokens + read,
            output_tokens=self.output_tokens + _first(usage, "completion_tokens", "output_tokens"),
            reasoning_tokens=self.reasoning_tokens
            + _detail(usage, "reasoning_tokens", "completion_tokens", "output_tokens"),
        )

    def usage(self) -> dict[str, Any]:
        """OpenAI's usage of a batch."""
        return {
            "input_tokens": self.input_tokens,
            "input_tokens_details": {"cached_tokens": self.cached_tokens},
            "output_tokens": self.output_tokens,
            "output_tokens_details": {"reasoning_tokens": self.reasoning_tokens},
            "total_tokens": self.input_tokens + self.output_tokens,
        }


NOTHING: Final = BatchTally()


def _first(usage: Mapping[str, Any], *names: str) -> int:
    """The first number that is there, under the words of the one or the other endpoint."""
    return next((usage[name] for name in names if isinstance(usage.get(name), int)), 0)


def _detail(usage: Mapping[str, Any], name: str, *groups: str) -> int:
    details = (usage.get(f"{group}_details") for group in groups)
    return next((_first(found, name) for found in details if isinstance(found, dict)), 0)


def _cached_parts(usage: Mapping[str, Any]) -> tuple[int, int]:
    """Tokens read from the cache, and how many Anthropic's input_tokens leave out."""
    if "cache_read_input_tokens" in usage:
        read = _first(usage, "cache_read_input_tokens")
        return read, read + _first(usage, "cache_creation_input_tokens")
    return _detail(usage, "cached_tokens", "prompt_tokens", "input_tokens"), 0


@dataclass(frozen=True, slots=True)
class LineError:
    """Why a batch failed. ``line`` of the input counts from 1; None where it was not for one."""

    code: str
    message: str
    param: str | None = None
    line: int | None = None


@dataclass(frozen=True, slots=True)
class BatchRecord:
    """A batch. Times are in seconds since 1970.

    key            the id of the API key with which it was made, "" without keys
    expires_at     when what is unfinished is given up
    lifetime_s     how long its output files live; None for ever
    lines          of the input; 0 until they were counted
    model          the one that all lines ask for; None where they ask for several, or for none
    tally          what was answered, as of the last move
    output_file_id, error_file_id   reserved when it is made
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
        """The batch in another state; ``now`` is when."""
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
            "usage": self.tally.usage(),
            "metadata": None if self.metadata is None else dict(self.metadata),
        }

    def as_data(self) -> dict[str, Any]:
        """Plain data, for ``from_data``."""
        return asdict(self)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        known = {one.name for one in fields(cls)}
        values = {name: value for name, value in data.items() if name in known}
        errors: Sequence[Mapping[str, Any]] = values.pop("errors")
        tally: Mapping[str, int] = values.pop("tally")
        return cls(**values, tally=BatchTally(**tally), errors=tuple(LineError(**one) for one in errors))
