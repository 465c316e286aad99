"""The board of the live view: what it makes of the reports of engines, and what each watcher may see."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.observe.served import served, snapshot, step
from tests.support.clock import VirtualClock
from twofold.core.lanes import LaneEvent, LaneKind
from twofold.core.report import EngineFacts, GroupFacts, KVPicture, PoolPicture, TreeNode, TreeOutline
from twofold.observe.live.board import MAX_TICKS, RECENT, TICK_STEPS, LiveBoard, merged, tick_lanes
from twofold.observe.live.columns import COLUMNS, DECODE, END, MS, PREFILL, READ, TIMES, N, T, columns, folded, row_of
from twofold.observe.live.lanes import MAX_KEPT, Viewer
from twofold.observe.metrics.server import ServerMetrics
from twofold.observe.served import ServedRequest

ALL, ACME, OTHER = Viewer(None), Viewer("acme", "key:a"), Viewer("other", "key:b")
FACTS = EngineFacts(4, 512, 16, "live", 0.05, (GroupFacts(None, 100, 4096),))
RECORD = served()


def record_of(request_id: str) -> ServedRequest | None:
    return RECORD if request_id == "req_1-0" else None


class Watched:
    """A board with a clock, whose model "small" is watched."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.metrics = ServerMetrics(clock=self.clock)
        self.board = LiveBoard(self.metrics.recent, self.clock)
        self.board.watch("small", on=True)

    def lanes(self, *events: LaneEvent) -> None:
        self.board.on_lanes("small", events, record_of)

    def steps(self, *numbers: int, every: float = 0.03) -> None:
        for number in numbers:
            self.board.on_step("small", step(number=number, started=number * every, moves_s=0.0))

    def tick(self, viewer: Viewer = ALL) -> list[list[Any]]:
        assert self.board.tick("small")
        (tick,) = self.board.since("small", self.board.last("small") - 1) or ()
        return tick_lanes(tick.events, viewer)


LIFE = (
    LaneEvent(7, LaneKind.ARRIVE, 0.5, (20,), "req_1-0"),
    LaneEvent(7, LaneKind.ADMIT, 0.6, (2, 16, 8)),
    LaneEvent(7, LaneKind.COMPUTE, 0.7, (20,)),
    LaneEvent(7, LaneKind.FIRST, 0.7),
    LaneEvent(7, LaneKind.TOKENS, 0.8, (3,)),
    LaneEvent(7, LaneKind.DRAFTS, 0.8, (4, 2)),
    LaneEvent(7, LaneKind.PREEMPT, 0.9, (5,), "blocks"),
    LaneEvent(7, LaneKind.RETURN, 1.0, (3, 22)),
    LaneEvent(7, LaneKind.END, 1.2, (9,), "stop"),
)


def test_a_viewer_of_all_sees_the_whole_life_of_a_lane() -> None:
    watched = Watched()
    watched.lanes(*LIFE)
    assert watched.tick() == [
        [7, "+", 500.0, {"prompt": 20, "id": "req_1", "tenant": "acme", "tier": "default"}],
        [7, "a", 600.0, 2, 16, 8],
        [7, "p", 700.0, 20],
        [7, "f", 700.0],
        [7, "o", 800.0, 3],
        [7, "s", 800.0, 4, 2],
        [7, "x", 900.0, "blocks", 5],
        [7, "r", 1000.0, 3, 22],
        [7, ".", 1200.0, "stop", 9],
    ]


def test_others_see_neither_ids_nor_sizes() -> None:
    watched = Watched()
    watched.lanes(*LIFE)
    assert watched.tick(ACME)[0] == [7, "+", 500.0, {"prompt": 20, "id": "req_1", "tier": "default"}]
    watched.lanes(LaneEvent(8, LaneKind.ARRIVE, 2.0, (20,), "req_1-0"), *(e._replace(number=8) for e in LIFE[1:]))
    assert watched.tick(OTHER) == [
        [8, "+", 2000.0, {"tier": "default"}],
        [8, "a", 600.0, 2],
        [8, "f", 700.0],
        [8, "x", 900.0, "blocks"],
        [8, "r", 1000.0, 3],
        [8, ".", 1200.0, "stop"],
    ]
    text = json.dumps(watched.board.hello("small", OTHER, FACTS))
    assert "req_1" not in text
    assert "acme" not in text


def test_hello_has_the_steps_and_lanes_so_far_and_each_event_once() -> None:
    watched = Watched()
    watched.steps(0, 1, 2)
    watched.lanes(*LIFE[:4], LIFE[4], LaneEvent(7, LaneKind.TOKENS, 0.85, (4,)))
    hello = watched.board.hello("small", ALL, FACTS)
    assert hello["steps"]["n"] == [0, 1, 2]
    assert [row[1] for row in hello["lanes"]] == ["+", "a", "p", "f", "o"]
    assert hello["lanes"][-1] == [7, "o", 850.0, 4]
    assert hello["engine"]["slots"] == 4
    assert hello["engine"]["tpot_target_ms"] == 50.0
    assert watched.board.hello("small", ALL, None)["engine"] is None


def test_lanes_are_forgotten_a_minute_after_their_end_and_steps_a_minute_after_their_start() -> None:
    watched = Watched()
    watched.steps(0)
    watched.lanes(*LIFE, LaneEvent(9, LaneKind.ARRIVE, 1.0, (5,), ""))
    watched.clock.advance(61.0)
    hello = watched.board.hello("small", ALL, FACTS)
    assert hello["steps"]["n"] == []
    assert {row[0] for row in hello["lanes"]} == {7, 9}
    watched.clock.advance(0.3)
    assert {row[0] for row in watched.board.hello("small", ALL, FACTS)["lanes"]} == {9}


def test_an_unwatched_board_keeps_steps_and_nothing_else() -> None:
    watched = Watched()
    watched.board.watch("small", on=False)
    watched.steps(0, 1)
    watched.lanes(*LIFE)
    assert not watched.board.tick("small")
    hello = watched.board.hello("small", ALL, FACTS)
    assert (hello["steps"]["n"], hello["lanes"]) == ([0, 1], [])


def test_a_tick_is_made_only_where_something_happened() -> None:
    watched = Watched()
    assert not watched.board.tick("small")
    watched.steps(0)
    assert watched.board.tick("small")
    assert not watched.board.tick("small")
    watched.board.on_snapshot("small", snapshot(waiting=7))
    assert watched.board.tick("small")
    watched.board.on_snapshot("small", snapshot(waiting=7))
    assert not watched.board.tick("small")


def test_late_watchers_get_ticks_as_one_and_too_late_ones_none() -> None:
    watched = Watched()
    for number in range(MAX_TICKS + 5):
        watched.steps(2 * number, 2 * number + 1)
        watched.lanes(
            LaneEvent(number, LaneKind.ARRIVE, number, (5,), ""),
            LaneEvent(0, LaneKind.TOKENS, number, (number + 1,)),
        )
        assert watched.board.tick("small")
    last = watched.board.last("small")
    assert watched.board.since("small", last) == []
    assert watched.board.since("small", 3) is None
    ticks = watched.board.since("small", last - 40)
    assert ticks is not None
    one = merged(ticks)
    assert one.number == last
    assert len(one.rows) <= TICK_STEPS
    assert sum(row[TIMES] for row in one.rows) == 80
    told = tick_lanes(one.events, ALL)
    assert [row for row in told if row[1] == "o"] == [[0, "o", (MAX_TICKS + 4) * 1e3, MAX_TICKS + 5]]
    assert sum(row[1] == "+" for row in told) == 40


def test_a_restart_forgets_everything_and_begins_an_epoch() -> None:
    watched = Watched()
    epoch = watched.board.epoch("small")
    watched.steps(0)
    watched.lanes(*LIFE)
    watched.board.on_restart("small")
    assert watched.board.epoch("small") == epoch + 1
    hello = watched.board.hello("small", ALL, FACTS)
    assert (hello["steps"]["n"], hello["lanes"], hello["queue"]) == ([], [], (0, 0))


def test_memory_is_bounded_by_time_and_not_by_steps() -> None:
    watched = Watched()
    for number in range(12_000):
        watched.steps(number, every=0.005)
    steps = watched.board.hello("small", ALL, FACTS)["steps"]
    assert len(steps["n"]) <= 2 * RECENT
    assert sum(steps["times"]) == 12_000
    assert sum(steps["decode"]) == 12_000 * 3
    assert steps["times"][-RECENT:] == [1] * RECENT
    watched.lanes(LIFE[0])
    for number in range(500):
        watched.lanes(LIFE[6]._replace(at=number), LIFE[7]._replace(at=number))
    assert len(watched.board.hello("small", ALL, FACTS)["lanes"]) == MAX_KEPT


def test_blocks_of_others_have_no_owner_and_their_trees_are_not_shown() -> None:
    watched = Watched()
    watched.lanes(LIFE[0], LIFE[1])
    assert watched.board.blocks("small", ALL) is None
    pool = PoolPicture(100, 60, 20, 2, 3, 0, ((7, 10), (8, 5)))
    trees = (
        TreeOutline("key:a", (TreeNode(-1, 0, 2, 1, None),), True),
        TreeOutline("key:c", (TreeNode(-1, 0, 9, 0, 0.5),), True),
    )
    watched.board.on_picture("small", 1.0, KVPicture((pool,), trees))
    seen = watched.board.blocks("small", ALL)
    assert seen is not None
    assert (seen["groups"][0]["held"], seen["groups"][0]["others"]) == ([(7, 10), (8, 5)], 0)
    assert len(seen["trees"]) == 2
    own = watched.board.blocks("small", ACME)
    assert own is not None
    assert (own["groups"][0]["held"], own["groups"][0]["others"]) == ([(7, 10)], 5)
    assert [tree["nodes"] for tree in own["trees"]] == [[[-1, 0, 2, 1, None]]]


def test_lately_has_the_percentiles_of_the_metrics_page_and_of_own_tenants_only() -> None:
    watched = Watched()
    for tenant, tier, seconds in (("acme", "default", 0.3), ("other", "flex", 0.9), ("other", "default", 5.0)):
        watched.metrics.on_served(served(tenant=tenant, tier=tier, first_token_s=seconds))
    lately = watched.board.lately("small", OTHER)
    assert lately["all"]["ttft"] == [pytest.approx(0.9, rel=0.01), pytest.approx(5.0, rel=0.01), 3]
    assert lately["tiers"]["flex"]["ttft"][2] == 1
    assert lately["met"] == {"default": [1, 1], "flex": [1, 0]}
    assert set(lately["tenants"]) == {"other"}
    assert set(watched.board.lately("small", ALL)["tenants"]) == {"acme", "other"}
    assert lately["stalls"] == {"preempted": pytest.approx(0.15)}
    assert lately["counts"] is None
    watched.board.on_snapshot("small", snapshot())
    assert watched.board.lately("small", ALL)["counts"]["drafted"] == 9


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200), st.integers(1, 70))
def test_folding_keeps_sums_and_order(rows: list[int], most: int) -> None:
    plain = [
        row_of(step(number=n, started=n * 0.1, moves_s=0.0, prefill_rows=size, read=size), 0.0)
        for n, size in enumerate(rows)
    ]
    found = folded(plain, most)
    assert len(found) <= most
    for column in (PREFILL, DECODE, READ, TIMES):
        assert sum(row[column] for row in found) == sum(row[column] for row in plain)
    assert sum(row[MS] for row in found) == pytest.approx(sum(row[MS] for row in plain))
    assert [row[N] for row in found] == sorted(row[N] for row in found)
    assert found[0][T] == plain[0][T]
    assert found[-1][END] == plain[-1][END]
    assert set(columns(found)) == set(COLUMNS)
