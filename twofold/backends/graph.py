"""The operations of a decoder's step, as a list of nodes.

``Recorder`` implements ``Ops`` and records the calls. A model is traced once; then ``fuse`` joins nodes that one kernel
computes, and a backend turns them into kernel calls (``cpu.program``). Nodes are compared by identity; a node's inputs
are the nodes among its fields.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields

from twofold.core.model import Activation, GroupedAttention, RopeSpec
from twofold.models.ops import TensorRef, Wanted


@dataclass(eq=False, slots=True)
class Node:
    """A result of ``width`` float32 values for each of the step's ``rows``; None: all of them."""

    width: int
    rows: Wanted | None

    def inputs(self) -> Iterator[Node]:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Node):
                yield value

    def replace_inputs(self, replacements: Mapping[Node, Node]) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, Node) and value in replacements:
                setattr(self, f.name, replacements[value])


@dataclass(eq=False, slots=True)
class Embed(Node):
    table: TensorRef
    scale: float


@dataclass(eq=False, slots=True)
class Norm(Node):
    """x / rms(x) · weight, plus ``residual`` if given."""

    x: Node
    weight: TensorRef
    eps: float
    residual: Node | None = None


@dataclass(eq=False, slots=True)
class HeadNorm(Node):
    x: Node
    weight: TensorRef
    eps: float
    heads: int


@dataclass(eq=False, slots=True)
class Linear(Node):
    """x · weightᵀ, plus ``bias`` and ``residual`` if given."""

    x: Node
    weight: TensorRef
    bias: TensorRef | None
    residual: Node | None = None


@dataclass(eq=False, slots=True)
class Add(Node):
    x: Node
    y: Node


@dataclass(eq=False, slots=True)
class Gated(Node):
    gate: Node
    up: Node
    activation: Activation


@dataclass(eq=False, slots=True)
class Rope(Node):
    x: Node
    heads: int
    rope: RopeSpec


@dataclass(eq=False, slots=True)
class StoreKV(Node):
    layer: int
    keys: Node
    values: Node


@dataclass(eq=False, slots=True)
class Rotate(Node):
    """Head norm (if ``norm`` is given) and rotation in one pass; into layer ``store``'s keys, or into rows."""

    x: Node
    heads: int
    rope: RopeSpec
    norm: TensorRef | None
    eps: float
    store: int | None


@dataclass(eq=False, slots=True)
class StoreValues(Node):
    layer: int
    values: Node
    heads: int


@dataclass(eq=False, slots=True)
class Attention(Node):
    layer: int
    q: Node
    spec: GroupedAttention


@dataclass(eq=False, slots=True)
class Select(Node):
    x: Node


@dataclass(eq=False, slots=True)
class Softcap(Node):
    x: Node
    cap: float


@dataclass(slots=True)
class Recorder:
    """``Ops`` that records its calls in order."""

    nodes: list[Node] = field(default_factory=list)

    def _add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def embed(self, table: TensorRef, scale: float) -> Node:
        return self._add(Embed(table.columns, None, table, scale))

    def rms_norm(self, x: Node, weight: TensorRef, eps: float) -> Node:
        return self._add(Norm(x.width, x.rows, x, weight, eps))

    def head_norm(self, x: Node, weight: TensorRef, eps: float, heads: int) -> Node:
        return self._add(HeadNorm(x.width, x.rows, x, weight, eps, heads))

    def linear(self, x: Node, weight: TensorRef, bias: TensorRef | None = None) -> Node:
        return self._add(Linear(weight.rows, x.rows, x, weight, bias))

    def add(self, x: Node, y: Node) -> Node:
        return self._add(Add(x.width, x.rows, x, y))

    def gated(self, gate: Node, up: Node, activation: Activation) -> Node:
        return self._add(Gated(gate.width, gate.rows, gate, up, activation))

    def rope(self, x: Node, heads: int, rope: RopeSpec) -> Node:
        return self._add(Rope(x.width, x.rows, x, heads, rope))

    def store_kv(self, layer: int, k: Node, v: Node) -> None:
        self._add(StoreKV(0, k.rows, layer, k, v))

    def attention(self, layer: int, q: Node, spec: GroupedAttention) -> Node:
        return self._add(Attention(q.width, q.rows, layer, q, spec))

    def select(self, x: Node, rows: Wanted) -> Node:
        return self._add(Select(x.width, rows, x))

    def softcap(self, x: Node, cap: float) -> Node:
        return self._add(Softcap(x.width, x.rows, x, cap))


def fuse(nodes: Sequence[Node]) -> list[Node]:
    """A shorter list of nodes, with those joined that one kernel computes.

        add(x, linear(y))           →  linear with a residual
        add(x, norm(y))             →  norm with a residual
        rope(head_norm(x))          →  rotate
        store_kv(rope(k), v)        →  rotate into the cache, store values

    Only a result with a single use is joined, so nothing is computed twice. The arithmetic stays the same: a kernel
    with a residual rounds as a separate addition does.
    """
    return _split_stores(_join_rotations(_join_residuals(list(nodes))))


def _uses(nodes: Sequence[Node]) -> Counter[Node]:
    return Counter(source for node in nodes for source in node.inputs())


def _rebuild(nodes: Sequence[Node], replaced: dict[Node, Node]) -> list[Node]:
    """The list without the replaced nodes; their uses refer to the replacements."""
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
        # The later term computes the sum, because the other one is available by then.
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
