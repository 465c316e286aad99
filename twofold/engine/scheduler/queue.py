"""The waiting queue: which sequence is next.

    1. Classes: the lower ``priority`` goes first, and a class gains one level of priority for every ``ageing_s``
       seconds that its oldest sequence waits. So none starves: a class waits for a class d levels more urgent only
       while the oldest sequence there arrived less than d · ageing_s seconds after its own.
    2. Within a class, preempted sequences go before new ones.
    3. Among new sequences, the tenant that received the least service goes first (the Virtual Token Counter of Sheng et
       al. 2024). A tenant that joins the queue starts at the lowest counter there or above, so that no tenant saves up
       service while it is away.
    4. Within a tenant first come, first served.

Every operation is O(log n): urgency is compared as priority · ageing_s + arrival of the oldest, which does not change
while time passes, and a raised counter is compared only when its tenant is first.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from twofold.core.request import RequestOptions

T = TypeVar("T", bound=Hashable)

SPARE = 16
PROMPT_WEIGHT: Final = 1.0
COMPLETION_WEIGHT: Final = 2.0
"""Service that a computed prompt token counts, and a generated token; the weights are those of the paper."""
KEPT_ACCOUNTS: Final = 1024
"""Accounts of absent tenants are dropped only if there are at least this many accounts."""


class Heap(Generic[T]):
    """A priority queue in which any item may be removed or change its key; the smallest key is first.

    Keys of one heap must be comparable; equal keys need comparable items. A stale entry is removed when it is first, or
    once stale entries outnumber the others, so every operation is O(log n) on average.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[Any, T]] = []
        self._keys: dict[T, Any] = {}

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, item: T) -> bool:
        return item in self._keys

    def key(self, item: T) -> Any:
        return self._keys[item]

    def put(self, item: T, key: Any) -> None:
        """Adds an item, or changes the key of one."""
        self._keys[item] = key
        heapq.heappush(self._entries, (key, item))
        self._compact()

    def drop(self, item: T) -> None:
        """Removes an item, if it is in the heap."""
        if self._keys.pop(item, None) is not None:
            self._compact()

    def first(self) -> T | None:
        """Returns the item with the smallest key, or None if the heap is empty."""
        entries = self._entries
        while entries:
            key, item = entries[0]
            if self._keys.get(item) == key:
                return item
            heapq.heappop(entries)
        return None

    def _compact(self) -> None:
        if len(self._entries) > 2 * len(self._keys) + SPARE:
            self._entries = [(key, item) for item, key in self._keys.items()]
            heapq.heapify(self._entries)


class Waiting(Protocol):
    """What waits: a sequence in an engine, or a request at the hub of a fleet. ``sequence_id`` orders those that
    arrived together."""

    @property
    def sequence_id(self) -> int: ...

    @property
    def arrival(self) -> float: ...

    @property
    def options(self) -> RequestOptions: ...


W = TypeVar("W", bound=Waiting)


@dataclass(slots=True)
class TenantAccount:
    """A tenant in one class: the service it received, in weighted tokens, and how many of its sequences wait."""

    service: float = 0.0
    waiting: int = 0


class ClassAccounts:
    """The accounts of one priority. A tenant whose first sequence begins to wait starts at the floor or above: the
    lowest counter of those that wait."""

    def __init__(self) -> None:
        self._waiting: Heap[str] = Heap()
        self._accounts: dict[str, TenantAccount] = {}
        self._floor = 0.0
        self._most_accounts = KEPT_ACCOUNTS

    def account(self, tenant: str) -> TenantAccount:
        account = self._accounts.get(tenant)
        if account is None:
            if len(self._accounts) >= self._most_accounts:
                self._forget()
            account = self._accounts[tenant] = TenantAccount(self._floor)
        return account

    def join(self, tenant: str) -> None:
        """One more sequence of the tenant waits."""
        account = self.account(tenant)
        if not account.waiting:
            least = self.least()
            if least is not None:
                self._floor = max(self._floor, self._accounts[least].service)
            account.service = max(account.service, self._floor)
            self._waiting.put(tenant, account.service)
        account.waiting += 1

    def leave(self, tenant: str) -> None:
        """One sequence of the tenant does not wait any more."""
        account = self._accounts[tenant]
        account.waiting -= 1
        if not account.waiting:
            self._waiting.drop(tenant)
            if not self._waiting:
                self._floor = max(self._floor, account.service)

    def least(self) -> str | None:
        """The waiting tenant that received the least service; None if none waits."""
        return self.first(self._waiting)

    def first(self, tenants: Heap[str]) -> str | None:
        """The tenant of a heap by service that received the least."""
        while (tenant := tenants.first()) is not None:
            service = self._accounts[tenant].service
            if tenants.key(tenant) == service:
                return tenant
            tenants.put(tenant, service)
        return None

    def _forget(self) -> None:
        """Drops accounts at or below the floor without waiting sequences: a new account starts at the floor, too."""
        self._accounts = {t: a for t, a in self._accounts.items() if a.waiting or a.service > self._floor}
        self._most_accounts = max(KEPT_ACCOUNTS, 2 * len(self._accounts))


class TenantAccounts:
    """The accounts of all classes. Queues that share them are fair to tenants together."""

    def __init__(self) -> None:
        self._classes: dict[int, ClassAccounts] = {}

    def of(self, priority: int) -> ClassAccounts:
        return self._classes.setdefault(priority, ClassAccounts())

    def account(self, options: RequestOptions) -> TenantAccount:
        """The account of a tenant in its class."""
        return self.of(options.priority).account(options.tenant)


class _Class:
    """The waiting sequences of one priority."""

    def __init__(self, accounts: ClassAccounts) -> None:
        self.oldest: Heap[int] = Heap()
        self.returning: Heap[int] = Heap()
        self._accounts = accounts
        self._tenants: Heap[str] = Heap()
        self._queues: dict[str, Heap[int]] = {}

    def add(self, sequence: Waiting) -> None:
        tenant = sequence.options.tenant
        self._accounts.join(tenant)
        queue = self._queues.get(tenant)
        if queue is None:
            queue = self._queues[tenant] = Heap()
            self._tenants.put(tenant, self._accounts.account(tenant).service)
        queue.put(sequence.sequence_id, (sequence.arrival, sequence.sequence_id))
        self._note(sequence)

    def put_back(self, sequence: Waiting) -> None:
        self.returning.put(sequence.sequence_id, (sequence.arrival, sequence.sequence_id))
        self._note(sequence)

    def remove(self, sequence: Waiting) -> None:
        number, tenant = sequence.sequence_id, sequence.options.tenant
        self.oldest.drop(number)
        if number in self.returning:
            self.returning.drop(number)
            return
        queue = self._queues[tenant]
        queue.drop(number)
        if not queue:
            del self._queues[tenant]
            self._tenants.drop(tenant)
        self._accounts.leave(tenant)

    def first(self) -> int | None:
        """The next sequence of the class."""
        returning = self.returning.first()
        if returning is not None:
            return returning
        tenant = self._accounts.first(self._tenants)
        return None if tenant is None else self._queues[tenant].first()

    def first_of(self, tenant: str) -> int | None:
        """The next new sequence of a tenant."""
        queue = self._queues.get(tenant)
        return None if queue is None else queue.first()

    def _note(self, sequence: Waiting) -> None:
        self.oldest.put(sequence.sequence_id, (sequence.arrival, sequence.sequence_id))


class WaitingQueue(Generic[W]):
    """The sequences that wait. ``head`` is the next one; any may be removed."""

    def __init__(self, ageing_s: float, accounts: TenantAccounts | None = None) -> None:
        self._ageing_s = ageing_s
        self._accounts = accounts or TenantAccounts()
        self._classes: dict[int, _Class] = {}
        self._order: Heap[int] = Heap()
        self._sequences: dict[int, W] = {}

    def __len__(self) -> int:
        return len(self._sequences)

    def __contains__(self, sequence: W) -> bool:
        return sequence.sequence_id in self._sequences

    def __iter__(self) -> Iterator[W]:
        return iter(self._sequences.values())

    def account(self, sequence: W) -> TenantAccount:
        """The account of the sequence's tenant in its class."""
        return self._accounts.account(sequence.options)

    def urgency(self, sequence: W) -> float:
        """The urgency of the sequence's class if this sequence were its oldest; a lower number is more urgent."""
        return sequence.options.priority * self._ageing_s + sequence.arrival

    def before(self, priority: int, now: float) -> list[W]:
        """The sequences that are as urgent as a request of this priority that arrives now, or more."""
        mine = priority * self._ageing_s + now
        return [sequence for sequence in self._sequences.values() if self.urgency(sequence) <= mine]

    def urgencies(self) -> list[float]:
        """The urgencies of all waiting sequences, the most urgent first."""
        return sorted(map(self.urgency, self._sequences.values()))

    def add(self, sequence: W) -> None:
        """Appends the sequence to its tenant's queue."""
        self._class(sequence).add(sequence)
        self._enter(sequence)

    def put_back(self, sequence: W) -> None:
        """Inserts a preempted sequence before the new ones of its class."""
        self._class(sequence).put_back(sequence)
        self._enter(sequence)

    def remove(self, sequence: W) -> None:
        """Removes a sequence, which must be in the queue."""
        del self._sequences[sequence.sequence_id]
        self._class(sequence).remove(sequence)
        self._place(sequence.options.priority)

    def head(self) -> W | None:
        """The next sequence; None if the queue is empty."""
        priority = self._order.first()
        if priority is None:
            return None
        number = self._classes[priority].first()
        assert number is not None, "a class in the queue is empty"
        return self._sequences[number]

    def first_of(self, tenant: str, priority: int) -> W | None:
        """The next new sequence of a tenant in a class; None without one."""
        found = self._classes.get(priority)
        number = None if found is None else found.first_of(tenant)
        return None if number is None else self._sequences[number]

    def _enter(self, sequence: W) -> None:
        assert sequence not in self, "a sequence is in the queue once"
        self._sequences[sequence.sequence_id] = sequence
        self._place(sequence.options.priority)

    def _place(self, priority: int) -> None:
        """Updates the position of a class: the urgency of its oldest sequence."""
        oldest = self._classes[priority].oldest.first()
        if oldest is None:
            self._order.drop(priority)
        else:
            key = (self.urgency(self._sequences[oldest]), priority)
            if priority not in self._order or self._order.key(priority) != key:
                self._order.put(priority, key)

    def _class(self, sequence: W) -> _Class:
        priority = sequence.options.priority
        found = self._classes.get(priority)
        if found is None:
            found = self._classes[priority] = _Class(self._accounts.of(priority))
        return found
