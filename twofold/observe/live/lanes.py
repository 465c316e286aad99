"""The lanes of a model as its watchers get them, with what each of them may see.

An event is [number, kind, milliseconds, …]; ``core.lanes`` has the kinds. After these three:

    +   {tier, prompt, id, tenant}          p   computed tokens        f   nothing
    a   slot, cached, loaded tokens         o   tokens so far          s   drafted, accepted so far
    x   cause, swapped blocks               r   slot, computed tokens  h l u   nothing, or the tokens to load
    .   finish reason, tokens

A watcher that sees only its own tenant gets others' lanes without ids and sizes: + with the tier, slots, causes and
reasons, and no p, o and s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from twofold.core.lanes import LaneEvent, LaneKind
from twofold.observe.served import ServedRequest

LaneRow: TypeAlias = list[Any]
SO_FAR: Final = frozenset({LaneKind.COMPUTE, LaneKind.TOKENS, LaneKind.DRAFTS})
"""Kinds of which a later event replaces an earlier one."""
SIZED: Final = frozenset({LaneKind.ADMIT, LaneKind.RETURN, LaneKind.PREEMPT, LaneKind.END})
"""Kinds whose first value is no size."""
MAX_KEPT: Final = 128
"""Maximum events of a lane that are kept; the oldest ones after its arrival are dropped."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Whose lanes a watcher sees: its ``tenant``'s, or all (None). ``salt`` is that of its cached prefixes."""

    tenant: str | None
    salt: str = ""


@dataclass(slots=True)
class SequenceLane:
    """A sequence: its events so far, with the last of each kind in SO_FAR, and when it ended."""

    tenant: str
    rows: list[LaneRow] = field(default_factory=list)
    so_far: dict[LaneKind, LaneRow] = field(default_factory=dict)
    ended: float | None = None

    def add(self, kind: LaneKind, row: LaneRow) -> None:
        if kind in SO_FAR:
            self.so_far[kind] = row
            return
        self.rows.append(row)
        if len(self.rows) > MAX_KEPT:
            del self.rows[1]

    def all(self) -> list[LaneRow]:
        """Its events in order."""
        return sorted([*self.so_far.values(), *self.rows], key=lambda row: float(row[2]))


def row_of(event: LaneEvent, zero: float, served: ServedRequest | None) -> LaneRow:
    """An event as a row; ``served`` is the record of its request."""
    number, kind, at, values, text = event
    row: LaneRow = [number, str(kind), round((at - zero) * 1e3, 2)]
    if kind is LaneKind.ARRIVE:
        known = {} if served is None else {"id": served.request_id, "tenant": served.tenant, "tier": served.tier}
        return [*row, {"prompt": values[0], **known}]
    return [*row, text, *values] if kind in (LaneKind.PREEMPT, LaneKind.END) else [*row, *values]


def shown(row: LaneRow, lane: SequenceLane, viewer: Viewer) -> LaneRow | None:
    """What a viewer sees of an event; None if nothing."""
    if viewer.tenant is None:
        return row
    kind = LaneKind(row[1])
    if lane.tenant == viewer.tenant:
        if kind is LaneKind.ARRIVE:
            return [*row[:3], {name: value for name, value in row[3].items() if name != "tenant"}]
        return row
    if kind in SO_FAR:
        return None
    if kind is LaneKind.ARRIVE:
        return [*row[:3], {"tier": row[3].get("tier", "")}]
    return row[:4] if kind in SIZED else row[:3]


def visible(pairs: Iterable[tuple[SequenceLane, LaneRow]], viewer: Viewer) -> Iterator[LaneRow]:
    """What a viewer sees of these events, in order; of SO_FAR only the last one of each lane."""
    found = list(pairs)
    last = {(row[0], row[1]): index for index, (_, row) in enumerate(found)}
    for index, (lane, row) in enumerate(found):
        if row[1] in SO_FAR and last[row[0], row[1]] != index:
            continue
        seen = shown(row, lane, viewer)
        if seen is not None:
            yield seen
