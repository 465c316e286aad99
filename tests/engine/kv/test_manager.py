"""The block manager by example: sharing, copies, windows, and the way through host memory."""

from __future__ import annotations

from array import array

import pytest

from tests.engine.kv.texts import BLOCK, begin, found, ids, store
from twofold.core.step import BlockMove, MoveKind
from twofold.engine.kv.block_tables import NEVER, AttentionWindow
from twofold.engine.kv.manager import BlockManager, GroupSize


def manager_of(*groups: GroupSize, caching: bool = True) -> BlockManager:
    return BlockManager(groups, BLOCK, prefix_caching=caching, chunk=8)


def test_a_cached_beginning_is_shared_and_its_last_part_copied() -> None:
    manager = manager_of(GroupSize(None, 10))
    first = begin(manager, 12)
    second = manager.open(ids([1] * 10 + [2]), "", 0.0, most=10)
    assert second.cached == 10
    assert second.blocks[0][:2] == first.blocks[0][:2]
    assert manager.take_moves() == (BlockMove(MoveKind.COPY, 0, first.blocks[0][2], second.blocks[0][2]),)
    assert manager.held == (4,)
    counters = manager.counters
    assert (counters.queries, counters.hits) == (13 + 11, 10)


def test_most_bounds_the_cached_prefix() -> None:
    manager = manager_of(GroupSize(None, 10))
    store(manager, range(12))
    assert [manager.open(ids(range(12)), "", 0.0, most=most).cached for most in (0, 3, 4, 9)] == [0, 3, 4, 9]


def test_without_room_for_a_copy_whole_blocks_are_shared() -> None:
    manager = manager_of(GroupSize(None, 4))
    tables = begin(manager, 16)
    assert manager.open(ids([1] * 10 + [2]), "", 0.0, most=10).cached == 8
    assert manager.take_moves() == ()
    manager.close(tables, 0.0)
    manager.check()


def test_the_same_text_computed_twice_is_kept_once() -> None:
    manager = manager_of(GroupSize(None, 10))
    text = ids([1] * 8 + [2])
    one, two = (manager.open(text, "", 0.0, most=8) for _ in range(2))
    assert manager.grow(one, 0, 9, 0.0)
    assert manager.grow(two, 0, 9, 0.0)
    assert manager.held == (6,)
    manager.publish(one, text, 8, 0.0)
    manager.publish(two, text, 8, 0.0)
    assert manager.held == (4,)
    assert one.blocks[0][:2] == two.blocks[0][:2]
    assert one.blocks[0][2] != two.blocks[0][2]
    manager.check()


def test_a_fork_shares_full_blocks_and_copies_the_last() -> None:
    manager = manager_of(GroupSize(None, 5), caching=False)
    parent = begin(manager, 10)
    child = manager.fork(parent, 10, 0.0)
    assert child is not None
    assert child.cached == 10
    assert child.blocks[0][:2] == parent.blocks[0][:2]
    assert manager.take_moves() == (BlockMove(MoveKind.COPY, 0, parent.blocks[0][2], child.blocks[0][2]),)
    assert manager.fork(parent, 10, 0.0) is not None
    assert manager.fork(parent, 10, 0.0) is None
    assert manager.fork(parent, 8, 0.0) is not None
    manager.check()


def test_a_fork_whose_published_blocks_a_tiny_window_passed_starts_anew_in_the_tree() -> None:
    manager = manager_of(GroupSize(3, 10))
    parent = begin(manager, 12)
    assert manager.grow(parent, 12, 13, 0.0)
    assert parent.first == [2]
    child = manager.fork(parent, 10, 0.0)
    assert child is not None
    assert (child.first, child.published) == ([2], 0)
    manager.check()


def test_a_fork_where_a_window_has_passed_is_a_mistake() -> None:
    manager = manager_of(GroupSize(8, 10))
    parent = begin(manager, 24)
    assert manager.grow(parent, 24, 25, 0.0)
    with pytest.raises(AssertionError, match="passed"):
        manager.fork(parent, 12, 0.0)


def test_without_prefix_caching_nothing_is_found_or_kept() -> None:
    manager = manager_of(GroupSize(None, 5), caching=False)
    store(manager, range(12))
    assert (found(manager, range(12)), manager.free, manager.counters.queries) == (0, (5,), 0)
    tables = begin(manager, 8)
    assert not manager.pin(tables, 8, 300.0, 0.0)


def test_too_few_blocks_change_nothing() -> None:
    manager = manager_of(GroupSize(None, 4))
    store(manager, range(8))
    tables = manager.open(ids([9] * 40), "", 0.0, most=39)
    assert manager.needed(tables, 0, 17) == (5,)
    assert not manager.grow(tables, 0, 17, 0.0)
    assert found(manager, range(8)) == 8
    assert manager.grow(tables, 0, 16, 0.0)
    assert found(manager, range(8)) == 0


def test_a_window_releases_blocks_that_no_row_sees() -> None:
    """Window 8 in chunks of 8: a row at 23 reads from position 16 on, so blocks 0 … 3 can go, and not before."""
    manager = manager_of(GroupSize(None, 20), GroupSize(8, 6), caching=False)
    tables = manager.open(ids(range(40)), "", 0.0, most=0)
    assert manager.grow(tables, 0, 22, 0.0)
    assert manager.grow(tables, 22, 23, 0.0)
    assert tables.first == [0, 2]
    assert manager.needed(tables, 23, 32) == (2, 0)
    assert manager.grow(tables, 23, 32, 0.0)
    assert tables.first == [0, 4]
    assert manager.held == (8, 4)
    manager.check()


@pytest.mark.parametrize(("window", "chunk", "block"), [(10, 8, 4), (1, 64, 16), (64, 64, 16), (3, 4, 16), (7, 16, 32)])
def test_a_block_is_passed_when_no_later_row_reads_its_chunk(window: int, chunk: int, block: int) -> None:
    reach = AttentionWindow(window, chunk, block)
    for row in range(300):
        first = max(0, row - window + 1) // chunk * chunk // block
        assert reach.first(row) == first
        assert first == 0 or reach.passes(first - 1) <= row < reach.passes(first)


def test_the_largest_sequence_is_what_the_widest_pool_holds() -> None:
    assert manager_of(GroupSize(None, 10)).largest() == 40
    assert manager_of(GroupSize(None, 10), GroupSize(8, 4)).largest() == 40
    assert manager_of(GroupSize(None, 10), GroupSize(8, 3)).largest() == 12
    assert manager_of(GroupSize(8, 4)).largest() == NEVER


def test_a_swapped_sequence_shares_the_blocks_still_in_the_tree() -> None:
    manager = manager_of(GroupSize(None, 8, host_slots=4))
    tables = begin(manager, 10)
    before = tables.blocks[0][:]
    swapped = manager.swap_out(tables)
    assert swapped is not None
    assert swapped.blocks == 3
    assert [move.kind for move in manager.take_moves()] == [MoveKind.OUT] * 3
    back = manager.swap_in(swapped, 10, 11, 0.0)
    assert back is not None
    assert back.blocks[0][:2] == before[:2]
    assert [move.kind for move in manager.take_moves()] == [MoveKind.IN]
    assert manager.free_slots == (4,)
    manager.check()


def test_a_swapped_sequence_whose_blocks_are_gone_comes_back_whole() -> None:
    manager = manager_of(GroupSize(None, 4, host_slots=4))
    text = array("i", [1] * 10 + [-1])
    swapped = manager.swap_out(begin(manager, 10))
    assert swapped is not None
    other = begin(manager, 16, kind=2)
    assert manager.swap_in(swapped, 10, 11, 0.0) is None
    manager.close(other, 0.0)
    manager.take_moves()
    back = manager.swap_in(swapped, 10, 11, 0.0)
    assert back is not None
    assert len(manager.take_moves()) == 3
    assert found(manager, [1] * 8) == 0
    manager.publish(back, text, 10, 0.0)
    assert found(manager, [1] * 8) == 8
    manager.check()


def test_without_slots_nothing_is_swapped() -> None:
    manager = manager_of(GroupSize(None, 4, host_slots=2))
    tables = begin(manager, 10)
    assert manager.swap_out(tables) is None
    assert manager.held == (3,)
    assert manager.take_moves() == ()


def test_a_dropped_sequence_frees_its_slots() -> None:
    manager = manager_of(GroupSize(None, 4, host_slots=4))
    swapped = manager.swap_out(begin(manager, 10))
    assert swapped is not None
    manager.drop(swapped)
    assert manager.free_slots == (4,)
    manager.check()


def test_moves_are_returned_once_and_in_order() -> None:
    manager = manager_of(GroupSize(None, 3, host_slots=3))
    one = manager.swap_out(begin(manager, 12))
    assert one is not None
    two = begin(manager, 12, kind=2)
    assert manager.swap_out(two) is None
    manager.close(two, 0.0)
    assert manager.swap_in(one, 11, 12, 0.0) is not None
    assert [move.kind for move in manager.take_moves()] == [MoveKind.OUT] * 3 + [MoveKind.IN] * 3
    assert manager.take_moves() == ()


@pytest.mark.parametrize("windows", [(), (8, None), (None, 8, None)])
def test_groups_without_a_window_are_the_first(windows: tuple[int | None, ...]) -> None:
    with pytest.raises(ValueError, match="those without a window are the first"):
        BlockManager([GroupSize(window, 4) for window in windows], BLOCK)


def test_check_sees_a_lost_block() -> None:
    manager = manager_of(GroupSize(None, 4))
    tables = begin(manager, 10)
    tables.blocks[0].pop()
    with pytest.raises(AssertionError, match="wrong count"):
        manager.check()
