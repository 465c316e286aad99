"""The block pool's laws, by example and against a model in random order."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from twofold.core.errors import ResourceError
from twofold.engine.kv.pool import BlockPool, blocks_for

BLOCKS = 12


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (16, 1), (17, 2), (32, 2)])
def test_blocks_for(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens, 16) == blocks


def test_taking_too_many_takes_none() -> None:
    pool = BlockPool(4, 16)
    pool.take(3)
    with pytest.raises(ResourceError, match="2 KV blocks"):
        pool.take(2)
    assert (pool.free, pool.held) == (1, 3)


def test_a_shared_block_is_free_after_its_last_holder() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.take(1)
    pool.retain(blocks)
    pool.release(blocks)
    assert pool.held == 1
    pool.release(blocks)
    assert pool.free == 2


def test_free_blocks_cannot_be_released_or_shared() -> None:
    pool = BlockPool(2, 16)
    blocks = pool.take(1)
    pool.release(blocks)
    with pytest.raises(AssertionError, match="is free"):
        pool.release(blocks)
    with pytest.raises(AssertionError, match="is free"):
        pool.retain(blocks)
    with pytest.raises(AssertionError, match="does not exist"):
        pool.release([2])


def test_an_impossible_pool_is_refused() -> None:
    with pytest.raises(ValueError, match="impossible"):
        BlockPool(0, 16)


def test_check_sees_a_corrupt_pool() -> None:
    pool = BlockPool(2, 16)
    pool._free.pop()
    with pytest.raises(AssertionError, match="disagree"):
        pool.check()


class PoolMachine(RuleBasedStateMachine):
    """Takes, shares and releases in random order; ``held`` is the truth the pool is compared with."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(BLOCKS, 16)
        self.held: Counter[int] = Counter()

    @rule(count=st.integers(0, BLOCKS + 1))
    def take(self, count: int) -> None:
        free = BLOCKS - len(self.held)
        if count > free:
            with pytest.raises(ResourceError):
                self.pool.take(count)
            return
        taken = list(self.pool.take(count))
        assert len(set(taken)) == count
        assert not set(taken) & self.held.keys()
        self.held.update(taken)

    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        if self.held:
            block = data.draw(st.sampled_from(sorted(self.held)))
            self.pool.retain([block])
            self.held[block] += 1

    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.integers(0, BLOCKS - 1))
        if block not in self.held:
            with pytest.raises(AssertionError):
                self.pool.release([block])
            return
        self.pool.release([block])
        self.held[block] -= 1
        self.held += Counter()  # drops what nobody holds

    @invariant()
    def laws(self) -> None:
        self.pool.check()
        assert self.pool.free + self.pool.held == BLOCKS
        assert {b: n for b in range(BLOCKS) if (n := self.pool.references(b))} == self.held


PoolMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestPoolMachine = PoolMachine.TestCase
