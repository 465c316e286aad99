"""The laws of dispatch under random schedules of crashes, hangs, partitions and late messages, on a virtual clock."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.fleet_simulation import simulate
from twofold.fleet.leases import Leases

SCHEDULES = 2_000


def test_the_laws_hold_in_random_schedules() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        counts.update(simulate(seed))
    assert counts["faults"] > SCHEDULES
    assert counts["tries"] > counts["requests"] * 1.1
    assert counts["failed"] < counts["requests"] / 100


def test_a_lease_that_is_never_lost_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation notices a hub that listens to earlier tries: their tokens are told twice."""
    monkeypatch.setattr(Leases, "request_of", lambda self, lease, _: _owner(self, lease))
    with pytest.raises((AssertionError, KeyError)):
        _many()


def _many() -> None:
    for seed in range(SCHEDULES):
        simulate(seed)


def _owner(leases: Leases[int], lease: str) -> str | None:
    request_id = lease.split("\x1f", maxsplit=1)[0]
    return request_id if request_id in leases._tries else None
