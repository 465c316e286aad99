"""A radix tree over whole blocks of tokens: its nodes, and the search for the longest cached prefix of a text.

An edge is a run of whole blocks. It is compared in one piece, and a difference is found by bisection, so the cost of a
search depends on the number of edges that it crosses, not of tokens. Children are found by the bytes of their first
block. They are also sorted: the child with the longest common prefix is a neighbour of the wanted block in that order,
so a node may have any number of children.

Laws:
    1. A node's key is the tokens of its run. For each KV group the node has one block number for each block of the run.
    2. The name of a child is the first block of its key, so no two begin alike; ``order`` has the sorted names.
    3. Only a root has an empty run; a root without children is removed.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

TOKEN_BYTES: Final = array("i").itemsize
ABSENT: Final = -1
"""In place of a block of a window's group that is no longer kept."""


class RadixNode:
    """A run of blocks, the first of them the ``start``-th of its path. ``blocks`` holds one array for each group."""

    __slots__ = ("blocks", "children", "key", "order", "parent", "start")

    def __init__(self, parent: RadixNode | None, start: int, key: bytearray, blocks: tuple[array[int], ...]) -> None:
        self.parent = parent
        self.start = start
        self.key = key
        self.blocks = blocks
        self.children: dict[bytes, RadixNode] = {}
        self.order: list[bytes] = []

    def __len__(self) -> int:
        return len(self.blocks[0])

    @property
    def end(self) -> int:
        return self.start + len(self.blocks[0])

    def attach(self, name: bytes, child: RadixNode) -> None:
        """Adds a child that begins with the block ``name``."""
        assert name not in self.children, "two children begin with the same block"
        self.children[name] = child
        insort(self.order, name)

    def detach(self, name: bytes) -> None:
        """Removes a child. The child keeps its ``parent``: block tables reach earlier blocks through it."""
        del self.children[name]
        del self.order[bisect_left(self.order, name)]


class Root(RadixNode):
    """The root of all prompts of one salt."""

    __slots__ = ("salt",)

    def __init__(self, salt: str, groups: int) -> None:
        super().__init__(None, 0, bytearray(), tuple(array("i") for _ in range(groups)))
        self.salt = salt


def after_hole(blocks: array[int]) -> int:
    """The index after the last ABSENT block."""
    return len(blocks) - next((i for i, block in enumerate(reversed(blocks)) if block == ABSENT), len(blocks))


@dataclass(slots=True)
class Path:
    """A prefix that a text shares with the tree: the first ``whole`` blocks along ``nodes``, and ``extra`` more tokens.

    The extra tokens are the first ones of block number ``index`` of the node ``source``.
    """

    nodes: list[RadixNode]
    whole: int
    extra: int = 0
    source: RadixNode | None = None
    index: int = 0

    @property
    def tip(self) -> RadixNode | None:
        return self.nodes[-1] if self.nodes else None

    def blocks(self, group: int) -> array[int]:
        """The group's blocks of the path, ABSENT where it has none."""
        found = array("i")
        for node in self.nodes:
            found.extend(node.blocks[group])
        del found[self.whole :]
        return found

    def text(self, block_size: int) -> bytes:
        """The tokens of the path, as bytes."""
        return b"".join(node.key for node in self.nodes)[: self.whole * block_size * TOKEN_BYTES]

    def source_blocks(self) -> list[int]:
        """The block that begins with the extra tokens, for each group."""
        assert self.source is not None, "a path that ends between blocks has no source"
        return [blocks[self.index] for blocks in self.source.blocks]


def path_to(node: RadixNode | None, whole: int) -> Path:
    """The first ``whole`` blocks of the path that leads to a node."""
    nodes = []
    while node is not None and node.parent is not None:
        nodes.append(node)
        node = node.parent
    return Path(nodes[::-1], whole)


def shared(text: bytes, at: int, key: bytes | bytearray, place: int, unit: int, most: int) -> int:
    """How many units of ``unit`` bytes, at most ``most``, ``text`` from ``at`` and ``key`` from ``place`` share."""
    if text[at : at + most * unit] == key[place : place + most * unit]:
        return most
    low, high = 0, most
    while high - low > 1:
        middle = (low + high) // 2
        size = (middle - low) * unit
        begin = low * unit
        if text[at + begin : at + begin + size] == key[place + begin : place + begin + size]:
            low = middle
        else:
            high = middle
    return low


def follow(root: RadixNode, text: bytes, block_bytes: int) -> Path:
    """The longest path whose blocks ``text`` begins with; O(edges crossed + log of the last one's blocks)."""
    end = len(text) // block_bytes * block_bytes
    node, at, nodes = root, 0, list[RadixNode]()
    while at < end:
        child = node.children.get(text[at : at + block_bytes])
        if child is None:
            break
        node = child
        nodes.append(node)
        size = len(node.key)
        if size != block_bytes and not text.startswith(node.key, at, end):
            most = min(size, end - at) // block_bytes
            return Path(nodes, at // block_bytes + shared(text, at, node.key, 0, block_bytes, most))
        at += size
    return Path(nodes, at // block_bytes)


def look_inside(root: RadixNode, path: Path, text: bytes, block_bytes: int) -> None:
    """Extends a path from ``follow`` by the tokens that the text shares with the start of one more block."""
    at = path.whole * block_bytes
    most = min((len(text) - at) // TOKEN_BYTES, block_bytes // TOKEN_BYTES)
    if not most:
        return
    node = path.nodes[-1] if path.nodes else root
    inside = path.whole - node.start
    candidates: Sequence[tuple[RadixNode, int]] = [(node, inside)]
    if inside == len(node):
        wanted = text[at : at + block_bytes]
        near = bisect_left(node.order, wanted)
        candidates = [(node.children[name], 0) for name in node.order[max(near - 1, 0) : near + 1]]
    for source, index in candidates:
        extra = shared(text, at, source.key, index * block_bytes, TOKEN_BYTES, most)
        if extra > path.extra:
            path.extra, path.source, path.index = extra, source, index
