"""Requests that wait at the hub for a replica, and which goes where next.

A request is placed when it arrives: the router chooses its replica by the work there and by what waits for it. It goes
there as late as possible: when the replica has less than two steps of prompts before it (``DispatchTarget.takes``).
Until then it waits in a queue for that replica, in the order of an engine's own queue: urgent classes first, then the
tenant that received the least service from all replicas together, then first come, first served.

    A tenant that received less than the one whose turn it is, and has nothing in this queue, gets the turn: its first
    request leaves the queue of another replica.
    A replica that is lost leaves its queue to the others: its requests are placed again.
    A replica without a queue takes the head of the longest one, if its first token is predicted sooner there.
    A replica that only decodes gets prompts only while no other one is usable.
    A request whose time is up goes to a replica at once, which ends it as an engine does.

It has no I/O; time comes from ``clock``.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import add, sub
from typing import Final, Generic, Protocol, TypeVar

from twofold.core.request import MAX_PRIORITY, EngineRequest, RequestOptions, ScoringParams
from twofold.engine.scheduler.forecast import WorkAhead, predict
from twofold.engine.scheduler.queue import PROMPT_WEIGHT, Heap, TenantAccount, TenantAccounts, WaitingQueue
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel
from twofold.fleet.routing.index import BlockNames, PrefixIndex
from twofold.fleet.routing.router import BlockFetch, Choice, Role, RoutedRequest, Router, known_model

AGEING_S: Final = 10.0
"""Seconds of waiting after which a class is as urgent as the next more urgent one, as in engines."""


class Place(Protocol):
    """A replica that requests can be placed at: its number, whether they may go there, and its open requests."""

    number: int
    requests: int
    role: Role

    @property
    def usable(self) -> bool: ...

    def takes(self, tenant: str) -> bool:
        """Whether a request of the tenant may go there now."""
        ...

    def ahead(self, now: float) -> WorkAhead: ...


R = TypeVar("R", bound=Place)


@dataclass(eq=False, slots=True)
class WaitingRequest:
    """A request that waits, or has waited.

    tokens      of its prompt and of the delivered parts of its completions
    choice      where it was placed, ``placed_at`` this time; None before
    fresh       the rows that its replica has to compute
    """

    sequence_id: int
    request: EngineRequest
    tokens: int
    choice: Choice | None = None
    placed_at: float = 0.0
    fresh: StepShape = field(default_factory=StepShape)

    @property
    def arrival(self) -> float:
        return self.request.arrived

    @property
    def options(self) -> RequestOptions:
        return self.request.options

    @property
    def tenant(self) -> str:
        return self.request.options.tenant


class _Queue(Generic[R]):
    """A replica with the requests that wait for it, in the eyes of a router that places one of ``priority``."""

    def __init__(self, replica: R, accounts: TenantAccounts) -> None:
        self.replica = replica
        self.waiting: WaitingQueue[WaitingRequest] = WaitingQueue(AGEING_S, accounts)
        self.now = 0.0
        self.priority = 0
        self._fresh: dict[int, StepShape] = {}

    @property
    def ready(self) -> bool:
        return self.replica.usable

    @property
    def open(self) -> int:
        return self.replica.requests + len(self.waiting)

    def ahead(self) -> WorkAhead:
        work = self.replica.ahead(self.now)
        if not self._fresh:
            return work
        shapes = [fresh for priority, fresh in self._fresh.items() if priority <= self.priority]
        return work._replace(pending=_sum(work.pending, *shapes))

    def add(self, request: WaitingRequest) -> None:
        priority = request.options.priority
        self.waiting.add(request)
        self._fresh[priority] = _sum(self._fresh.get(priority, StepShape()), request.fresh)

    def remove(self, request: WaitingRequest) -> None:
        priority = request.options.priority
        self.waiting.remove(request)
        left = StepShape(*map(sub, self._fresh.pop(priority), request.fresh))
        if any(left):
            self._fresh[priority] = left


class WaitingLine(Generic[R]):
    """The requests that wait for one of the ``replicas``. ``prefixes`` knows what the replicas have cached, ``fetch``
    what one of these numbers could fetch, given the cached tokens of each; ``names`` has the blocks of open requests by
    id, once they are named."""

    def __init__(
        self,
        replicas: dict[int, R],
        router: Router,
        clock: Callable[[], float],
        prefixes: PrefixIndex | None = None,
    ) -> None:
        self.requests: dict[str, WaitingRequest] = {}
        self._replicas = replicas
        self._router = router
        self._clock = clock
        self.prefixes = prefixes
        self._accounts = TenantAccounts()
        self._queues: dict[int, _Queue[R]] = {}
        self._unplaced: dict[str, WaitingRequest] = {}
        self._limits: Heap[str] = Heap()
        self.names: dict[str, BlockNames | None] = {}
        self._count = 0
        self.fetch: Callable[[Sequence[int], int, Sequence[int]], BlockFetch | None] | None = None

    def entry(self, request: EngineRequest) -> WaitingRequest:
        """Makes the record of a request that has arrived. The line keeps the names of its blocks until ``forget``."""
        self._count += 1
        self.names[request.request_id] = None
        return WaitingRequest(self._count, request, len(request.token_ids))

    def forget(self, request_id: str) -> None:
        """The request has ended."""
        del self.names[request_id]

    def account(self, entry: WaitingRequest) -> TenantAccount:
        """The account of the request's tenant in its class."""
        return self._accounts.account(entry.options)

    def add(self, entry: WaitingRequest, *, again: bool = False) -> None:
        """The request waits from now on. It has no queue limit when it waits ``again``: its replica was lost."""
        request_id, options = entry.request.request_id, entry.options
        self.requests[request_id] = self._unplaced[request_id] = entry
        entry.choice = None
        limits = (options.deadline_s, None if again else options.queue_limit_s)
        if any(each is not None for each in limits):
            self._limits.put(request_id, entry.arrival + min(each for each in limits if each is not None))

    def only(self, entry: WaitingRequest) -> R | None:
        """The replica, if there is one alone that takes the request at once: then it need not wait to be placed."""
        if len(self._replicas) != 1 or self.requests or self.prefixes is not None:
            return None
        (replica,) = self._replicas.values()
        return replica if replica.usable and replica.takes(entry.tenant) else None

    def remove(self, request_id: str) -> WaitingRequest | None:
        """The request does not wait any more; None if it did not."""
        entry = self.requests.pop(request_id, None)
        if entry is None:
            return None
        self._limits.drop(request_id)
        if self._unplaced.pop(request_id, None) is None:
            assert entry.choice is not None, "a placed request has a choice"
            self._queues[entry.choice.replica].remove(entry)
        return entry

    def lose(self, number: int) -> None:
        """A replica is lost: the requests that wait for it will be placed again."""
        queue = self._queues.pop(number, None)
        if queue is not None:
            for entry in [each for each in self.requests.values() if each.choice and each.choice.replica == number]:
                queue.remove(entry)
                entry.choice = None
                self._unplaced[entry.request.request_id] = entry

    def take(self, closed: Collection[int] = ()) -> Iterator[tuple[WaitingRequest, R]]:
        """The requests that go to replicas now; the caller sends each one before it asks for the next. ``closed``
        replicas get none, and lose their queue."""
        for number in closed:
            self.lose(number)
        usable = [each for number, each in self._replicas.items() if each.usable and number not in closed]
        if not usable or not self.requests:
            return
        prefill = _for_prompts(usable)
        self._place(prefill)
        yield from self._due()
        for replica in usable:
            while (head := self._next(replica)) is not None and replica.takes(head.tenant):
                self._move(head, replica, "its tenant received less than those in this queue")
                yield self._leave(head)
        for replica in prefill if self.requests else ():
            while not self._queue(replica).waiting and (head := self._help(replica)) is not None:
                yield self._leave(head)

    def choose(self, request: EngineRequest, among: Sequence[R] | None = None, tokens: int = 0) -> Choice | None:
        """Where a request of so many ``tokens`` (or those of its prompt) would be placed now, with the number of the
        replica; None if none is usable."""
        usable = _for_prompts([replica for replica in among or self._replicas.values() if replica.usable])
        now, queues = self._clock(), [self._queue(replica) for replica in usable]
        for queue in queues:
            queue.now, queue.priority = now, request.options.priority
        numbers = [replica.number for replica in usable]
        length = tokens or len(request.token_ids)
        fetch = None if self.fetch is None else partial(self.fetch, numbers)
        routed = RoutedRequest(length, lambda: self.cached(request, numbers), request.options.tpot_target_s, fetch)
        choice = self._router.choose(routed, queues)
        return None if choice is None else choice._replace(replica=numbers[choice.replica])

    def before(self, request: EngineRequest, number: int) -> tuple[int, float]:
        """How many requests wait for a replica before such a one, and the seconds of their prompts."""
        queue, now, priority = self._queue(self._replicas[number]), self._clock(), request.options.priority
        ahead = len(queue.waiting.before(priority, now))
        if not ahead:
            return 0, 0.0
        queue.now, queue.priority = now, priority
        here, there = (predict(work, 1, 0, self.unknown(now)) for work in (queue.ahead(), queue.replica.ahead(now)))
        return ahead, max(0.0, here.queue_s - there.queue_s)

    def places(self) -> Iterator[tuple[WaitingRequest, R, int]]:
        """The placed requests that ask for their progress, their replicas, and how many wait here before each."""
        for queue in self._queues.values():
            asking = [entry for entry in queue.waiting if entry.options.progress]
            urgencies = queue.waiting.urgencies() if asking else []
            for entry in asking:
                yield entry, queue.replica, bisect_left(urgencies, queue.waiting.urgency(entry))

    def _place(self, usable: list[R]) -> None:
        """Places the requests that have no replica, in order of arrival."""
        for request_id, entry in list(self._unplaced.items()):
            choice = self.choose(entry.request, usable, entry.tokens)
            assert choice is not None, "a replica is usable"
            del self._unplaced[request_id]
            self._put(entry, choice)

    def _put(self, entry: WaitingRequest, choice: Choice) -> None:
        entry.choice, entry.placed_at = choice, self._clock()
        cached = choice.cached or 0
        entry.fresh = StepShape().plus(cached, entry.tokens - cached, 1)
        self._queues[choice.replica].add(entry)

    def _leave(self, entry: WaitingRequest) -> tuple[WaitingRequest, R]:
        assert entry.choice is not None
        self.remove(entry.request.request_id)
        return entry, self._replicas[entry.choice.replica]

    def _due(self) -> Iterator[tuple[WaitingRequest, R]]:
        """The requests whose time is up."""
        while (request_id := self._limits.first()) is not None and self._limits.key(request_id) <= self._clock():
            yield self._leave(self.requests[request_id])

    def _help(self, replica: R) -> WaitingRequest | None:
        """The head of the longest queue, placed at this replica, if its first token is predicted sooner here."""
        now = self._clock()
        waits = {queue: self._wait_s(queue, now) for queue in self._queues.values() if queue.waiting}
        longest = max(waits, key=waits.__getitem__, default=None)
        head = None if longest is None else longest.waiting.head()
        if longest is None or head is None or not replica.takes(head.tenant):
            return None
        cached = self.cached(head.request, [replica.number])[0]
        found = predict(replica.ahead(now), head.tokens, cached, self.unknown(now))
        if found.ttft_s >= waits[longest]:
            return None
        self._move(head, replica, "sooner than in the queue of another one")
        return head

    def _next(self, replica: R) -> WaitingRequest | None:
        """The head of its queue, or the first request of a tenant that would not have received more even with it."""
        head = self._queue(replica).waiting.head()
        if head is None:
            return None
        accounts = self._accounts.of(head.options.priority)
        least = accounts.least()
        if least is None or least == head.tenant:
            return head
        found = (queue.waiting.first_of(least, head.options.priority) for queue in self._queues.values())
        other = min((each for each in found if each is not None), key=lambda each: each.sequence_id)
        less = accounts.account(least).service + PROMPT_WEIGHT * other.tokens <= accounts.account(head.tenant).service
        return other if less else head

    def _move(self, entry: WaitingRequest, replica: R, why: str) -> None:
        """Places a waiting request at another replica."""
        assert entry.choice is not None
        if entry.choice.replica != replica.number:
            choice = self.choose(entry.request, [replica], entry.tokens)
            assert choice is not None
            self._queues[entry.choice.replica].remove(entry)
            self._put(entry, choice._replace(reason=why))

    def _wait_s(self, queue: _Queue[R], now: float) -> float:
        """Seconds until everything in a queue is computed."""
        queue.now, queue.priority = now, MAX_PRIORITY
        return predict(queue.ahead(), 1, 0, self.unknown(now)).queue_s

    def unknown(self, now: float) -> StepTimeModel:
        """Predicts for replicas that have not run enough steps: the model of one that has."""
        return known_model(queue.replica.ahead(now).step_time for queue in self._queues.values())

    def cached(self, request: EngineRequest, numbers: Sequence[int], *, usable: bool = True) -> list[int]:
        """Cached tokens of a prompt at these replicas: those that it could use, or all of layers without a window."""
        if self.prefixes is None or isinstance(request.params, ScoringParams):
            return [0] * len(numbers)
        salt, known = request.options.cache_key, self.names.get(request.request_id)
        names = known or self.prefixes.names(salt, request.token_ids)
        if request.request_id in self.names:
            self.names[request.request_id] = names
        found = self.prefixes.cached(salt, request.token_ids, 1 + max(numbers), names, usable=usable)
        return [found[number] for number in numbers]

    def _queue(self, replica: R) -> _Queue[R]:
        queue = self._queues.get(replica.number)
        if queue is None:
            queue = self._queues[replica.number] = _Queue(replica, self._accounts)
        return queue


def _for_prompts(usable: list[R]) -> list[R]:
    """Those that prefill; all of them if none does."""
    return [replica for replica in usable if replica.role != "decode"] or usable


def _sum(*shapes: StepShape) -> StepShape:
    total = shapes[0]
    for shape in shapes[1:]:
        total = StepShape(*map(add, total, shape))
    return total
