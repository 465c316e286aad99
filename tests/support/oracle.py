"""An independent forward pass: one sequence, no cache, no batch, float64, straight from the papers' formulas.

It reads GGUF metadata itself and shares no code with Twofold, so that the two can be held against each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Metadata = Mapping[str, object]


def oracle_logits(metadata: Metadata, weights: Mapping[str, NDArray[np.floating]], tokens: Sequence[int]) -> Array:
    """Logits after each of ``tokens``: float64 [tokens, vocabulary]."""
    return _Oracle(metadata, {name: np.asarray(value, np.float64) for name, value in weights.items()}).logits(tokens)


class _Oracle:
    def __init__(self, metadata: Metadata, weights: Mapping[str, Array]) -> None:
        self.metadata = metadata
        self.arch = str(metadata["general.architecture"])
        self.weights = weights
        self.gemma = self.arch in ("gemma2", "gemma3")
        self.hidden = self.whole("embedding_length")
        self.heads = self.whole("attention.head_count")
        self.eps = self.real("attention.layer_norm_rms_epsilon")

    def real(self, key: str, default: float | None = None) -> float:
        value = self.metadata.get(f"{self.arch}.{key}", default)
        assert isinstance(value, int | float), key
        return float(value)

    def whole(self, key: str, default: int | None = None) -> int:
        return int(self.real(key, default))

    def logits(self, tokens: Sequence[int]) -> Array:
        x: Array = self.weights["token_embd.weight"][list(tokens)]
        if self.gemma:
            x = x * math.sqrt(self.hidden)
        for layer in range(self.whole("block_count")):
            x = self.layer(layer, x)
        head = self.weights.get("output.weight", self.weights["token_embd.weight"])
        logits: Array = self.norm(x, "output_norm") @ head.T
        cap = self.real("final_logit_softcapping", 30.0 if self.arch == "gemma2" else 0.0)
        return cap * np.tanh(logits / cap) if cap else logits

    def layer(self, layer: int, x: Array) -> Array:
        blk = f"blk.{layer}."
        attended = self.attention(layer, self.norm(x, blk + "attn_norm")) @ self.weights[blk + "attn_output.weight"].T
        x = x + (self.norm(attended, blk + "post_attention_norm") if self.gemma else attended)
        fed = self.feed_forward(blk, self.norm(x, blk + "ffn_norm"))
        return x + (self.norm(fed, blk + "post_ffw_norm") if self.gemma else fed)

    def norm(self, x: Array, name: str) -> Array:
        size: Array = np.sqrt((x**2).mean(-1, keepdims=True) + self.eps)
        return x / size * self.weights[name + ".weight"].ravel()

    def feed_forward(self, blk: str, x: Array) -> Array:
        up = x @ self.weights[blk + "ffn_up.weight"].T
        if self.arch == "phi3":
            gate, up = np.split(up, 2, axis=-1)
        else:
            gate = x @ self.weights[blk + "ffn_gate.weight"].T
        return (
            (_gelu(gate) if self.gemma else gate / (1 + np.exp(-gate))) * up @ self.weights[blk + "ffn_down.weight"].T
        )

    def kv_heads(self, layer: int) -> int:
        number = self.metadata.get(f"{self.arch}.attention.head_count_kv", self.heads)
        return int(np.broadcast_to(np.asarray(number), self.whole("block_count"))[layer])

    def head_dim(self, layer: int) -> int:
        everywhere = self.whole("attention.key_length", self.hidden // self.heads)
        return self.whole("attention.key_length_swa", everywhere) if self.is_local(layer) else everywhere

    def qkv(self, layer: int, x: Array) -> tuple[Array, Array, Array]:
        """Heads of queries, keys and values: [heads, tokens, head_dim]."""
        blk, head_dim = f"blk.{layer}.", self.head_dim(layer)
        if self.arch == "phi3":
            whole = x @ self.weights[blk + "attn_qkv.weight"].T
            ends = np.cumsum([self.heads, self.kv_heads(layer)]) * head_dim
            parts = np.split(whole, ends, axis=-1)
        else:
            parts = [self.projected(blk, part, x) for part in "qkv"]
        q, k, v = (part.reshape(len(x), -1, head_dim) for part in parts)
        if self.arch in ("qwen3", "gemma3"):
            q, k = self.norm(q, blk + "attn_q_norm"), self.norm(k, blk + "attn_k_norm")
        return q.swapaxes(0, 1), k.swapaxes(0, 1), v.swapaxes(0, 1)

    def projected(self, blk: str, part: str, x: Array) -> Array:
        bias = self.weights.get(f"{blk}attn_{part}.bias", np.zeros(1))
        return x @ self.weights[f"{blk}attn_{part}.weight"].T + bias.ravel()

    def is_local(self, layer: int) -> bool:
        """The file may list them. Else Gemma 2 alternates, Gemma 3 looks at everything in each sixth layer, others are
        all alike."""
        listed = self.metadata.get(f"{self.arch}.attention.sliding_window_pattern")
        if listed is not None:
            return bool(np.asarray(listed)[layer])
        if self.arch == "gemma2":
            return layer % 2 == 0
        return self.arch != "gemma3" or layer % 6 != 5

    def attention(self, layer: int, x: Array) -> Array:
        q, k, v = self.qkv(layer, x)
        local = self.is_local(layer)
        q, k = self.rope(q, local), self.rope(k, local)
        window = self.whole("attention.sliding_window", 0) if local else 0
        group = self.heads // self.kv_heads(layer)
        mixed = [self.head(q[h], k[h // group], v[h // group], window) for h in range(len(q))]
        return np.concatenate(mixed, axis=-1)

    def head(self, q: Array, k: Array, v: Array, window: int) -> Array:
        """One head, one query at a time."""
        out = np.empty_like(q)
        cap = self.real("attn_logit_softcapping", 50.0 if self.arch == "gemma2" else 0.0)
        for t in range(len(q)):
            first = max(0, t - window + 1) if window else 0
            scores = k[first : t + 1] @ q[t] / math.sqrt(q.shape[-1])
            if cap:
                scores = cap * np.tanh(scores / cap)
            share = np.exp(scores - scores.max())
            out[t] = share / share.sum() @ v[first : t + 1]
        return out

    def rope(self, heads: Array, local: bool) -> Array:
        """Rotates pairs as complex numbers: [heads, tokens, head_dim]."""
        dims = self.whole("rope.dimension_count", heads.shape[-1])
        dims = self.whole("rope.dimension_count_swa", dims) if local else dims
        turned = heads.copy()
        speeds, size = self.speeds(dims, local and self.arch == "gemma3")
        spin = size * np.exp(1j * np.arange(heads.shape[1])[:, None] * speeds)
        even, odd = (slice(0, dims, 2), slice(1, dims, 2))
        if self.arch not in ("llama", "mistral"):
            even, odd = slice(0, dims // 2), slice(dims // 2, dims)
        product = (heads[..., even] + 1j * heads[..., odd]) * spin
        turned[..., even], turned[..., odd] = product.real, product.imag
        return turned

    def speeds(self, dims: int, gemma3_local: bool) -> tuple[Array, float]:
        """Radians a position for each pair, and the magnitude of the rotation."""
        exponents = np.arange(0, dims, 2) / dims
        if gemma3_local:
            return self.real("rope.freq_base_swa", 10_000.0) ** -exponents, 1.0
        plain = self.real("rope.freq_base", 10_000.0) ** -exponents
        if "rope_factors_long.weight" in self.weights:
            return self.longrope(plain)
        if "rope_freqs.weight" in self.weights:
            return plain / self.weights["rope_freqs.weight"].ravel(), 1.0
        factor = self.real("rope.scaling.factor", 1.0)
        if self.metadata.get(f"{self.arch}.rope.scaling.type") == "yarn":
            return _yarn(plain, factor, self.whole("rope.scaling.original_context_length"), dims)
        return plain / factor, 1.0

    def longrope(self, plain: Array) -> tuple[Array, float]:
        context, original = self.whole("context_length"), self.whole("rope.scaling.original_context_length")
        kind = "long" if context > original else "short"
        default = math.sqrt(1 + math.log(max(1, context / original)) / math.log(original))
        factors = self.weights[f"rope_factors_{kind}.weight"].ravel()
        return plain / factors, self.real("rope.scaling.attn_factor", default)


def _yarn(plain: Array, factor: float, original: int, dims: int) -> tuple[Array, float]:
    """Turns in the original context decide: 32 and more are kept, 1 and fewer interpolated, linear in the index."""

    def index_of(turns: float) -> float:
        base = plain[1] ** (-dims / 2)
        return dims * math.log(original / (turns * 2 * math.pi), base) / 2

    low, high = max(0, math.floor(index_of(32))), min(dims - 1, math.ceil(index_of(1)))
    ramp = (np.arange(len(plain)) - low) / max(high - low, 0.001)
    share = np.minimum(1.0, np.maximum(0.0, ramp))
    return plain * (1 - share) + plain / factor * share, 0.1 * math.log(factor) + 1


def _gelu(x: Array) -> Array:
    inner: Array = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + inner)
