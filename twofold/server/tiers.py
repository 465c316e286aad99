"""Service tiers: how urgent a request is, how fast its tokens shall come, and how long it may wait.

    tier       priority   TPOT target          waits at most
    priority       -100   50 ms                       30 s
    default           0   that of the server          60 s
    flex            100   500 ms                     600 s
    batch           200   10 s                   for ever      files of requests have it; nobody asks for it

A settings file changes any of it, as ``[flex]`` with ``priority``, ``tpot_target_s`` and ``queue_limit_s``. Requests
may order themselves inside their tier: their own priority, from 0 (first) to 49, is added to the tier's. So nobody gets
into a more urgent tier by a number, and waiting makes all more urgent in time, as the scheduler has it. A key
lists the tiers that its caller may ask for; the price sheet has their prices (``observe/accounting/prices.py``). A
request that names no tier gets the default one if its key has it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from twofold.api.base import AskedTier, ServiceTier
from twofold.core.errors import ForbiddenError, ParameterError
from twofold.core.request import MAX_PRIORITY, RequestOptions
from twofold.host.settings import Table

MAX_OWN_PRIORITY: Final = 49
MAX_SECONDS: Final = "86400"
PLACES: Final = 6
BEST_FIRST: Final[tuple[ServiceTier, ...]] = ("priority", "default", "flex", "batch")


@dataclass(frozen=True, slots=True)
class Tier:
    """A class of service. ``tpot_target_s`` None is the server's target, ``queue_limit_s`` None waits for ever."""

    name: ServiceTier
    priority: int
    tpot_target_s: float | None
    queue_limit_s: float | None

    def options(self, asked: RequestOptions) -> RequestOptions:
        """What a caller asked for, as this tier treats it: limits that the caller set hold where they are tighter.

        Raises ParameterError for a priority outside the tier.
        """
        if not 0 <= asked.priority <= MAX_OWN_PRIORITY:
            raise ParameterError(
                f"priority must be from 0 to {MAX_OWN_PRIORITY} within a service tier, not {asked.priority}.",
                param="priority",
                hint="Use another service_tier for a higher priority.",
            )
        return replace(
            asked,
            priority=self.priority + asked.priority,
            tpot_target_s=self.tpot_target_s if asked.tpot_target_s is None else asked.tpot_target_s,
            queue_limit_s=_tighter(self.queue_limit_s, asked.queue_limit_s),
        )


STANDARD: Final[tuple[Tier, ...]] = (
    Tier("priority", -100, 0.05, 30.0),
    Tier("default", 0, None, 60.0),
    Tier("flex", 100, 0.5, 600.0),
    Tier("batch", 200, 10.0, None),
)


@dataclass(frozen=True, slots=True)
class Tiers:
    """All tiers of a server."""

    by_name: Mapping[ServiceTier, Tier]

    @classmethod
    def standard(cls) -> Tiers:
        return cls(MappingProxyType({tier.name: tier for tier in STANDARD}))

    @classmethod
    def of(cls, table: Table) -> Tiers:
        """The standard tiers with what a table changes. ParameterError for what is unknown or impossible."""
        tiers = {tier.name: _changed(tier, table.inner(tier.name)) for tier in STANDARD}
        table.close()
        return cls(MappingProxyType(tiers))

    def without_targets(self) -> Tiers:
        """For engines with a fixed token budget, which keep no TPOT target."""
        return Tiers(MappingProxyType({n: replace(t, tpot_target_s=None) for n, t in self.by_name.items()}))

    def __getitem__(self, name: ServiceTier) -> Tier:
        return self.by_name[name]

    def choose(self, asked: AskedTier, granted: Collection[ServiceTier]) -> Tier:
        """The tier that a request gets, of those that its key has; auto is the default one, else the key's best.

        Raises ForbiddenError for one that the key may not have.
        """
        possible = [name for name in BEST_FIRST if name in granted and name != "batch"]
        if asked == "auto" and possible:
            return self["default" if "default" in possible else possible[0]]
        if asked not in possible:
            raise ForbiddenError(
                f"This key may not use the service tier {asked!r}.",
                hint=f"It may use {', '.join(possible)}." if possible else "It is for files of requests.",
            )
        return self[asked]


def _changed(tier: Tier, table: Table | None) -> Tier:
    if table is None:
        return tier
    most = MAX_PRIORITY - MAX_OWN_PRIORITY
    priority = table.whole("priority", -MAX_PRIORITY, most)
    target, limit = (_seconds(table, name) for name in ("tpot_target_s", "queue_limit_s"))
    table.close()
    return Tier(
        tier.name,
        tier.priority if priority is None else priority,
        tier.tpot_target_s if target is None else target,
        tier.queue_limit_s if limit is None else limit,
    )


def _seconds(table: Table, name: str) -> float | None:
    value: Decimal | None = table.number(name, "0.001", MAX_SECONDS, places=PLACES)
    return None if value is None else float(value)


def _tighter(one: float | None, other: float | None) -> float | None:
    given = [seconds for seconds in (one, other) if seconds is not None]
    return min(given, default=None)
