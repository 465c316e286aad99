"""The laws of dispatch under random schedules of crashes, hangs, partitions and late messages, on a virtual clock."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.fleet.simulation import simulate
from twofold.fleet.leases import Leases

SCHEDULES = 2_000


def test_the_laws_hold_in_random_schedules() -> None:
    counts: Counter[str] = Counter()
    for seed in range(SCHEDULES):
        counts.update(simulate(seed))
    assert counts["faults"] > SCHEDULES
    assert counts["moves"] > SCHEDULES / 5
    assert counts["tries"] > counts["requests"] * 1.1
    assert counts["failed"] > SCHEDULES / 20
    assert counts["blamed"] < counts["failed"] / 50


def test_a_lease_that_is_never_lost_breaks_a_law(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that keeps the leases of lost replicas would send the tokens of earlier tries to the reader again."""
    lose = Leases.lose

    def lose_nothing(leases: Leases[int], replica: int) -> list[tuple[str, str]]:
        leased = dict(leases.leased)
        lost = lose(leases, replica)
        leases.leased |= leased
        return lost

    monkeypatch.setattr(Leases, "lose", lose_nothing)
    with pytest.raises((AssertionError, KeyError)):
        _many()


def _many() -> None:
    for seed in range(SCHEDULES):
        simulate(seed)
