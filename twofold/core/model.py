"""What a decoder-only transformer is, as data. Two architectures that differ in a flag share one description."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Activation = Literal["silu", "gelu_tanh"]
RopePairs = Literal["adjacent", "halves"]
"""Which values a rotation takes together: (0,1),(2,3)… or (i, i + dims/2)."""


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
class LayerSpec:
    """What can differ from layer to layer. ``window`` counts the tokens a row sees, itself included."""

    rope: RopeSpec
    window: int | None = None


ATTENTION_CHUNK: Final = 64
"""Positions that attention takes at a time: a row reads from the beginning of the chunk of the first one it sees."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers whose rows see equally far, and whose keys and values therefore live and die together."""

    window: int | None
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A decoder-only transformer. Sizes are counts of values; ``attention_scale`` multiplies q·k."""

    architecture: str
    name: str
    vocab_size: int
    hidden_size: int
    ffn_size: int
    heads: int
    kv_heads: int
    head_dim: int
    context_length: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    activation: Activation
    attention_scale: float
    embedding_scale: float = 1.0
    attention_softcap: float | None = None
    final_softcap: float | None = None
    qkv_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    tied_head: bool = False

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_size(self) -> int:
        return self.kv_heads * self.head_dim

    def kv_groups(self, context: int) -> tuple[KVGroup, ...]:
        """The layers by window, widest first; a window that hides nothing of ``context`` tokens is none."""
        windows = [None if layer.window is None or layer.window >= context else layer.window for layer in self.layers]
        order = sorted(set(windows), key=lambda window: -(window or context))
        return tuple(KVGroup(w, tuple(i for i, window in enumerate(windows) if window == w)) for w in order)
