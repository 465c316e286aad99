"""What a model is made of, as far as its cost depends on it: sizes, kinds of attention and feed-forward, formats.

    ModelShape    vocabulary, hidden size, context, head tied or not, and runs of equal layers
    LayerShape    an attention (Grouped, Latent), a feed-forward (Gated, Plain, Experts), norms, formats

Sizes count values. Tensors have the names that GGUF files give them, without layer number and ``.weight``; the formats
of weights go by these names. A shape says nothing of how keys and values are stored: that is a choice of who serves.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

from twofold.core.values import BF16, ValueFormat

QkNorm = Literal["head", "all"]
"""Norms of queries and keys: one weight for each value of a head, or of all heads together."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """Multi-head, grouped-query or multi-query attention: query heads share heads of keys and values.

    ``window`` counts the positions that a row sees, itself included. ``sinks``: one learnt logit a head.
    """

    heads: int
    kv_heads: int
    head_dim: int
    window: int | None = None
    qk_norm: QkNorm | None = None
    qkv_bias: bool = False
    output_bias: bool = False
    sinks: bool = False

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    @property
    def kv_values(self) -> int:
        """Values that a token leaves in the cache: keys and values of each KV head."""
        return 2 * self.kv_size


@dataclass(frozen=True, slots=True)
class Latent:
    """Multi-head latent attention (DeepSeek-V2, 2024): a token leaves one latent vector and one rotated key."""

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
        """Values that a token leaves in the cache, whatever the number of heads."""
        return self.kv_rank + self.rope_dim


@dataclass(frozen=True, slots=True)
class Gated:
    """down(activation(gate(x)) · up(x)), with ``size`` values between."""

    size: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Plain:
    """down(activation(up(x))), with ``size`` values between."""

    size: int
    bias: bool = False


@dataclass(frozen=True, slots=True)
class Experts:
    """``count`` gated feed-forwards of ``size``, of which the router picks ``active`` for a row.

    ``shared`` values are those of the experts that every row takes, together.
    """

    count: int
    active: int
    size: int
    shared: int = 0
    router_bias: bool = False
    bias: bool = False
    shared_gate: bool = False


Attention: TypeAlias = Grouped | Latent
FeedForward: TypeAlias = Gated | Plain | Experts


@dataclass(frozen=True, slots=True)
class Formats:
    """How tensors are stored: matrices, vectors, and those that differ by name."""

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
class LayerShape:
    """One layer. ``norms`` are 2, or 4 with one after each part, or 1 where both parts run side by side."""

    attention: Attention
    ffn: FeedForward
    norms: Literal[1, 2, 4] = 2
    formats: Formats = Formats()


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A decoder-only transformer. ``layers`` are runs of equal layers, in order: (how many, which).

    ``context`` is the longest sequence that the model was made for; ``source`` says where the sizes are from.
    ``learnt_positions``: a table of position embeddings of so many rows.
    """

    name: str
    hidden: int
    vocab: int
    context: int
    layers: tuple[tuple[int, LayerShape], ...]
    tied_head: bool = False
    formats: Formats = Formats()
    source: str = ""
    learnt_positions: int = 0

    def __hash__(self) -> int:
        """Of the sizes alone: shapes are looked up by it in every step that is counted."""
        return hash((self.name, self.hidden, self.vocab, len(self.layers)))

    @property
    def layer_count(self) -> int:
        return sum(count for count, _ in self.layers)

    @property
    def has_experts(self) -> bool:
        return any(isinstance(layer.ffn, Experts) for _, layer in self.layers)

    def stored_as(self, matrices: ValueFormat, *, embedding: ValueFormat | None = None) -> ModelShape:
        """The same model with its layers' matrices in another format.

        Norms, biases and routers stay as they are, as quantisers leave them; so do the embedding and the head unless
        ``embedding`` gives a format for both.
        """
        outer = replace(self.formats, matrices=embedding, special=()) if embedding else self.formats
        return replace(
            self,
            formats=outer,
            layers=tuple(
                (count, replace(layer, formats=_inner(layer.formats, matrices))) for count, layer in self.layers
            ),
        )


ROUTER = "ffn_gate_inp"


def _inner(formats: Formats, matrices: ValueFormat) -> Formats:
    return Formats(matrices, formats.vectors, ((ROUTER, formats.of(ROUTER)),))


def runs(layers: list[LayerShape]) -> tuple[tuple[int, LayerShape], ...]:
    """Layers in order, as runs of equal ones."""
    found: list[tuple[int, LayerShape]] = []
    for layer in layers:
        if found and found[-1][1] == layer:
            found[-1] = (found[-1][0] + 1, layer)
        else:
            found.append((1, layer))
    return tuple(found)
