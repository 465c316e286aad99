"""Whose turn it is to have a model in memory, where models do not fit together. No I/O; time is an argument.

claim     A request for a model without memory waits with a claim of its tenant and class. The first claim is of the
          most urgent class, there of the tenant that held the least, there the oldest; those behind it wait.
room      It takes free memory, then that of idle models, the least recently used first, then that of models in
          use. These are closed: new requests for them wait, and they end with their last request.
turn      A model that was loaded stays open for TURN_S, or LOADS times as long as loading took. Then it is closed
          for a claim of a tenant that held no more than any of its users, and for every claim PATIENCE_S old. It
          ends earlier if it is idle and was last used by the claim's tenant, or not for GAP_S.
held      The share of all memory that a tenant's models had, times seconds. Tenants that use a model at the same
          time share it, and an open stream is use. A tenant that was away starts at the least of the others.
kept      When a request has waited its limit, its claim stays until it should have been sent again. A request
          whose client left takes its claim along.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from twofold.core.request import RequestOptions
from twofold.engine.scheduler.queue import ClassAccounts

TURN_S: Final = 5.0
LOADS: Final = 2.0
MAX_TURN_S: Final = 15.0
GAP_S: Final = 0.5
PATIENCE_S: Final = 20.0
AGEING_S: Final = 10.0
"""Seconds of waiting after which a class is as urgent as the next more urgent one, as in engines."""
KEPT_S: Final = 5.0
"""Seconds after Retry-After for which a claim is kept."""
ROOM_S: Final = 60.0
"""Seconds for which requests without a queue limit wait for a model's memory."""
CHECK_S: Final = 0.1
"""Interval at which a model that waits for memory looks whether a turn is over."""
MAX_WAIT_S: Final = 5.0
"""After so many seconds at most, a request looks again whether it may wait any longer."""
MIN_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 120.0


class ModelUse:
    """A model's memory and the requests that use it. Times are in seconds.

    reserved   bytes; they count while ``holds`` is set
    needs      bytes for which it waits; None if it does not wait
    began      when its turn began, which lasts ``turn_s``; None unless it is loaded
    ending     it is being unloaded
    closed     new requests wait
    leases     tenant and beginning of each request that uses it, the oldest first
    last       tenant of the last one, which ended at ``used_at``
    """

    def __init__(self) -> None:
        self.reserved = 0
        self.holds = False
        self.needs: int | None = None
        self.began: float | None = None
        self.turn_s = TURN_S
        self.ending = False
        self.closed = False
        self.leases: dict[int, tuple[str, float]] = {}
        self.last = ""
        self.used_at = 0.0
        self.settled = 0.0

    def begin_turn(self, now: float, load_s: float) -> None:
        """It is loaded."""
        self.began = self.used_at = now
        self.turn_s = min(max(TURN_S, LOADS * load_s), MAX_TURN_S)


M = TypeVar("M", bound=ModelUse)


@dataclass(eq=False, slots=True)
class Claim(Generic[M]):
    """Requests of a tenant in a class that wait for a model ``since`` some time; kept ``until`` then without any."""

    model: M
    tenant: str
    priority: int
    since: float
    waiting: int = 0
    until: float = 0.0


@dataclass(frozen=True, slots=True)
class NextTurn(Generic[M]):
    """The model that has room to be loaded now, and those that have to be unloaded now."""

    load: M | None = None
    unload: list[M] = field(default_factory=list)


class ModelTurns(Generic[M]):
    """The turns of models that share ``budget`` bytes."""

    def __init__(self, models: Iterable[M], budget: int) -> None:
        self._models = list(models)
        self._budget = budget
        self._claims: dict[tuple[M, str, int], Claim[M]] = {}
        self._accounts = ClassAccounts()
        self._numbers = 0

    def held(self, tenant: str) -> float:
        """What a tenant has held: seconds of all memory."""
        return self._accounts.account(tenant).service

    def enter(self, model: M, tenant: str, now: float) -> int:
        """A request uses a model from now on; returns the number of its lease."""
        self._settle(model, now)
        self._accounts.join(tenant)
        self._numbers += 1
        model.leases[self._numbers] = tenant, now
        return self._numbers

    def leave(self, model: M, lease: int, now: float) -> None:
        """A request does not use a model any more."""
        self._settle(model, now)
        model.last, model.used_at = model.leases.pop(lease)[0], now
        self._accounts.leave(model.last)

    def wait(self, model: M, options: RequestOptions, now: float) -> Claim[M]:
        """A request waits for a model."""
        name = model, options.tenant, options.priority
        claim = self._claims.get(name)
        if claim is None:
            for each in self._models:
                self._settle(each, now)
            self._accounts.join(options.tenant)
            claim = self._claims[name] = Claim(*name, now)
        claim.waiting += 1
        return claim

    def stop_waiting(self, claim: Claim[M], now: float, keep_s: float = 0.0) -> None:
        """A request does not wait any more; its claim is kept for so many seconds."""
        claim.waiting -= 1
        claim.until = max(claim.until, now + keep_s)
        self._drop_claims(now)

    def wants(self, model: M, now: float) -> bool:
        """Whether a claim to a model is left."""
        self._drop_claims(now)
        return any(claim.model is model for claim in self._claims.values())

    def next(self, now: float) -> NextTurn[M]:
        """What can be done now for the first claim. Opens and closes models."""
        self._drop_claims(now)
        for model in self._models:
            self._settle(model, now)
        claim = self._first()
        victims = [] if claim is None else self._victims(claim, now)
        for model in self._models:
            model.closed = model in (victims or ())
        if claim is None or victims is None:
            return NextTurn()
        free = self._budget - sum(model.reserved for model in self._models if model.holds)
        return NextTurn(
            claim.model if free >= self._needs(claim) else None, [each for each in victims if not each.leases]
        )

    def retry_after_s(self, now: float) -> float:
        """When a model will probably end: after its turn, and a request that has run for long runs about as long
        again."""
        ends = (
            max([model.began + model.turn_s - now, *(now - since for _, since in [*model.leases.values()][:1])])
            for model in self._models
            if model.began is not None
        )
        return min(max(MIN_RETRY_S, math.ceil(min(ends, default=0.0))), MAX_RETRY_S)

    def _first(self) -> Claim[M] | None:
        claims = [claim for claim in self._claims.values() if claim.model.needs is not None]
        if not claims:
            return None
        urgent = min(claims, key=lambda claim: claim.priority * AGEING_S + claim.since)
        same = [claim for claim in claims if claim.priority == urgent.priority]
        return min(same, key=lambda claim: (self.held(claim.tenant), claim.since))

    def _victims(self, claim: Claim[M], now: float) -> list[M] | None:
        """The models that have to end for a claim; None if too few may."""
        present = [model for model in self._models if model.began is not None and not model.ending]
        wanted = {each.model for each in self._claims.values() if each.waiting}
        used = {model for model in present if model.leases or model in wanted}
        idle = [model for model in present if model not in used and self._gives_way(model, claim, now)]
        over = [model for model in used if self._is_over(model, claim, now)]
        idle.sort(key=lambda model: model.used_at)
        over.sort(key=self._least, reverse=True)
        room = self._budget - sum(model.reserved for model in self._models if model.holds and not model.ending)
        victims: list[M] = []
        for model in (*idle, *over):
            if room >= self._needs(claim):
                break
            victims.append(model)
            room += model.reserved
        return victims if room >= self._needs(claim) else None

    def _needs(self, claim: Claim[M]) -> int:
        assert claim.model.needs is not None, "its model waits for memory"
        return claim.model.needs

    def _turn_over(self, model: M, now: float) -> bool:
        return model.began is not None and now >= model.began + model.turn_s

    def _gives_way(self, model: M, claim: Claim[M], now: float) -> bool:
        """Whether an idle model may end for a claim."""
        return self._turn_over(model, now) or model.last == claim.tenant or now - model.used_at >= GAP_S

    def _is_over(self, model: M, claim: Claim[M], now: float) -> bool:
        """Whether a model in use may be closed for a claim."""
        long = now - claim.since >= PATIENCE_S
        return self._turn_over(model, now) and (long or self.held(claim.tenant) <= self._least(model))

    def _least(self, model: M) -> float:
        """What that user of a model has held that held the least."""
        return min((self.held(tenant) for tenant, _ in model.leases.values()), default=math.inf)

    def _settle(self, model: M, now: float) -> None:
        """Charges the users of a model for the time since the last call."""
        users = {tenant for tenant, _ in model.leases.values()}
        for tenant in users:
            share = model.reserved / self._budget * (now - model.settled)
            self._accounts.account(tenant).service += share / len(users)
        model.settled = now

    def _drop_claims(self, now: float) -> None:
        for name, claim in list(self._claims.items()):
            if not claim.waiting and claim.until <= now:
                del self._claims[name]
                self._accounts.leave(claim.tenant)
