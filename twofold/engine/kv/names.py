"""Names of pieces of a text by what they hold: chains of keyed digests, one for each piece.

    root        MAC of the model's identity and the cache salt
    name        MAC of the parent's name and the token ids; the parent is the piece before

The key is a secret: a process without it cannot compute names. Names of different salts are independent, so tenants
with salts of their own cannot find out what others ask.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class ChainKeys:
    """The secret of the names (at most 64 bytes), and the identity of the model whose keys and values the pieces hold.

    ``purpose`` and ``name_bytes`` tell chains of one secret apart.
    """

    secret: bytes
    identity: bytes
    purpose: ClassVar[bytes]
    name_bytes: ClassVar[int]

    def root(self, salt: str) -> bytes:
        """The parent of the first pieces of a salt."""
        return self._mac(b"root", self.identity, salt.encode("utf-8", "surrogatepass"))

    def name(self, parent: bytes, tokens: bytes) -> bytes:
        """The name of a piece."""
        return self._mac(self.purpose, parent, tokens)

    def names(self, salt: str, text: bytes, size: int) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Parent, name and token ids of each whole piece of ``size`` bytes of a text."""
        parent = self.root(salt)
        for start in range(0, len(text) - size + 1, size):
            tokens = text[start : start + size]
            name = self.name(parent, tokens)
            yield parent, name, tokens
            parent = name

    def _mac(self, purpose: bytes, *parts: bytes) -> bytes:
        digest = hashlib.blake2b(key=self.secret, digest_size=self.name_bytes, person=purpose)
        for part in parts:
            digest.update(part)
        return digest.digest()


class BlockKeys(ChainKeys):
    """Names of blocks in the index of a fleet, by the secret of the fleet: 16 bytes each."""

    __slots__ = ()
    purpose = b"block"
    name_bytes = 16


def of_group(name: bytes, group: int) -> bytes:
    """The name of another KV group's block at the place of the first group's block ``name``."""
    return name[:-1] + bytes((name[-1] ^ group,))


class BlockJournal:
    """The names of blocks in a prefix tree, and those that were added and removed since the last ``take``.

    If the first KV group has a window, blocks after one that has left the tree have no names.
    """

    def __init__(self, keys: BlockKeys) -> None:
        self._keys = keys
        self._names: defaultdict[int, dict[int, bytes]] = defaultdict(dict)
        self._added: dict[bytes, None] = {}
        self._removed: dict[bytes, None] = {}

    @property
    def names(self) -> list[bytes]:
        """The names of all blocks in the tree."""
        return [name for names in self._names.values() for name in names.values()]

    def add(self, block: int, parent: int | str, tokens: bytes) -> None:
        """A block of the first group joins the tree, with these tokens after its ``parent``: a block, or the salt of
        the first ones."""
        before = self._keys.root(parent) if isinstance(parent, str) else self._names[0].get(parent)
        if before is not None:
            self._add(0, block, self._keys.name(before, tokens))

    def add_beside(self, group: int, block: int, first: int) -> None:
        """A block of another group joins the tree, at the place of the first group's block ``first``."""
        name = self._names[0].get(first)
        if name is not None:
            self._add(group, block, of_group(name, group))

    def _add(self, group: int, block: int, name: bytes) -> None:
        self._names[group][block] = name
        if name in self._removed:
            del self._removed[name]
        else:
            self._added[name] = None

    def remove(self, group: int, block: int) -> None:
        """A block leaves the tree."""
        name = self._names[group].pop(block, None)
        if name is None:
            return
        if name in self._added:
            del self._added[name]
        else:
            self._removed[name] = None

    def take(self) -> tuple[list[bytes], list[bytes]]:
        """The names added and removed since the last call: none is in both."""
        found = list(self._added), list(self._removed)
        self._added, self._removed = {}, {}
        return found
