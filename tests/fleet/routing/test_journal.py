"""The index of a hub, after reports of the changes of a prefix tree, knows what the tree would find."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from tests.engine.kv.test_events import random_event
from tests.engine.kv.twin import BLOCK, LAYOUTS, Twin
from twofold.engine.kv.names import BlockKeys
from twofold.fleet.routing.index import PrefixIndex

KEYS = BlockKeys(b"s" * 32, b"i")
EVENTS = 1_500


def usable(twin: Twin, tokens: array[int], salt: str) -> int:
    """The tokens of whole blocks after which a sequence can go on."""
    tree = twin.manager._tree
    path = tree.follow(salt, tokens[:-1].tobytes())
    tree._shorten(path)
    return path.whole * BLOCK


@pytest.mark.parametrize("layout", [name for name, groups in LAYOUTS.items() if groups[0].window is None])
def test_the_index_finds_what_the_tree_finds(layout: str) -> None:
    random, twin = Random(layout), Twin(LAYOUTS[layout], True)
    journal, index = twin.manager.name_blocks(KEYS), PrefixIndex(KEYS, BLOCK, twin.manager.windows[1:])
    index.join(0, sum(group.blocks for group in twin.groups))
    index.report_all(0, 0, [])
    event = lost = 0
    for _ in range(EVENTS):
        random_event(random, twin)
        if random.random() < 0.3:
            added, removed = journal.take()
            event += 1
            assert index.report(0, event, added, removed)
            assert len(index) == len(journal.names)
            for text in twin.texts:
                tokens = text.tokens + array("i", [7])
                found = index.cached(text.salt, tokens, 1)[0]
                assert found == usable(twin, tokens, text.salt) <= twin.manager.matched(tokens, text.salt)
                kept = twin.manager.kept(tokens[:-1], text.salt)[0] * BLOCK
                assert index.cached(text.salt, tokens, 1, usable=False) == [kept]
                lost += found < kept
        if random.random() < 0.01:  # another hub joins
            later = twin.manager.name_blocks(KEYS)
            assert sorted(later.names) == sorted(journal.names)
            twin.manager.end_names(later)
    assert event > EVENTS / 5
    shared = not any(group.state for group in twin.groups)  # a prefix without its state is of no use
    assert bool(lost) == (shared and len(twin.groups) > 1)
    index.report_all(0, event, journal.names)
    index.check()


def test_a_name_that_returns_at_once_is_no_change() -> None:
    twin = Twin(LAYOUTS["full"], True) if "full" in LAYOUTS else Twin(next(iter(LAYOUTS.values())), True)
    journal = twin.manager.name_blocks(KEYS)
    journal.add(3, "a", b"tokens")
    assert [len(names) for names in journal.take()] == [1, 0]
    journal.remove(0, 3)
    journal.add(5, "a", b"tokens")
    assert journal.take() == ([], [])
    journal.add(6, 99, b"more")  # its parent has no name
    assert journal.take() == ([], [])
    assert len(journal.names) == 1
