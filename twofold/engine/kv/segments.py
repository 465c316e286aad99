"""Segments of the KV store: their names, their headers, and the index of those that are on the disk. No I/O.

A segment holds the keys and values of SEGMENT_TOKENS tokens, whole blocks of every KV group. It is immutable, and
named by what it holds (``engine.kv.names``). The key of all MACs is a secret of the store: a process without it can
neither compute names nor forge segments.

    file      header, then for each group its blocks in the order of the backend
    header    magic, version, place in the chain, sizes · identity · name · parent · token ids
              for each group: blocks that are absent at its start, bytes of a block, MAC of its blocks
              MAC of all that

In a group with an attention window the first blocks of a segment may be absent: the window had passed them when the
segment was written. A chain of segments serves a prompt if the last ones have all blocks that its next row reads.
"""

from __future__ import annotations

import hmac
import struct
from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from blake3 import blake3

from twofold.engine.kv.names import ChainKeys

SEGMENT_TOKENS: Final = 256
NAME_BYTES: Final = 32
VERSION: Final = 3
PINNED_SHARE: Final = 0.5
"""At most this share of the store's bytes is pinned."""
_MAGIC: Final = b"2FOLDKV\n"
_SIZES: Final = struct.Struct("<8sIIIIQ")
_GROUP: Final = struct.Struct("<IQ32s")


class StoreKeys(ChainKeys):
    """The secret of a store, and the identity of the model whose keys and values it holds; 32 bytes each."""

    __slots__ = ()
    purpose = b"segment"
    name_bytes = NAME_BYTES

    def chain(self, salt: str, text: bytes) -> Iterator[tuple[bytes, bytes, bytes]]:
        """Parent, name and token ids of each whole segment of a text."""
        return self.names(salt, text, SEGMENT_TOKENS * array("i").itemsize)

    def payload_mac(self, name: bytes, group: int) -> blake3:
        """The MAC of the sums of a group's blocks (``engine.kv_mac``), with a key for this group alone."""
        return blake3(key=self._mac(b"blocks", name, bytes((group,))))

    def hash_key(self, name: bytes, group: int, size: int) -> bytes:
        """The key of these sums."""
        return blake3(key=self._mac(b"chunks", name, bytes((group,)))).digest(length=size)

    def header_mac(self, header: bytes) -> bytes:
        return self._mac(b"header", header)


@dataclass(frozen=True, slots=True)
class SegmentGroup:
    """The blocks of a KV group in a segment: ``skip`` are absent, each of the others has ``block_bytes``."""

    skip: int
    block_bytes: int
    mac: bytes = bytes(NAME_BYTES)


@dataclass(frozen=True, slots=True)
class SegmentHeader:
    """The header of a segment's file: number ``place`` of its chain, with ``blocks`` blocks in each group, absent ones
    included."""

    place: int
    identity: bytes
    name: bytes
    parent: bytes
    tokens: bytes
    blocks: int
    groups: tuple[SegmentGroup, ...]

    @property
    def payload_bytes(self) -> int:
        return sum((self.blocks - group.skip) * group.block_bytes for group in self.groups)

    @property
    def file_bytes(self) -> int:
        return header_bytes(len(self.groups)) + self.payload_bytes

    def without_macs(self) -> SegmentHeader:
        """The header as it is known before the file is read."""
        return replace(self, groups=tuple(replace(group, mac=bytes(NAME_BYTES)) for group in self.groups))

    def pack(self, keys: StoreKeys) -> bytes:
        """The header's bytes."""
        head = _SIZES.pack(_MAGIC, VERSION, self.place, len(self.groups), self.blocks, self.payload_bytes)
        groups = b"".join(_GROUP.pack(group.skip, group.block_bytes, group.mac) for group in self.groups)
        whole = head + self.identity + self.name + self.parent + self.tokens + groups
        return whole + keys.header_mac(whole)

    @classmethod
    def read(cls, raw: bytes, keys: StoreKeys) -> SegmentHeader | None:
        """The header at the start of ``raw``; None if it is damaged, forged, or of another version or identity."""
        if len(raw) < _SIZES.size:
            return None
        magic, version, place, groups, blocks, payload = _SIZES.unpack_from(raw)
        size = header_bytes(groups)
        if magic != _MAGIC or version != VERSION or len(raw) < size:
            return None
        whole, mac = raw[: size - NAME_BYTES], raw[size - NAME_BYTES : size]
        if not hmac.compare_digest(keys.header_mac(whole), mac):
            return None
        start = _SIZES.size + 3 * NAME_BYTES
        identity, name, parent = (whole[at : at + NAME_BYTES] for at in range(_SIZES.size, start, NAME_BYTES))
        end = start + SEGMENT_TOKENS * array("i").itemsize
        parts = tuple(SegmentGroup(*_GROUP.unpack_from(whole, end + i * _GROUP.size)) for i in range(groups))
        header = cls(place, identity, name, parent, whole[start:end], blocks, parts)
        return header if header.identity == keys.identity and header.payload_bytes == payload else None


def header_bytes(groups: int) -> int:
    """Bytes of a header with so many groups."""
    return _SIZES.size + 4 * NAME_BYTES + SEGMENT_TOKENS * array("i").itemsize + groups * _GROUP.size


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """A segment on the disk: its file has ``size`` bytes; ``skip`` are the absent blocks of each group."""

    name: bytes
    parent: bytes
    size: int
    skip: tuple[int, ...]


class SegmentIndex:
    """The segments on the disk, and which of them go first when their bytes exceed ``budget``.

    Laws:
        1. The parent of a segment is a root or in the index, and no older than the segment. So the oldest one has no
           children, and evicting it leaves no orphan.
        2. A pin covers a chain from its root on: the parent of a pinned segment is pinned at least as long.
    """

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.bytes = 0
        self._order: OrderedDict[bytes, StoredSegment] = OrderedDict()
        self._children: dict[bytes, set[bytes]] = {}
        self._pins: dict[bytes, float] = {}

    def __len__(self) -> int:
        return len(self._order)

    def __contains__(self, name: bytes) -> bool:
        return name in self._order

    def get(self, name: bytes) -> StoredSegment | None:
        return self._order.get(name)

    def pinned(self, name: bytes, now: float) -> bool:
        return self._pins.get(name, now) > now

    def add(self, segment: StoredSegment, ancestors: Iterable[bytes]) -> None:
        """Adds a segment, the most recently used one except for its ``ancestors``, nearest first."""
        assert segment.name not in self._order, "a segment is in the index once"
        self._order[segment.name] = segment
        self._children.setdefault(segment.parent, set()).add(segment.name)
        self.bytes += segment.size
        for name in ancestors:
            self._order.move_to_end(name)

    def touch(self, chain: Sequence[bytes]) -> None:
        """Marks a chain, root's child first, as used now."""
        for name in reversed(chain):
            self._order.move_to_end(name)

    def pin(self, chain: Sequence[bytes], until: float, now: float) -> bool:
        """Protects a chain until this time; False if too many bytes are pinned."""
        for name in [name for name, expires in self._pins.items() if expires <= now]:
            del self._pins[name]
        held = sum(self._order[name].size for name in {*self._pins, *chain})
        if held > PINNED_SHARE * self.budget:
            return False
        for name in chain:
            self._pins[name] = max(self._pins.get(name, until), until)
        return True

    def drop(self, name: bytes) -> list[bytes]:
        """Removes a segment and all that follow it; their names, the last ones first."""
        found, waiting = [], [name]
        while waiting:
            each = waiting.pop()
            if each in self._order:
                found.append(each)
                waiting.extend(self._children.get(each, ()))
        found.reverse()
        for each in found:
            segment = self._order.pop(each)
            self._children.pop(each, None)
            siblings = self._children.get(segment.parent)
            if siblings is not None:
                siblings.discard(each)
                if not siblings:
                    del self._children[segment.parent]
            self._pins.pop(each, None)
            self.bytes -= segment.size
        return found

    def make_room(self, size: int, now: float, keep: Iterable[bytes] = ()) -> list[bytes] | None:
        """Evicts the oldest segments until ``size`` more bytes fit; their names, or None, with nothing changed, if that
        is impossible. Pinned ones and those of ``keep`` stay."""
        spare = self.budget - self.bytes - size
        kept, gone = set(keep), []
        for name, segment in self._order.items():
            if spare >= 0:
                break
            if name not in kept and not self.pinned(name, now):
                gone.append(name)
                spare += segment.size
        if spare < 0:
            return None
        return [each for name in gone for each in self.drop(name)]

    def check(self) -> None:
        """Asserts the laws; O(segments)."""
        assert self.bytes == sum(segment.size for segment in self._order.values()), "bytes are counted wrongly"
        rank = {name: place for place, name in enumerate(self._order)}
        children: dict[bytes, set[bytes]] = {}
        for name, segment in self._order.items():
            children.setdefault(segment.parent, set()).add(name)
            if segment.parent in rank:
                assert rank[segment.parent] > rank[name], "a segment is older than one after it"
            parent_pin = self._pins.get(segment.parent, 0.0) if segment.parent in rank else float("inf")
            assert self._pins.get(name, 0.0) <= parent_pin, "a pin does not cover its chain"
        assert children == self._children, "children are recorded wrongly"
        assert self._pins.keys() <= rank.keys(), "a pin without a segment"
