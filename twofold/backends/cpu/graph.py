"""What a decoder asked for, written down: the operations of a step as a list of nodes.

``Recorder`` implements ``Ops`` by remembering. A model is traced once; ``fuse`` then joins nodes that one kernel can do
together, and ``program`` turns them into kernel calls. Nodes are compared by identity; a node's inputs are the nodes
among its fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields

from twofold.backends.cpu.kernels.signature import StepFields
from twofold.core.model import Activation, GroupedAttention, RopeSpec
from twofold.models.ops import TensorRef, Wanted


@dataclass(eq=False, slots=True)
class Node:
    """A result of ``width`` float32 values for each of the step's ``rows`` (ROWS, LOGIT_ROWS or HIDDEN_ROWS)."""

    width: int
    rows: StepFields

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
    """``Ops`` that writes down what is asked, in order."""

    nodes: list[Node] = field(default_factory=list)

    def _add(self, node: Node) -> Node:
        self.nodes.append(node)
        return node

    def embed(self, table: TensorRef, scale: float) -> Node:
        return self._add(Embed(table.columns, StepFields.ROWS, table, scale))

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
        return self._add(Select(x.width, StepFields.LOGIT_ROWS if rows is Wanted.LOGITS else StepFields.HIDDEN_ROWS, x))

    def softcap(self, x: Node, cap: float) -> Node:
        return self._add(Softcap(x.width, x.rows, x, cap))
