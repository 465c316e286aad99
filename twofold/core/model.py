"""The description of a decoder-only transformer, as data. Files are read into it, engines run it, planners count it.

    ModelSpec    vocabulary, sizes, context, head tied or not, and the layers in order
    LayerSpec    an attention (grouped, latent), a feed-forward (gated, plain, experts), norms, rotation, formats

Sizes count values. How keys and values are stored is not part of a spec: `KVLayout` has it.
Tables of published sizes leave the numbers that no cost depends on (norms, rotations, scales) at their defaults.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Final, Literal, TypeAlias

from twofold.core.errors import UnsupportedModelError
from twofold.core.values import BF16, ValueFormat

Activation = Literal["silu", "gelu_tanh"]
QkNorm = Literal["head", "all"]
"""Norms of queries and keys: one weight for each value of a head, or of all heads together."""
RopePairs = Literal["adjacent", "halves"]
"""The values that a rotation pairs: (0, 1), (2, 3) … or (i, i + dims / 2)."""


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions divided by ``factor``."""

    factor: float


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """YaRN (Peng et al. 2023): high frequencies kept, low ones interpolated, attention temperature adjusted."""

    factor: float
    original_context: int
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    extrapolation: float = 1.0
    attention_factor: float = 1.0


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """One divisor for each frequency (Llama 3's wavelength rule, LongRoPE); ``magnitude`` scales cos and sin."""

    factors: tuple[float, ...]
    magnitude: float = 1.0


RopeScaling = LinearScaling | YarnScaling | FactorScaling


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding over the first ``dims`` values of a head."""

    dims: int
    base: float
    pairs: RopePairs
    scaling: RopeScaling | None = None


@dataclass(frozen=True, slots=True)
class Paged:
    """Keys and values of ``kv_heads`` heads of ``head_dim`` values for each position, in blocks.

    Positions are kept while a row's ``window`` of positions may see them; None: to the end of the sequence.
    """

    window: int | None
    kv_heads: int
    head_dim: int


@dataclass(frozen=True, slots=True)
class PagedLatent:
    """A latent vector of ``rank`` values and a rotated key for each position, in blocks; ``window`` as in ``Paged``."""

    window: int | None
    rank: int
    rope_dim: int


@dataclass(frozen=True, slots=True)
class State:
    """Memory of fixed size: each sequence owns ``nbytes``, which every token overwrites. Sequences never share it."""

    nbytes: int
    window: ClassVar[None] = None


KVKind: TypeAlias = Paged | PagedLatent | State
"""What a layer keeps of a sequence."""


@dataclass(frozen=True, slots=True)
class GroupedAttention:
    """Multi-head, grouped-query or multi-query attention: query heads share heads of keys and values.

    ``window`` counts the positions that a row sees, itself included. ``sinks``: one learnt logit for each head.
    ``scale`` multiplies q·k; None is head_dim^-½. ``softcap`` bounds the logits. ``output_gate``: the query projection
    also makes a gate for the output (Qwen3-Next).
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qk_norm: QkNorm | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False
    scale: float | None = None
    softcap: float | None = None
    output_gate: bool = False

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def output_size(self) -> int:
        return self.query_size

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def kv_values(self) -> int:
        """Values that a token adds to the cache: keys and values of each KV head."""
        return 2 * self.kv_size

    @property
    def kept(self) -> Paged:
        return Paged(self.window, self.kv_heads, self.head_dim)

    @property
    def score_scale(self) -> float:
        """The factor of q·k."""
        return 1 / math.sqrt(self.head_dim) if self.scale is None else self.scale


@dataclass(frozen=True, slots=True)
class LatentAttention:
    """Multi-head latent attention (DeepSeek-V2, 2024): a latent vector and a rotated key of each token are cached."""

    heads: int
    q_rank: int | None
    kv_rank: int
    rope_dim: int
    nope_dim: int
    v_dim: int
    window: int | None = None

    @property
    def query_size(self) -> int:
        return self.heads * (self.nope_dim + self.rope_dim)

    @property
    def output_size(self) -> int:
        return self.heads * self.v_dim

    @property
    def kv_values(self) -> int:
        """Values that a token adds to the cache, for any number of heads."""
        return self.kv_rank + self.rope_dim

    @property
    def kept(self) -> PagedLatent:
        return PagedLatent(self.window, self.kv_rank, self.rope_dim)


@dataclass(frozen=True, slots=True)
class RecurrentAttention:
    """Gated delta rule (Yang et al., 2024): a sequence keeps a state of fixed size and no keys and values.

    Each of ``heads`` keeps a matrix of ``key_dim`` × ``value_dim``; ``heads // key_heads`` of them share a key head.
    Queries, keys and values first pass through a causal convolution over ``conv`` tokens.
    """

    heads: int
    key_heads: int
    key_dim: int
    value_dim: int
    conv: int
    window: ClassVar[None] = None
    kv_values: ClassVar[int] = 0

    @property
    def query_size(self) -> int:
        """Width of the projection that is convolved: queries, keys and values."""
        return 2 * self.key_heads * self.key_dim + self.output_size

    @property
    def output_size(self) -> int:
        return self.heads * self.value_dim

    @property
    def state_values(self) -> int:
        """Values of all heads' matrices, which are kept in float32."""
        return self.output_size * self.key_dim

    @property
    def conv_values(self) -> int:
        """Values of the earlier tokens that the convolution reads for the next one."""
        return (self.conv - 1) * self.query_size

    @property
    def kept(self) -> State:
        """As engines keep it: everything in float32."""
        return State(4 * (self.state_values + self.conv_values))


@dataclass(frozen=True, slots=True)
class GatedFFN:
    """down(activation(gate(x)) · up(x)), with ``size`` values between."""

    size: int
    bias: bool = False
    activation: Activation = "silu"


@dataclass(frozen=True, slots=True)
class PlainFFN:
    """down(activation(up(x))), with ``size`` values between."""

    size: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class ExpertFFN:
    """``count`` gated feed-forwards of ``size``, of which the router picks ``active`` for a row.

    ``shared`` is the total size of the experts that every row passes through.
    """

    count: int
    active: int
    size: int
    shared: int = 0
    router_bias: bool = False
    bias: bool = False
    shared_gate: bool = False


Attention: TypeAlias = GroupedAttention | LatentAttention | RecurrentAttention
FeedForward: TypeAlias = GatedFFN | PlainFFN | ExpertFFN


@dataclass(frozen=True, slots=True)
class Formats:
    """How tensors are stored: matrices, vectors, and exceptions by name."""

    matrices: ValueFormat = BF16
    vectors: ValueFormat = BF16
    special: tuple[tuple[str, ValueFormat], ...] = ()

    def of(self, tensor: str, *, vector: bool = False) -> ValueFormat:
        """The format of a tensor by its name."""
        for name, found in self.special:
            if name == tensor:
                return found
        return self.vectors if vector else self.matrices


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One layer. ``norms`` is 2, or 4 with a norm after each part too, or 1 if both parts run side by side.

    ``rope`` is None where positions are not rotated.
    """

    attention: Attention
    ffn: FeedForward
    norms: Literal[1, 2, 4] = 2
    formats: Formats = Formats()
    rope: RopeSpec | None = field(default=None, hash=False)


def visible(start: int, rows: int, window: int | None = None) -> int:
    """Σ_{i=1..rows} min(start + i, window): positions that rows from ``start`` on see together, each also itself."""
    growing = rows if window is None else max(0, min(rows, window - start))
    full = 0 if window is None else (rows - growing) * window
    return growing * start + growing * (growing + 1) // 2 + full


def read_positions(start: int, rows: int, window: int | None = None) -> int:
    """Positions that at least one of the rows sees."""
    end = start + rows
    return end if window is None else min(end, window + rows - 1)


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that keep the same ``kind`` of things: these are kept and freed together. Block tables, pools and moves
    know a group by its ``number``."""

    kind: KVKind
    layers: tuple[int, ...]
    number: int = 0

    @property
    def window(self) -> int | None:
        return self.kind.window

    @property
    def paged(self) -> Paged:
        """Its kind, for machines that keep nothing else. Raises UnsupportedModelError for another one."""
        if isinstance(self.kind, Paged):
            return self.kind
        kept = "a state" if isinstance(self.kind, State) else "latent vectors"
        raise UnsupportedModelError(
            f"Layer {self.layers[0]} keeps {kept} of a sequence; this backend keeps keys and values of heads only.",
            hint="Use a model whose layers all have multi-head or grouped-query attention.",
        )


ROUTER: Final = "router"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer.

    ``context_length`` is the longest sequence that the model was made for; ``source`` names the origin of the sizes.
    ``learnt_positions``: rows of the table of position embeddings; 0 without one. ``runs`` are the layers as runs of
    equal layers: (length of the run, layer).
    """

    name: str
    hidden_size: int
    vocab_size: int
    context_length: int
    layers: tuple[LayerSpec, ...]
    tied_head: bool = False
    formats: Formats = Formats()
    source: str = ""
    learnt_positions: int = 0
    architecture: str = ""
    norm_eps: float = 1e-6
    embedding_scale: float = 1.0
    final_softcap: float | None = None
    runs: tuple[tuple[int, LayerSpec], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", _runs(self.layers))

    def __hash__(self) -> int:
        """A hash of the sizes alone, since caches look specs up for every step that is counted."""
        return hash((self.name, self.hidden_size, self.vocab_size, len(self.layers)))

    @property
    def ffn_sizes(self) -> frozenset[int]:
        """The sizes of the layers' feed-forwards."""
        return frozenset(layer.ffn.size for _, layer in self.runs)

    @property
    def has_experts(self) -> bool:
        return any(isinstance(layer.ffn, ExpertFFN) for _, layer in self.runs)

    def kv_groups(self, context: int) -> tuple[KVGroup, ...]:
        """The layers by what they keep: the widest window first, states last. A window of at least ``context`` tokens
        counts as None, so with 0 every position is kept."""
        layers: dict[KVKind, list[int]] = {}
        for index, layer in enumerate(self.layers):
            kind: KVKind = layer.attention.kept
            if not isinstance(kind, State) and kind.window is not None and kind.window >= context:
                kind = replace(kind, window=None)
            layers.setdefault(kind, []).append(index)
        order = sorted(layers, key=lambda kind: (isinstance(kind, State), -(kind.window or context)))
        return tuple(KVGroup(kind, tuple(layers[kind]), number) for number, kind in enumerate(order))

    def stored_as(self, matrices: ValueFormat, *, embedding: ValueFormat | None = None) -> ModelSpec:
        """The same model with its layers' matrices in another format.

        Norms, biases and routers stay as they are, as quantisers leave them; so do the embedding and the head unless
        ``embedding`` gives a format for both.
        """
        outer = replace(self.formats, matrices=embedding, special=()) if embedding else self.formats
        return replace(
            self,
            formats=outer,
            layers=tuple(layer for count, run in self.runs for layer in [_stored_as(run, matrices)] * count),
        )


def _stored_as(layer: LayerSpec, matrices: ValueFormat) -> LayerSpec:
    router = layer.formats.of(ROUTER)
    return replace(layer, formats=Formats(matrices, layer.formats.vectors, ((ROUTER, router),)))


def _runs(layers: Sequence[LayerSpec]) -> tuple[tuple[int, LayerSpec], ...]:
    """Layers in order, as runs of equal ones."""
    found: list[tuple[int, LayerSpec]] = []
    for layer in layers:
        if found and (found[-1][1] is layer or found[-1][1] == layer):
            found[-1] = (found[-1][0] + 1, layer)
        else:
            found.append((1, layer))
    return tuple(found)
