"""Well-known models as descriptions and tensor sizes, a made-up machine, and records of requests that ran alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from twofold.core.model import GatedFFN, GroupedAttention, LayerSpec, ModelSpec
from twofold.core.quant import BY_NAME, QuantFormat
from twofold.core.record import SequenceRecord
from twofold.planner.machine import MachineLimits, ReadSpeed
from twofold.planner.predict.phase import local_steps
from twofold.planner.predict.steps import StepPredictor
from twofold.planner.shapes.spec import shape_of_spec


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


def steps_of(model: ModelSpec, format: str = "F16", limits: MachineLimits | None = None) -> StepPredictor:
    """StepPredictor of such a file on a machine, ``MACHINE`` if none is given."""
    return local_steps(shape_of_spec(model, tensors(model, format)), limits or MACHINE)


def recorded(
    prompt: int, tokens: int, *, cached: int = 0, chunk: int = 512, window: int | None = None
) -> SequenceRecord:
    """A request alone: its prompt in chunks, then a row for each token but the last."""
    record, windows = SequenceRecord(), () if window is None else (window,)
    for start in range(cached, prompt, chunk):
        rows = min(chunk, prompt - start)
        last = int(start + rows == prompt)
        record.prefill.add_step(start, rows, step_rows=rows, logit_rows=last, seconds=0.1, windows=windows)
    for position in range(prompt, prompt + tokens - 1):
        record.decode.add_step(position, 1, step_rows=1, logit_rows=1, seconds=0.1, windows=windows)
    return record


MACHINE = MachineLimits(
    "made up", "avx512", 2, (ReadSpeed(1 << 20, 200e9), ReadSpeed(1 << 30, 10e9)), 1e12, 1e11, "2026-01-01T00:00:00"
)
SMOLLM2_135M = spec(30, 576, 1536, 9, 3, 64, 49_152, tied=True)
LLAMA_3_8B = spec(32, 4096, 14_336, 32, 8, 128, 128_256)
LLAMA_3_70B = spec(80, 8192, 28_672, 64, 8, 128, 128_256)
