"""Well-known models as descriptions, a made-up machine, and records of requests that ran alone."""

from __future__ import annotations

from dataclasses import replace

from twofold.core.limits import MachineLimits, ReadSpeed
from twofold.core.model import Formats, GatedFFN, GroupedAttention, LayerSpec, ModelSpec
from twofold.core.record import SequenceRecord
from twofold.core.values import BY_NAME, ValueFormat
from twofold.planner.predict.phase import local_steps
from twofold.planner.predict.steps import StepPredictor


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


def in_file(model: ModelSpec, format: str = "F16") -> ModelSpec:
    """The model as a file stores it: matrices in one format, norms in F32."""
    formats = Formats(ValueFormat.of_gguf(BY_NAME[format]), ValueFormat.of_gguf(BY_NAME["F32"]))
    return replace(model, layers=tuple(replace(layer, formats=formats) for layer in model.layers), formats=formats)


def steps_of(model: ModelSpec, format: str = "F16", limits: MachineLimits | None = None) -> StepPredictor:
    """StepPredictor of such a file on a machine, ``MACHINE`` if none is given."""
    return local_steps(in_file(model, format), limits or MACHINE)


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
