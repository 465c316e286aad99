"""The index of a hub, after reports of the changes of a prefix tree, knows what the tree would find."""

from __future__ import annotations

from array import array
from random import Random

import pytest

from tests.engine.kv.test_events import happen
from tests.engine.kv.twin import BLOCK, LAYOUTS, Twin
from twofold.engine.kv.names import BlockKeys
from twofold.fleet.routing.index import PrefixIndex

KEYS = BlockKeys(b"s" * 32, b"i")
EVENTS = 1_500


@pytest.mark.parametrize("layout", [name for name, groups in LAYOUTS.items() if groups[0].window is None])
def test_the_index_finds_what_the_tree_finds(layout: str) -> None:
    random, twin = Random(layout), Twin(LAYOUTS[layout], True)
    journal, index = twin.manager.name_blocks(KEYS), PrefixIndex(KEYS, BLOCK)
    index.join(0, twin.groups[0].blocks)
    index.report_all(0, 0, [])
    event = 0
    for _ in range(EVENTS):
        happen(random, twin)
        if random.random() < 0.3:
            added, removed = journal.take()
            event += 1
            assert index.report(0, event, added, removed)
            assert len(index) == len(journal.names)
            for text in twin.texts:
                tokens = text.tokens + array("i", [7])
                found = index.cached(text.salt, tokens, 1)[0]
                if len(twin.groups) == 1:
                    assert found == twin.manager.matched(tokens, text.salt) // BLOCK * BLOCK
                else:  # other groups may have lost what a row reads
                    assert found >= twin.manager.matched(tokens, text.salt) // BLOCK * BLOCK
    assert event > EVENTS / 5
    index.report_all(0, event, journal.names)
    index.check()


def test_a_name_that_returns_at_once_is_no_change() -> None:
    twin = Twin(LAYOUTS["full"], True) if "full" in LAYOUTS else Twin(next(iter(LAYOUTS.values())), True)
    journal = twin.manager.name_blocks(KEYS)
    journal.add(3, "a", b"tokens")
    assert [len(names) for names in journal.take()] == [1, 0]
    journal.remove(3)
    journal.add(5, "a", b"tokens")
    assert journal.take() == ([], [])
    journal.add(6, 99, b"more")  # its parent has no name
    assert journal.take() == ([], [])
    assert len(journal.names) == 1
