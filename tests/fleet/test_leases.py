"""Leases: one at a time for each request, ids that are never used twice, and waiting in order of arrival."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twofold.fleet.leases import Leases, lease_id

EVENTS = st.lists(st.tuples(st.sampled_from("ogle"), st.integers(0, 5), st.integers(0, 2)), max_size=60)


@given(EVENTS)
def test_the_laws_hold_after_any_events(events: list[tuple[str, int, int]]) -> None:
    leases: Leases[int] = Leases()
    opened: list[str] = []
    ended: set[str] = set()
    granted: dict[str, tuple[str, int]] = {}
    seen: set[str] = set()
    for kind, number, replica in events:
        alive = [each for each in opened if each not in ended]
        waiting = leases.waiting
        if kind == "o":
            opened.append(f"request-{len(opened)}")
            leases.open(opened[-1])
        elif kind == "g" and waiting:
            request = waiting[number % len(waiting)]
            lease = leases.grant(request, replica)
            assert lease not in seen
            seen.add(lease)
            granted[request] = lease, replica
        elif kind == "l":
            mine = {request: lease for request, (lease, holder) in granted.items() if holder == replica}
            assert dict(leases.lose(replica)) == mine
            for request in mine:
                del granted[request]
        elif kind == "e" and alive:
            request = alive[number % len(alive)]
            leases.end(request)
            ended.add(request)
            granted.pop(request, None)
        assert list(leases.waiting) == [each for each in opened if each not in ended and each not in granted]
        assert all(leases.holder(each) == granted.get(each) for each in opened)
        for lease in seen:
            for holder in range(3):
                owner = next((each for each, held in granted.items() if held == (lease, holder)), None)
                assert leases.request_of(lease, holder) == owner
        assert len(leases) == len(opened) - len(ended)


def test_the_first_try_has_the_id_of_its_request() -> None:
    assert lease_id("mine", 1) == "mine"
    assert lease_id("mine", 2) not in {"mine", lease_id("mine", 3)}
