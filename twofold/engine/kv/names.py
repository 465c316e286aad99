"""Names of pieces of a text by what they hold: chains of keyed digests, one for each piece.

    root        MAC of the model's identity and the cache salt
    name        MAC of the parent's name and the token ids; the parent is the piece before

The key is a secret: a process without it cannot compute names. Names of different salts are independent, so tenants
with salts of their own cannot find out what others ask.
"""

from __future__ import annotations

import hashlib
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
