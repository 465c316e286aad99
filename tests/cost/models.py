"""Well-known models as descriptions and tensor sizes, from their published configurations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twofold.core.model import GatedFFN, GroupedAttention, LayerSpec, ModelSpec
from twofold.core.quant import BY_NAME, QuantFormat


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor's size."""

    rows: int
    columns: int
    format: QuantFormat

    @property
    def nbytes(self) -> int:
        return self.rows * self.format.row_bytes(self.columns)


def spec(
    layers: int,
    hidden: int,
    ffn: int,
    heads: int,
    kv_heads: int,
    head_dim: int,
    vocab: int,
    *,
    tied: bool = False,
    windows: tuple[int | None, ...] = (None,),
) -> ModelSpec:
    """``windows`` repeat over the layers."""
    attentions = [GroupedAttention(heads, kv_heads, head_dim, window) for window in windows]
    made = tuple(LayerSpec(attentions[i % len(windows)], GatedFFN(ffn)) for i in range(layers))
    return ModelSpec("known", hidden, vocab, 8192, made, tied)


def tensors(model: ModelSpec, format: str = "F16") -> Mapping[str, Stored]:
    """The tensors of such a file, matrices in one format, norms in F32."""
    form, norm = BY_NAME[format], BY_NAME["F32"]
    hidden, ffn, q, kv = model.hidden_size, model.ffn.size, model.attention.query_size, model.attention.kv_size
    found = {"token_embd.weight": Stored(model.vocab_size, hidden, form), "output_norm.weight": Stored(1, hidden, norm)}
    if not model.tied_head:
        found["output.weight"] = Stored(model.vocab_size, hidden, form)
    shapes = {
        "attn_q": (q, hidden), "attn_k": (kv, hidden), "attn_v": (kv, hidden), "attn_output": (hidden, q),
        "ffn_gate": (ffn, hidden), "ffn_up": (ffn, hidden), "ffn_down": (hidden, ffn),
    }  # fmt: skip
    for layer in range(len(model.layers)):
        found |= {f"blk.{layer}.{name}.weight": Stored(*shape, form) for name, shape in shapes.items()}
        found |= {f"blk.{layer}.{name}.weight": Stored(1, hidden, norm) for name in ("attn_norm", "ffn_norm")}
    return found


SMOLLM2_135M = spec(30, 576, 1536, 9, 3, 64, 49_152, tied=True)
LLAMA_3_8B = spec(32, 4096, 14_336, 32, 8, 128, 128_256)
LLAMA_3_70B = spec(80, 8192, 28_672, 64, 8, 128, 128_256)
