"""The prefix tree: which blocks hold the keys and values of which texts, by salt, and which of them are evicted first.

Laws, beside those of ``radix``:
    1. A block is in the tree at one place at most, and is then kept by its pool.
    2. A group without a window has a block at every place. A group with a window may have lost its block at any place.
    3. In a group without a window, tables that hold a block, or a pin on it, also hold or pin all blocks before it.
       Blocks become idle last block first, so every idle block was used later than those after it: the oldest one is
       the end of a leaf.
    4. A leaf's last place has a block of some group.

Eviction is therefore LRU, O(1) for each block, without a heap: the oldest idle block of a group is forgotten. In a
group without a window its place is removed, too; in one with a window a hole stays. An edge that was split stays split.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Sequence
from itertools import count
from typing import Final

from twofold.core.report import TreeNode, TreeOutline
from twofold.engine.kv.block_tables import AttentionWindow
from twofold.engine.kv.names import BlockJournal
from twofold.engine.kv.pins import CacheCounters
from twofold.engine.kv.pool import BlockPool
from twofold.engine.kv.radix import ABSENT, TOKEN_BYTES, Path, RadixNode, Root, follow, look_inside, shared

MAX_OUTLINE: Final = 200
"""Maximum runs of an outline."""


class PrefixTree:
    """The tree over these pools, one for each group; the widest group is the first. ``journals`` name its blocks."""

    def __init__(self, pools: Sequence[BlockPool], windows: Sequence[AttentionWindow], counters: CacheCounters) -> None:
        self._pools = pools
        self._counters = counters
        self._windows = windows
        self._windowed = [(group, window) for group, window in enumerate(windows) if window.positions is not None]
        self._block_size = pools[0].block_size
        self._block_bytes = TOKEN_BYTES * self._block_size
        self._owner: list[list[RadixNode | None]] = [[None] * pool.blocks for pool in pools]
        self._place = [array("i", bytes(4 * pool.blocks)) for pool in pools]
        self._roots: dict[str, Root] = {}
        self.journals: list[BlockJournal] = []

    def follow(self, salt: str, text: bytes) -> Path:
        """The places that the text's whole blocks have in the tree, whether or not all their blocks are there."""
        root = self._roots.get(salt)
        return Path([], 0) if root is None else follow(root, text, self._block_bytes)

    def find(self, salt: str, text: bytes) -> Path:
        """The longest prefix of a text after which a sequence can go on: every block that its next row reads is there,
        including the block in which the prefix ends, which is to be copied."""
        root = self._roots.get(salt)
        if root is None:
            return Path([], 0)
        path = follow(root, text, self._block_bytes)
        look_inside(root, path, text, self._block_bytes)
        if self._windowed:
            self._shorten(path)
        return path

    def put(self, salt: str, node: RadixNode | None, at: int, text: bytes, blocks: Sequence[array[int]]) -> RadixNode:
        """Adds the whole blocks ``text`` after the first ``at`` blocks of the path to ``node``; returns the path's end.

        ``blocks`` are the caller's blocks for each group, ABSENT where it has none. They are replaced in place by the
        tree's: the tree takes the caller's block only where it had none.
        """
        size = self._block_bytes
        node = self._root(salt) if node is None else node
        count, done = len(text) // size, 0
        while done < count:
            inside = at + done - node.start
            left = len(node) - inside
            if left:
                same = shared(text, done * size, node.key, inside * size, size, min(left, count - done))
                self._merge(node, inside, blocks, done, same)
                done += same
                if same < left and done < count:
                    node = self._split(node, inside + same)
                continue
            child = node.children.get(text[done * size : (done + 1) * size])
            if child is None:
                return self._append(node, text[done * size :], [own[done:] for own in blocks])
            node = child
        return node

    def keep_journal(self, journal: BlockJournal) -> None:
        """Keeps a journal from now on, which gets the names of all blocks that are there; O(tokens)."""
        waiting: list[RadixNode] = [child for root in self._roots.values() for child in root.children.values()]
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())  # a block is named by the one before, which is further up
            for group, blocks in enumerate(node.blocks):
                for index, block in enumerate(blocks):
                    if block != ABSENT:
                        self._name(journal, group, block, node, index)
        journal.take()
        self.journals.append(journal)

    def texts(self) -> list[tuple[str, array[int]]]:
        """The texts of all paths with their salts, the most recently used first; O(tokens)."""
        age = self._pools[0].age()
        found: list[tuple[int, str, array[int]]] = []
        for root in self._roots.values():
            waiting = [(child, b"") for child in root.children.values()]
            while waiting:
                node, before = waiting.pop()
                text = before + node.key
                waiting.extend((child, text) for child in node.children.values())
                if not node.children:
                    found.append((age.get(node.blocks[0][-1], len(age)), root.salt, array("i", text)))
        found.sort(key=lambda each: -each[0])
        return [(salt, text) for _, salt, text in found]

    def outline(self, most: int = MAX_OUTLINE) -> tuple[TreeOutline, ...]:
        """At most ``most`` runs, the longest of those whose parent is there; O(unused blocks + children of these
        runs)."""
        age, references = self._pools[0].age(), self._pools[0].references
        found: dict[Root, list[TreeNode]] = {}
        left: Counter[Root] = Counter()
        order, taken = count(), count()
        heap: list[tuple[int, int, Root, RadixNode, int]] = []

        def push(root: Root, node: RadixNode, parent: int) -> None:
            left[root] += len(node.children)
            for child in heapq.nlargest(most, node.children.values(), key=len):
                heapq.heappush(heap, (-len(child), next(order), root, child, parent))

        for root in self._roots.values():
            found[root] = []
            push(root, root, -1)
        while heap and next(taken) < most:
            _, _, root, node, parent = heapq.heappop(heap)
            last, own = node.blocks[0][-1], found[root]
            unused = age[last] / len(age) if last in age else None
            own.append(TreeNode(parent, node.start, len(node), references(last), unused))
            left[root] -= 1
            push(root, node, len(own) - 1)
        return tuple(TreeOutline(root.salt, tuple(own), not left[root]) for root, own in found.items() if own)

    def evict(self, group: int) -> None:
        """Forgets the group's oldest idle block; there must be one."""
        block = self._pools[group].oldest()
        node = self._owner[group][block]
        assert node is not None, f"idle block {block} has no place in the tree"
        if self._windows[group].positions is None:
            assert node.blocks[group][-1] == block, f"idle block {block} is older than one after it"
            self._cut(node)
            return
        node.blocks[group][self._place[group][block] - node.start] = ABSENT
        self._forget(group, block)
        while not node.children and all(blocks[-1] == ABSENT for blocks in node.blocks):
            parent = node.parent
            if self._cut(node):
                assert parent is not None, "a root was cut"
                if not len(parent):
                    return
                node = parent

    def check(self) -> None:
        """Asserts that every node is in order, and that the tree has exactly the blocks that are kept; O(blocks)."""
        seen: list[set[int]] = [set() for _ in self._pools]
        for root in self._roots.values():
            assert root.children, "a root is empty"
            waiting = list(root.children.values())
            while waiting:
                node = waiting.pop()
                waiting.extend(node.children.values())
                self._check_node(node, seen)
        for group, pool in enumerate(self._pools):
            assert seen[group] == {block for block in range(pool.blocks) if pool.kept(block)}, "a kept block is lost"
            if self._windows[group].positions is None:
                self._check_age(group)

    def _shorten(self, path: Path) -> None:
        """Shortens a path until every group with a window has the blocks that a row at the path's end reads.

        If such a block is missing, every earlier end after that block lacks it too, since windows only move forward; so
        the next end to try is at the missing block.
        """
        spans = [(window, path.blocks(group)) for group, window in self._windowed]
        if path.extra:
            end = path.whole * self._block_size + path.extra
            if ABSENT in path.source_blocks() or _last_hole(spans, end, path.whole) != ABSENT:
                path.extra, path.source = 0, None
        while path.whole and not path.extra:
            hole = _last_hole(spans, path.whole * self._block_size, path.whole)
            if hole == ABSENT:
                return
            path.whole = hole

    def _root(self, salt: str) -> Root:
        return self._roots.setdefault(salt, Root(salt, len(self._pools)))

    def _append(self, node: RadixNode, text: bytes, blocks: Sequence[array[int]]) -> RadixNode:
        """Appends blocks after a node: to the node itself if it is a leaf, otherwise in a new child."""
        if node.parent is None or node.children:
            child = RadixNode(node, node.end, bytearray(), tuple(array("i") for _ in blocks))
            node.attach(text[: self._block_bytes], child)
            node = child
        first = node.end
        node.key += text
        for group, own in enumerate(blocks):
            node.blocks[group].extend(own)
            for place, block in enumerate(own, first):
                if block != ABSENT:
                    self._own(group, block, node, place)
        return node

    def _merge(self, node: RadixNode, inside: int, blocks: Sequence[array[int]], done: int, count: int) -> None:
        """Fills the node's holes from ``blocks``, then overwrites ``blocks`` with the node's."""
        for group, own in enumerate(blocks):
            kept = node.blocks[group]
            if ABSENT in kept[inside : inside + count]:
                for index in range(count):
                    block = own[done + index]
                    if kept[inside + index] == ABSENT != block:
                        kept[inside + index] = block
                        self._own(group, block, node, node.start + inside + index)
            own[done : done + count] = kept[inside : inside + count]

    def _split(self, node: RadixNode, count: int) -> RadixNode:
        """Cuts an edge after ``count`` blocks; returns the new node before the cut. The rest stays the same object."""
        size = count * self._block_bytes
        parent, name = node.parent, bytes(node.key[: self._block_bytes])
        assert parent is not None, "a root has no edge"
        head = RadixNode(parent, node.start, node.key[:size], tuple(blocks[:count] for blocks in node.blocks))
        parent.children[name] = head
        node.key = node.key[size:]
        node.blocks = tuple(blocks[count:] for blocks in node.blocks)
        node.start += count
        node.parent = head
        head.attach(bytes(node.key[: self._block_bytes]), node)
        for group, blocks in enumerate(head.blocks):
            for block in blocks:
                if block != ABSENT:
                    self._owner[group][block] = head
        return head

    def _cut(self, node: RadixNode) -> bool:
        """Removes a leaf's last place, then the leaf and its root if they are empty; whether the leaf was removed."""
        assert not node.children, "only the end of a leaf can go"
        for group, blocks in enumerate(node.blocks):
            block = blocks.pop()
            if block != ABSENT:
                self._forget(group, block)
        name = bytes(node.key[: self._block_bytes])
        del node.key[-self._block_bytes :]
        if len(node):
            return False
        parent = node.parent
        assert parent is not None, "a root was cut"
        parent.detach(name)
        if isinstance(parent, Root) and not parent.children:
            del self._roots[parent.salt]
        return True

    def _own(self, group: int, block: int, node: RadixNode, place: int) -> None:
        self._pools[group].keep(block)
        self._owner[group][block] = node
        self._place[group][block] = place
        for journal in self.journals:
            self._name(journal, group, block, node, place - node.start)

    def _name(self, journal: BlockJournal, group: int, block: int, node: RadixNode, index: int) -> None:
        """Enters a block of a node in a journal: by the tokens of its place, and the block before it or the salt."""
        if group:
            journal.add_beside(group, block, node.blocks[0][index])
            return
        text = bytes(node.key[index * self._block_bytes : (index + 1) * self._block_bytes])
        assert node.parent is not None, "a root has no places"
        before = node.parent.salt if isinstance(node.parent, Root) else node.parent.blocks[0][-1]
        journal.add(block, node.blocks[0][index - 1] if index else before, text)

    def _forget(self, group: int, block: int) -> None:
        self._pools[group].forget(block)
        for journal in self.journals:
            journal.remove(group, block)
        self._owner[group][block] = None
        self._counters.evicted += 1

    def _check_node(self, node: RadixNode, seen: list[set[int]]) -> None:
        size, parent = self._block_bytes, node.parent
        assert parent is not None, "a node of the tree has no parent"
        assert parent.children[bytes(node.key[:size])] is node, "a node is not its parent's child"
        assert node.end > node.start == parent.end, "a run is empty, or starts elsewhere than its parent ends"
        assert {len(node.key)} == {len(blocks) * size for blocks in node.blocks}, "a run has other tokens than blocks"
        assert sorted(node.children) == node.order, "the order of children is not theirs"
        assert node.children or any(blocks[-1] != ABSENT for blocks in node.blocks), "a leaf ends in nothing"
        for group, blocks in enumerate(node.blocks):
            for place, block in enumerate(blocks, node.start):
                if block != ABSENT:
                    assert block not in seen[group], "a block has two places"
                    seen[group].add(block)
                    found = self._owner[group][block], self._place[group][block]
                    assert found == (node, place), "a block's place is wrong"
            assert self._windows[group].positions is not None or ABSENT not in blocks, (
                "a block of the whole text is absent"
            )

    def _check_age(self, group: int) -> None:
        """Asserts that the blocks after an idle block are idle, too, and older."""
        age = self._pools[group].age()
        for block in age:
            node = self._owner[group][block]
            assert node is not None, "an idle block has no place"
            after = node.blocks[group][self._place[group][block] - node.start + 1 :][:1]
            following = list(after) or [child.blocks[group][0] for child in node.children.values()]
            assert all(age.get(other, len(age)) < age[block] for other in following), (
                "an idle block is older than its end"
            )


def _last_hole(spans: Sequence[tuple[AttentionWindow, array[int]]], start: int, whole: int) -> int:
    """The last place before ``whole`` that a row at ``start`` reads and where a window has no block, or ABSENT."""
    last = ABSENT
    for window, blocks in spans:
        first = window.first(start, whole)
        if ABSENT in blocks[first:whole]:
            last = max(last, next(i for i in range(whole - 1, first - 1, -1) if blocks[i] == ABSENT))
    return last
