"""Joining what one kernel can do together. Each pass reads the list of nodes and returns a shorter one.

    add(x, linear(y))           →  linear with a residual
    add(x, norm(y))             →  norm with a residual
    rope(head_norm(x))          →  rotate
    store_kv(rope(k), v)        →  rotate into the cache, store values

Only a result that nobody else uses is absorbed, so fusing never computes anything twice. The arithmetic is the same:
a sum with a residual rounds where the separate addition would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from twofold.backends.cpu.graph import Add, HeadNorm, Linear, Node, Norm, Rope, Rotate, StoreKV, StoreValues


def fuse(nodes: Sequence[Node]) -> list[Node]:
    """All passes in order."""
    return _split_stores(_join_rotations(_join_residuals(list(nodes))))


def _uses(nodes: Sequence[Node]) -> Counter[Node]:
    return Counter(source for node in nodes for source in node.inputs())


def _rebuild(nodes: Sequence[Node], replaced: dict[Node, Node]) -> list[Node]:
    """The list without the replaced nodes, every use pointing to what stands for them."""
    kept = [node for node in nodes if node not in replaced]
    for node in kept:
        node.replace_inputs(replaced)
    return kept


def _join_residuals(nodes: list[Node]) -> list[Node]:
    uses, replaced = _uses(nodes), dict[Node, Node]()
    order = {node: index for index, node in enumerate(nodes)}
    for node in nodes:
        node.replace_inputs(replaced)
        if not isinstance(node, Add):
            continue
        # The sum moves to where its later term is computed: then the other one is there.
        for target, other in ((node.y, node.x), (node.x, node.y)):
            if order[other] > order[target]:
                continue
            if isinstance(target, Linear | Norm) and uses[target] == 1 and target.residual is None:
                target.residual = other
                replaced[node] = target
                uses[target] = uses[node]
                break
    return _rebuild(nodes, replaced)


def _join_rotations(nodes: list[Node]) -> list[Node]:
    uses, replaced, result = _uses(nodes), dict[Node, Node](), []
    for node in nodes:
        if not isinstance(node, Rope):
            result.append(node)
            continue
        joined = Rotate(node.width, node.rows, node.x, node.heads, node.rope, None, 0.0, None)
        norm = node.x
        if isinstance(norm, HeadNorm) and uses[norm] == 1:
            result.remove(norm)
            joined.x, joined.norm, joined.eps = norm.x, norm.weight, norm.eps
        replaced[node] = joined
        result.append(joined)
    return _rebuild(result, replaced)


def _split_stores(nodes: list[Node]) -> list[Node]:
    result: list[Node] = []
    for node in nodes:
        if not isinstance(node, StoreKV):
            result.append(node)
            continue
        keys = node.keys
        assert isinstance(keys, Rotate), "keys are rotated before they are stored"
        keys.store = node.layer
        result.append(StoreValues(0, node.rows, node.layer, node.values, keys.heads))
    return result
