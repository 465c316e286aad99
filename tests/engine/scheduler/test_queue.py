"""The waiting queue: order, ageing, shares, and a cost that does not grow with its length."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.scheduler.mock import make_sequence
from twofold.core.request import RequestOptions
from twofold.engine.scheduler.queue import KEPT_ACCOUNTS, Heap, WaitingQueue
from twofold.engine.scheduler.sequence import Sequence


def request(number: int, arrival: float = 0.0, priority: int = 0, tenant: str = "") -> Sequence:
    return make_sequence(number, 1, 1, options=RequestOptions(priority=priority, tenant=tenant), arrival=arrival)


def take(line: WaitingQueue[Sequence], service: float = 0.0) -> Sequence:
    head = line.head()
    assert head is not None
    line.remove(head)
    line.account(head).service += service
    return head


def test_an_empty_queue_has_no_head() -> None:
    line: WaitingQueue[Sequence] = WaitingQueue(10.0)
    assert (line.head(), len(line)) == (None, 0)


def test_classes_then_arrival() -> None:
    line: WaitingQueue[Sequence] = WaitingQueue(10.0)
    for number, (arrival, priority) in enumerate([(0.0, 1), (1.0, 0), (0.5, 0), (2.0, -1)]):
        line.add(request(number, arrival, priority))
    assert len(line) == 4
    assert [take(line).sequence_id for _ in range(4)] == [3, 2, 1, 0]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.floats(0, 100)), min_size=1, max_size=30), st.floats(0.5, 20))
def test_a_class_waits_no_longer_than_ageing_times_distance(requests: list[tuple[int, float]], ageing: float) -> None:
    """Within one tenant, no sequence that arrives more than (own priority − its) · ageing_s later goes first."""
    line: WaitingQueue[Sequence] = WaitingQueue(ageing)
    for number, (priority, arrival) in enumerate(requests):
        line.add(request(number, arrival, priority))
    left = [take(line) for _ in requests]
    for index, first in enumerate(left):
        for later in left[index + 1 :]:
            distance = later.options.priority - first.options.priority
            assert first.arrival - later.arrival <= distance * ageing + 1e-9


def test_none_starves_beside_an_endless_urgent_class() -> None:
    line: WaitingQueue[Sequence] = WaitingQueue(ageing_s=10.0)
    line.add(request(0, arrival=0.0, priority=3))
    for second in range(1, 1000):
        line.add(request(2 * second, arrival=float(second)))
        line.add(request(2 * second + 1, arrival=float(second)))
        if take(line).sequence_id == 0:
            break
    oldest = line.head()
    assert oldest is not None
    assert oldest.arrival <= 31.0 < second


def test_tenants_share_evenly_for_any_request_sizes() -> None:
    line: WaitingQueue[Sequence] = WaitingQueue(10.0)
    for number in range(300):
        line.add(request(number, tenant="flood"))
    for number in range(300, 330):
        line.add(request(number, arrival=1.0, tenant="modest"))
    served = [take(line, service=5.0).options.tenant for _ in range(60)]
    assert served.count("modest") == 30


def test_service_counts_and_not_requests() -> None:
    line: WaitingQueue[Sequence] = WaitingQueue(10.0)
    for number in range(200):
        line.add(request(number, tenant="long" if number % 2 else "short"))
    served = []
    for _ in range(80):
        head = take(line)
        served.append(head.options.tenant)
        line.account(head).service += 30.0 if head.options.tenant == "long" else 10.0
    assert served.count("short") == 60


def test_absent_tenants_save_up_no_service() -> None:
    line: WaitingQueue[Sequence] = WaitingQueue(10.0)
    for number in range(100):
        line.add(request(number, tenant="busy"))
    for _ in range(50):
        take(line, service=10.0)
    for number in range(100, 150):
        line.add(request(number, tenant="late"))
    served = [take(line, service=10.0).options.tenant for _ in range(20)]
    assert served.count("late") == 10


def test_preempted_sequences_go_first_only_in_their_class() -> None:
    line: WaitingQueue[Sequence] = WaitingQueue(10.0)
    line.add(request(0))
    line.put_back(request(1, arrival=5.0))
    line.add(request(2, arrival=5.0, priority=-1))
    assert [take(line).sequence_id for _ in range(3)] == [2, 1, 0]


def test_idle_tenants_are_forgotten() -> None:
    line: WaitingQueue[Sequence] = WaitingQueue(10.0)
    for number in range(5 * KEPT_ACCOUNTS):
        line.add(request(number, tenant=str(number)))
        take(line)
    assert len(line._accounts.of(0)._accounts) <= KEPT_ACCOUNTS


@pytest.mark.parametrize("waiting", [100, 10_000])
def test_work_does_not_grow_with_the_queue(waiting: int) -> None:
    """Entries of all heaps stay in proportion, and a turn looks at no more than a few of them."""
    line: WaitingQueue[Sequence] = WaitingQueue(10.0)
    rng = random.Random(0)
    sequences = [request(n, rng.random(), rng.randrange(3), str(rng.randrange(50))) for n in range(waiting)]
    for sequence in sequences:
        line.add(sequence)
    compared = 0

    class Counted(float):
        def __lt__(self, other: float) -> bool:
            nonlocal compared
            compared += 1
            return float(self) < float(other)

    for account in line._accounts.of(0)._accounts.values():
        account.service = Counted(account.service)
    for _ in range(50):
        take(line)
    assert compared < 50 * 80
    for sequence in rng.sample(sequences, waiting // 4):
        if sequence in line:
            line.remove(sequence)
    for found in line._classes.values():
        assert len(found.oldest._entries) <= 2 * len(found.oldest) + 16


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5), st.booleans())))
def test_the_first_of_a_heap_has_the_smallest_key(events: list[tuple[int, int, bool]]) -> None:
    heap: Heap[int] = Heap()
    model: dict[int, int] = {}
    for item, key, drops in events:
        if drops:
            heap.drop(item)
            model.pop(item, None)
        else:
            heap.put(item, key)
            model[item] = key
        least = min(model.values(), default=None)
        first = heap.first()
        assert len(heap) == len(model)
        assert (None if first is None else model[first]) == least
