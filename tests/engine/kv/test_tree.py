"""What the prefix tree finds, and in which order it forgets."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.kv.texts import BLOCK, begin, found, ids, store
from twofold.engine.kv.manager import BlockManager, GroupSize
from twofold.engine.kv.radix import shared

texts = st.lists(st.lists(st.integers(0, 1), max_size=24), min_size=1, max_size=12)


def common(one: Sequence[int], other: Sequence[int]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


@pytest.mark.parametrize("groups", [(None,), (None, 6), (9, 5)], ids=str)
@settings(max_examples=60, deadline=None)
@given(stored=texts, asked=st.lists(st.integers(0, 1), max_size=30))
def test_the_longest_beginning_is_found(
    groups: tuple[int | None, ...], stored: list[list[int]], asked: list[int]
) -> None:
    manager = BlockManager([GroupSize(window, 400) for window in groups], BLOCK, chunk=8)
    for tokens in stored:
        store(manager, tokens)
    manager.check()
    whole = [tokens[: len(tokens) // BLOCK * BLOCK] for tokens in stored]
    assert found(manager, asked) == max(common(tokens, asked) for tokens in whole)


@given(size=st.integers(0, 40), equal=st.integers(0, 40))
def test_bisection_finds_the_first_difference(size: int, equal: int) -> None:
    text = bytes(range(size * 2))
    key = text[: equal * 2] + bytes(255 - byte for byte in text[equal * 2 :])
    assert shared(text, 0, key, 0, 2, size) == min(equal, size)


def test_a_partial_block_is_found_among_many_children() -> None:
    manager = BlockManager([GroupSize(None, 2_100)], BLOCK)
    for number in range(1_000):
        store(manager, [1, number // 100, number // 10 % 10, number % 10])
    assert found(manager, [1, 7, 3, 99]) == 3
    assert found(manager, [1, 7, 99, 99]) == 2
    assert found(manager, [2, 7, 3, 5]) == 0
    assert found(manager, [1, 7, 3, 5, 8]) == 4


def test_salts_share_nothing() -> None:
    manager = BlockManager([GroupSize(None, 10)], BLOCK)
    store(manager, range(8), "one")
    assert (found(manager, range(8), "one"), found(manager, range(8), "two")) == (8, 0)


def test_the_last_token_is_never_taken_from_the_cache() -> None:
    manager = BlockManager([GroupSize(None, 10)], BLOCK)
    store(manager, range(8))
    assert manager.matched(ids(range(8)), "") == 7


def test_looking_changes_nothing() -> None:
    manager = BlockManager([GroupSize(None, 10)], BLOCK)
    store(manager, range(8))
    manager.matched(ids(range(8)), "")
    assert manager.counters.queries == 8 + 1
    assert manager.take_moves() == ()


def test_the_least_recently_used_ends_are_evicted_first() -> None:
    manager = BlockManager([GroupSize(None, 6)], BLOCK)
    store(manager, [1] * 12)
    store(manager, [2] * 12)
    store(manager, [1] * 12)
    store(manager, [3] * 4)
    assert found(manager, [1] * 12) == 12
    assert found(manager, [2] * 12) == 8
    store(manager, [4] * 8)
    assert found(manager, [2] * 12) == 0
    assert found(manager, [1] * 12) == 12
    assert manager.counters.evicted == 3
    manager.check()


def test_copying_from_a_block_is_a_use_of_it() -> None:
    manager = BlockManager([GroupSize(None, 4)], BLOCK)
    store(manager, [1] * 4)
    store(manager, [2] * 4)
    manager.close(manager.open(ids([1, 1, 1, 5]), "", 0.0, most=3), 0.0)
    store(manager, [3] * 12)
    assert (found(manager, [1] * 4), found(manager, [2] * 4)) == (4, 0)


def test_a_shared_beginning_outlives_its_ends() -> None:
    manager = BlockManager([GroupSize(None, 6)], BLOCK)
    for end in range(4):
        store(manager, [9] * 8 + [end] * 4)
    store(manager, [5] * 12)
    assert found(manager, [9] * 12) == 8
    manager.check()


def test_a_window_that_lost_blocks_is_found_where_it_has_them_all() -> None:
    """Group 1 has 6 blocks, in the end the last 6. With windows and chunks of 8 a row at 40 reads 8 and 9, as position
    33 lies in the chunk from 32; a row at 24 reads 4 and 5, and one at 20 reads 2 … 4."""
    manager = BlockManager([GroupSize(None, 40), GroupSize(8, 6)], BLOCK, chunk=8)
    text = ids([*range(40), -1])
    tables = manager.open(text, "", 0.0, most=40)
    for start in range(0, 40, 4):
        assert manager.grow(tables, start, start + 4, 0.0)
        manager.publish(tables, text, start + 4, 0.0)
    manager.close(tables, 0.0)
    assert found(manager, range(40)) == 40
    assert manager.cached == (10, 6)
    assert [found(manager, range(count)) for count in (39, 24, 20)] == [39, 24, 0]
    store(manager, [7] * 4)
    assert [found(manager, range(count)) for count in (40, 24)] == [40, 0]
    manager.check()


def test_an_emptied_tree_keeps_nothing() -> None:
    manager = BlockManager([GroupSize(None, 3)], BLOCK)
    for salt in "abc":
        store(manager, [1] * 12, salt)
    assert [found(manager, [1] * 12, salt) for salt in "abc"] == [0, 0, 12]
    assert len(manager._tree._roots) == 1


def test_an_outline_has_each_run_after_the_one_before_it() -> None:
    manager = BlockManager([GroupSize(None, 100)], BLOCK)
    for end in (2, 3, 4):
        store(manager, [1] * 3 * BLOCK + [end] * 2 * BLOCK)
    store(manager, [5] * BLOCK, salt="s")
    trees = {tree.salt: tree for tree in manager.picture([]).trees}
    first, *rest = trees[""].nodes
    assert (first.parent, first.start, first.blocks, first.holders) == (-1, 0, 3, 0)
    assert [(node.parent, node.start, node.blocks) for node in rest] == [(0, 3, 2)] * 3
    assert all(node.age is not None and 0 <= node.age < 1 for node in rest)
    assert [node.blocks for node in trees["s"].nodes] == [1]
    assert trees[""].whole
    assert trees["s"].whole


def test_an_outline_of_many_runs_has_the_longest_and_says_so() -> None:
    manager = BlockManager([GroupSize(None, 2_000)], BLOCK)
    for number in range(300):
        store(manager, [number] * BLOCK * (1 + number % 5))
    (tree,) = manager.picture([]).trees
    assert not tree.whole
    assert len(tree.nodes) == 200
    assert {node.blocks for node in tree.nodes[:60]} == {5}


def test_a_picture_counts_each_block_once() -> None:
    manager = BlockManager([GroupSize(None, 40)], BLOCK)
    store(manager, [9] * 4 * BLOCK)
    one, two = begin(manager, 3 * BLOCK), begin(manager, 3 * BLOCK)
    alone = begin(manager, 2 * BLOCK, kind=2)
    assert manager.pin(alone, 2 * BLOCK, 60.0, 0.0)
    manager.close(alone, 0.0)
    (pool,) = manager.picture([(1, one), (2, two)]).groups
    assert (pool.blocks, pool.cached, pool.pinned, pool.shared, pool.store) == (40, 4, 2, 3, 0)
    assert pool.held == ((1, 0), (2, 0))
    assert pool.free == 40 - 4 - 2 - 3
