"""Sequences that come, are computed, and stay or go."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from twofold.engine.kv.block_tables import BlockTables
from twofold.engine.kv.manager import BlockManager

BLOCK = 4


def ids(tokens: Iterable[int]) -> array[int]:
    return array("i", tokens)


def store(manager: BlockManager, tokens: Sequence[int], salt: str = "") -> None:
    """Opens a sequence, computes it and closes it."""
    text = ids([*tokens, -1])
    tables = manager.open(text, salt, 0.0, most=len(tokens))
    assert manager.grow(tables, tables.cached, len(tokens), 0.0)
    manager.publish(tables, text, len(tokens), 0.0)
    manager.close(tables, 0.0)


def found(manager: BlockManager, tokens: Sequence[int], salt: str = "") -> int:
    return manager.matched(ids([*tokens, -1]), salt)


def begin(manager: BlockManager, tokens: int, now: float = 0.0, kind: int = 1) -> BlockTables:
    """A sequence with these equal tokens computed."""
    text = array("i", [kind] * tokens + [-1])
    tables = manager.open(text, "", now, most=tokens)
    assert manager.grow(tables, tables.cached, tokens, now)
    manager.publish(tables, text, tokens, now)
    return tables
