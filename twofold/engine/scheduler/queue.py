"""The waiting line: who is next.

    1. Classes: the lower ``priority`` goes first, and waiting makes a class more urgent: by one for every ``ageing_s``
       that its oldest sequence waits. So a class waits for one that is d classes more urgent no longer than until the
       oldest there has arrived d · ageing_s after its own, and none starves.
    2. Within a class, who was preempted goes before who is new.
    3. Among new ones the tenant that received the least service: the Virtual Token Counter of Sheng et al. 2024,
       "Fairness in Serving Large Language Models". A tenant that comes to the line starts at no less than the least
       counter there, so that nobody saves up service by staying away.
    4. Within a tenant first come, first served.

Every operation is O(log n), however many wait: urgency is compared as priority · ageing_s + arrival of the oldest,
which does not change while time passes, and a counter that rose is looked at only when its tenant comes up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from twofold.engine.scheduler.heap import Heap
from twofold.engine.scheduler.sequence import Sequence

PROMPT_WEIGHT: Final = 1.0
ANSWER_WEIGHT: Final = 2.0
"""Service that a token computed of a prompt counts, and one that is generated; as in the paper."""
KEPT_ACCOUNTS: Final = 1024
"""Tenants that are remembered at least, after they left."""


@dataclass(slots=True)
class TenantQueue:
    """A tenant in one class: the service it received, in weighted tokens, and those of it that wait."""

    service: float = 0.0
    line: Heap[int] = field(default_factory=Heap)


class _Class:
    """The sequences of one priority that wait."""

    def __init__(self) -> None:
        self.oldest: Heap[int] = Heap()
        self.returning: Heap[int] = Heap()
        self._tenants: Heap[str] = Heap()
        self._accounts: dict[str, TenantQueue] = {}
        self._floor = 0.0
        self._most_accounts = KEPT_ACCOUNTS

    def account(self, tenant: str) -> TenantQueue:
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= self._most_accounts:
                self._forget_accounts()
            account = self._accounts[tenant] = TenantQueue(self._floor)
        return account

    def add(self, sequence: Sequence) -> None:
        tenant = sequence.options.tenant
        account = self.account(tenant)
        if not account.line:
            self._next_tenant()  # brings the floor up to date
            account.service = max(account.service, self._floor)
            self._tenants.put(tenant, account.service)
        account.line.put(sequence.sequence_id, (sequence.arrival, sequence.sequence_id))
        self._note(sequence)

    def put_back(self, sequence: Sequence) -> None:
        self.returning.put(sequence.sequence_id, (sequence.arrival, sequence.sequence_id))
        self._note(sequence)

    def remove(self, sequence: Sequence) -> None:
        number, tenant = sequence.sequence_id, sequence.options.tenant
        self.oldest.drop(number)
        if number in self.returning:
            self.returning.drop(number)
            return
        account = self._accounts[tenant]
        account.line.drop(number)
        if not account.line:
            self._tenants.drop(tenant)
            if not self._tenants:
                self._floor = max(self._floor, account.service)

    def first(self) -> int | None:
        """Who is next here."""
        returning = self.returning.first()
        if returning is not None:
            return returning
        tenant = self._next_tenant()
        return None if tenant is None else self._accounts[tenant].line.first()

    def _next_tenant(self) -> str | None:
        """The one with the least service; the floor rises to it."""
        while (tenant := self._tenants.first()) is not None:
            account = self._accounts[tenant]
            if self._tenants.key(tenant) == account.service:
                self._floor = max(self._floor, account.service)
                return tenant
            self._tenants.put(tenant, account.service)
        return None

    def _note(self, sequence: Sequence) -> None:
        self.oldest.put(sequence.sequence_id, (sequence.arrival, sequence.sequence_id))

    def _forget_accounts(self) -> None:
        """An idle account at or below the floor is worth no more than none."""
        self._accounts = {t: a for t, a in self._accounts.items() if a.line or a.service > self._floor}
        self._most_accounts = max(KEPT_ACCOUNTS, 2 * len(self._accounts))


class WaitingLine:
    """Sequences that wait. ``head`` is the next one; any may be taken out."""

    def __init__(self, ageing_s: float) -> None:
        self._ageing_s = ageing_s
        self._classes: dict[int, _Class] = {}
        self._order: Heap[int] = Heap()
        self._sequences: dict[int, Sequence] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.sequence_id in self._sequences

    def account(self, sequence: Sequence) -> TenantQueue:
        """What its tenant received in its class."""
        return self._class(sequence).account(sequence.options.tenant)

    def urgency(self, sequence: Sequence) -> float:
        """The lower the more urgent; it orders sequences by their class as it is at any one time."""
        return sequence.options.priority * self._ageing_s + sequence.arrival

    def add(self, sequence: Sequence) -> None:
        """At the end of its tenant's line."""
        self._class(sequence).add(sequence)
        self._enter(sequence)

    def put_back(self, sequence: Sequence) -> None:
        """Before the new ones of its class."""
        self._class(sequence).put_back(sequence)
        self._enter(sequence)

    def remove(self, sequence: Sequence) -> None:
        """Out of the line, wherever it stands; it must be there."""
        del self._sequences[sequence.sequence_id]
        self._class(sequence).remove(sequence)
        self._place(sequence.options.priority)

    def head(self) -> Sequence | None:
        """The next one; None when nobody waits."""
        priority = self._order.first()
        if priority is None:
            return None
        number = self._classes[priority].first()
        assert number is not None, "a class in the line has nobody in it"
        return self._sequences[number]

    def composition(self) -> dict[int, int]:
        """How many wait in each class that has any."""
        return {priority: len(c.oldest) for priority, c in sorted(self._classes.items()) if c.oldest}

    def _enter(self, sequence: Sequence) -> None:
        assert sequence not in self, "a sequence stands in the line once"
        self._sequences[sequence.sequence_id] = sequence
        self._place(sequence.options.priority)

    def _place(self, priority: int) -> None:
        """Puts a class where its oldest belongs."""
        oldest = self._classes[priority].oldest.first()
        if oldest is None:
            self._order.drop(priority)
        else:
            key = (self.urgency(self._sequences[oldest]), priority)
            if priority not in self._order or self._order.key(priority) != key:
                self._order.put(priority, key)

    def _class(self, sequence: Sequence) -> _Class:
        priority = sequence.options.priority
        found = self._classes.get(priority)
        if found is None:
            found = self._classes[priority] = _Class()
        return found
