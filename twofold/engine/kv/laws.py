"""Asserts the laws of the prefix tree and of the block_tables, from first principles; for idle moments and tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from twofold.engine.kv.block_tables import AttentionWindow, BlockTables
from twofold.engine.kv.pool import BlockPool
from twofold.engine.kv.radix import ABSENT, TOKEN_BYTES, RadixNode, Root, path_to
from twofold.engine.kv.tree import PrefixTree


def check_tree(tree: PrefixTree, pools: Sequence[BlockPool], reaches: Sequence[AttentionWindow]) -> None:
    """Every node is in order, and the tree has exactly the blocks that are kept."""
    seen: list[set[int]] = [set() for _ in pools]
    for root in tree.roots():
        assert root.children, "a root is empty"
        for node in _nodes(root):
            _check_node(node, pools[0].block_size)
            for group, blocks in enumerate(node.blocks):
                _check_places(tree, group, node, seen[group])
                assert reaches[group].window is not None or ABSENT not in blocks, "a block of the whole text is absent"
    for group, pool in enumerate(pools):
        assert seen[group] == {block for block in range(pool.blocks) if pool.kept(block)}, "a kept block is lost"
        if reaches[group].window is None:
            _check_age(tree, pool, group)


def check_block_tables(block_tables: Iterable[BlockTables], pools: Sequence[BlockPool]) -> None:
    """The reference counts are those of the block_tables, whose published blocks are the tree's."""
    block_tables = list(block_tables)
    for group, pool in enumerate(pools):
        counts = Counter(block for holding in block_tables for block in holding.own(group))
        assert all(pool.references(block) == counts[block] for block in range(pool.blocks)), "a wrong count"
    for holding in block_tables:
        path = path_to(holding.place(), holding.published)
        assert not path.nodes or isinstance(path.nodes[0].parent, Root), "a holding's path hangs in the air"
        published = holding.published
        assert not published or holding.first[0] < published, "a holding lost its place in the tree"
        for group, (table, first) in enumerate(zip(holding.tables, holding.first, strict=True)):
            assert path.blocks(group)[first:] == table[first:published], "a published block is not the tree's"


def _nodes(root: Root) -> Iterator[RadixNode]:
    waiting = list(root.children.values())
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(node.children.values())


def _check_node(node: RadixNode, block_size: int) -> None:
    size = block_size * TOKEN_BYTES
    parent = node.parent
    assert parent is not None, "a node of the tree has no parent"
    assert parent.children[bytes(node.key[:size])] is node, "a node is not its parent's child"
    assert node.end > node.start == parent.end, "a run is empty, or starts elsewhere than its parent ends"
    assert {len(node.key)} == {len(blocks) * size for blocks in node.blocks}, "a run has other tokens than blocks"
    assert sorted(node.children) == node.order, "the order of children is not theirs"
    assert node.children or any(blocks[-1] != ABSENT for blocks in node.blocks), "a leaf ends in nothing"


def _check_places(tree: PrefixTree, group: int, node: RadixNode, seen: set[int]) -> None:
    for place, block in enumerate(node.blocks[group], node.start):
        if block != ABSENT:
            assert block not in seen, "a block has two places"
            seen.add(block)
            assert (tree.owner(group, block), tree.place(group, block)) == (node, place), "a block's place is wrong"


def _check_age(tree: PrefixTree, pool: BlockPool, group: int) -> None:
    """What comes after an idle block is idle too, and older."""
    age = pool.age()
    for block in age:
        node = tree.owner(group, block)
        assert node is not None, "an idle block has no place"
        after = node.blocks[group][tree.place(group, block) - node.start + 1 :][:1]
        following = list(after) or [child.blocks[group][0] for child in node.children.values()]
        assert all(age.get(other, len(age)) < age[block] for other in following), "an idle block is older than its end"
