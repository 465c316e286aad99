"""Pins: what they protect, for how long, how much may be pinned, and what is counted."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import pytest

from tests.engine.kv.texts import BLOCK, begin, found, store
from twofold.engine.kv.manager import BlockManager, GroupSize


def manager_of(blocks: int, share: float = 0.5, window: int | None = None) -> BlockManager:
    groups = [GroupSize(None, blocks)] + ([GroupSize(window, blocks)] if window else [])
    return BlockManager(groups, BLOCK, pinned_share=share, chunk=8)


def press(manager: BlockManager) -> None:
    """Takes all obtainable blocks."""
    count = min(manager.obtainable())
    store(manager, [2] * (count * BLOCK))


def pinned(manager: BlockManager, tokens: int, seconds: float, now: float = 0.0) -> bool:
    tables = begin(manager, tokens, now)
    done = manager.pin(tables, tokens, seconds, now)
    manager.close(tables, now)
    return done


def test_a_pinned_beginning_survives_pressure_and_goes_after_its_time() -> None:
    manager = manager_of(10)
    assert pinned(manager, 19, 300.0)
    press(manager)
    assert found(manager, [1] * 19) == 16
    manager.expire(299.9)
    assert manager.pinned == (4,)
    manager.expire(300.0)
    assert manager.pinned == (0,)
    press(manager)
    assert found(manager, [1] * 16) == 0
    manager.check()


def test_reading_through_a_pin_prolongs_it_by_its_own_time() -> None:
    manager = manager_of(10)
    pinned(manager, 8, 300.0)
    manager.close(begin(manager, 12, now=200.0), 200.0)
    manager.expire(450.0)
    assert manager.pinned == (2,)
    manager.expire(500.0)
    assert manager.pinned == (0,)


def test_reading_less_than_the_pin_does_not_prolong_it() -> None:
    manager = manager_of(10)
    pinned(manager, 16, 300.0)
    manager.close(begin(manager, 8, now=200.0), 200.0)
    manager.expire(301.0)
    assert manager.pinned == (0,)


def test_a_prompt_that_is_no_longer_than_the_pin_reads_it() -> None:
    manager = manager_of(10)
    pinned(manager, 8, 300.0)
    manager.close(manager.open(array("i", [1] * 8), "", 200.0, most=7), 200.0)
    assert manager.counters.pins[300.0].read == 7
    manager.expire(301.0)
    assert manager.pinned == (2,)


def test_the_longer_time_to_live_wins() -> None:
    manager = manager_of(10)
    pinned(manager, 8, 300.0)
    assert pinned(manager, 8, 3600.0)
    assert pinned(manager, 8, 300.0, now=10.0)
    manager.expire(3609.0)
    assert manager.pinned == (2,)
    manager.expire(3610.0)
    assert manager.pinned == (0,)


def test_no_more_than_the_share_is_pinned() -> None:
    manager = manager_of(10, share=0.3)
    assert not pinned(manager, 16, 300.0)
    assert pinned(manager, 12, 300.0)
    assert manager.counters.pins[300.0].refused == 16
    assert manager.pinned == (3,)
    manager.check()


def test_partial_and_unpublished_blocks_cannot_be_pinned() -> None:
    manager = manager_of(10)
    tables = begin(manager, 6)
    assert not manager.pin(tables, 3, 300.0, 0.0)
    assert not manager.pin(tables, 8, 300.0, 0.0)
    assert manager.pin(tables, 6, 300.0, 0.0)


def test_nested_pins_count_only_the_blocks_that_they_add() -> None:
    manager = manager_of(20)
    pinned(manager, 8, 3600.0)
    pinned(manager, 20, 300.0)
    short, long = manager.counters.pins[300.0], manager.counters.pins[3600.0]
    assert (long.written, short.written) == (8, 12)
    read = long.read
    manager.close(begin(manager, 24), 0.0)
    assert (long.read - read, short.read) == (8, 12)
    manager.expire(300.0)
    assert (short.expired, long.expired) == (12, 0)
    manager.expire(3600.0)
    assert long.expired == 8
    manager.check()


def test_a_pin_ends_while_its_blocks_are_held() -> None:
    manager = manager_of(10)
    tables = begin(manager, 8)
    manager.pin(tables, 8, 300.0, 0.0)
    assert (manager.held, manager.cached, manager.pinned) == ((2,), (0,), (2,))
    manager.expire(300.0)
    assert (manager.held, manager.pinned) == ((2,), (0,))
    manager.close(tables, 300.0)
    assert manager.cached == (2,)


@pytest.mark.parametrize("call", ["open", "grow", "publish", "fork", "pin", "swap_in", "close"])
def test_every_call_with_a_time_ends_expired_pins(call: str) -> None:
    manager = BlockManager([GroupSize(None, 10, host_slots=4)], BLOCK)
    pinned(manager, 8, 300.0)
    tables, other = begin(manager, 5, kind=3), begin(manager, 5, kind=4)
    swapped = manager.swap_out(other)
    assert swapped is not None
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: manager.open(array("i", [5]), "", 301.0, most=0),
        "grow": lambda: manager.grow(tables, 5, 6 * BLOCK, 301.0),
        "publish": lambda: manager.publish(tables, array("i", [3] * 8), 8, 301.0),
        "fork": lambda: manager.fork(tables, 5, 301.0),
        "pin": lambda: manager.pin(tables, 1, 300.0, 301.0),
        "swap_in": lambda: manager.swap_in(swapped, 5, 6, 301.0),
        "close": lambda: manager.close(tables, 301.0),
    }
    assert manager.pinned == (2,)
    calls[call]()
    assert manager.pinned == (0,)


def test_a_pin_keeps_the_blocks_that_a_window_reads_after_it() -> None:
    manager = manager_of(12, window=8)
    tables = begin(manager, 16)
    assert manager.pin(tables, 16, 300.0, 0.0)
    assert manager.pinned == (4, 2)
    manager.close(tables, 0.0)
    press(manager)
    assert found(manager, [1] * 16) == 16
    manager.check()


def test_a_pin_behind_which_a_window_lost_blocks_is_refused() -> None:
    manager = BlockManager([GroupSize(None, 40), GroupSize(8, 5)], BLOCK, chunk=8)
    text = array("i", [1] * 40 + [-1])
    tables = manager.open(text, "", 0.0, most=0)
    for start in range(0, 40, 4):
        assert manager.grow(tables, start, start + 4, 0.0)
        manager.publish(tables, text, start + 4, 0.0)
    assert not manager.pin(tables, 12, 300.0, 0.0)
    assert manager.counters.pins[300.0].refused == 12
    assert manager.pin(tables, 40, 300.0, 0.0)
    manager.check()
