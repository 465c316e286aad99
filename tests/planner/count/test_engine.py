"""Counts against the engine: its decoder run on the meter, and what it counts of its own tensors, to the byte."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.planner.count.steps import batch_of
from tests.planner.models import SMOLLM2_135M, in_file
from tests.support.meter import MeterOps, OpCounter, meter_step
from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.kv_layout import KVLayout, KVType
from twofold.core.model import ModelSpec, visible
from twofold.core.values import BF16
from twofold.formats.base import ModelFile, open_model
from twofold.models.decoder import forward
from twofold.models.read import describe_model, read_model
from twofold.planner.count.memory import kv_bytes_per_token, parameters, streamed_bytes
from twofold.planner.count.step import SequenceRows, StepCost, Work, step
from twofold.planner.machines.machine import engine_setting

ENGINE = engine_setting()
SPANS = (
    (SequenceRows(7),),
    (SequenceRows(40), SequenceRows(1, 63)),
    (SequenceRows(1, 9), SequenceRows(1, 30), SequenceRows(1, 0)),
    (SequenceRows(5, 20, 5), SequenceRows(1, 100), SequenceRows(3, 2, 0)),
    (SequenceRows(9, 30, 0),),
)
MODELS = (
    TinyOptions("llama", tied=False),
    TinyOptions("llama", bias=True, rope_freqs=True),
    TinyOptions("mistral", window=16, format="F16"),
    TinyOptions("qwen2", format="Q8_0"),
    TinyOptions("qwen3", format="Q4_0", embedding_format="Q8_0"),
    TinyOptions("phi3", window=24, tied=False),
    TinyOptions("gemma2", window=16, layers=3),
    TinyOptions("gemma3", window=8, layers=7, format="BF16"),
    TinyOptions.wide("llama", "Q4_K", embedding_format="Q6_K", tied=False),
)


def metered(file: ModelFile, spans: tuple[SequenceRows, ...]) -> MeterOps:
    spec, weights = read_model(file)
    return meter_step(lambda ops: forward(ops, spec, weights), file.tensors, batch_of(spans))


def assert_equal(work: Work, ops: MeterOps) -> None:
    """Every operator that multiplies, or moves weights, keys or values; fused tensors hold what their parts do."""
    fused: dict[str, tuple[str, ...]] = {"qkv": ("q", "k", "v")}
    if "gate" not in ops.meters:
        fused["up"] = ("gate", "up")
    counted = {each.name for each in work.operators}
    for name, meter in ops.meters.items():
        if not any((meter.macs, meter.weight_bytes, meter.kv_read, meter.kv_written)):
            continue  # it only moves activations
        parts = fused.get(name, (name,))
        counted -= set(parts)
        assert totals(work, parts) == measured(meter), name
    assert not counted


def totals(work: Work, names: tuple[str, ...]) -> tuple[float, ...]:
    found = [work.named(name) for name in names]
    return tuple(
        sum(getattr(each, field) for each in found)
        for field in ("flops", "weight_bytes", "kv_read", "kv_written", "calls")
    )


def measured(meter: OpCounter) -> tuple[int, ...]:
    return 2 * meter.macs, meter.weight_bytes, meter.kv_read, meter.kv_written, meter.calls


@pytest.mark.parametrize("options", MODELS, ids=lambda options: f"{options.architecture}-{options.format}")
@pytest.mark.parametrize("spans", SPANS, ids=["prompt", "mixed", "decode", "chunks", "silent"])
def test_every_operator_of_a_step(
    tiny_gguf: Callable[[TinyOptions], TinyModel], options: TinyOptions, spans: tuple[SequenceRows, ...]
) -> None:
    with open_model(tiny_gguf(options).path) as file:
        work = step(describe_model(file), spans, setup=ENGINE)
        ops = metered(file, spans)
        assert_equal(work, ops)
        agrees_with_its_own_count(file, work, ops, spans)


def agrees_with_its_own_count(file: ModelFile, work: Work, ops: MeterOps, spans: tuple[SequenceRows, ...]) -> None:
    """``StepCost``, by which requests are accounted for, says the same."""
    spec, _ = read_model(file)
    cost = StepCost.of(describe_model(file), ENGINE)
    rows, logit_rows = sum(span.new for span in spans), sum(span.logits for span in spans)
    seen = {window: sum(visible(span.cached, span.new, window) for span in spans) for window in cost.windows}
    total = ops.total
    assert work.flops == cost.flops(rows, logit_rows, seen) == 2 * total.macs
    assert work.flops_by_arithmetic().get("int8", 0) == 2 * total.integer_macs
    assert work.weight_bytes == total.weight_bytes == cost.weight_bytes(rows, logits=logit_rows > 0)
    assert work.kv_read == total.kv_read == cost.read_bytes([(1, span) for span in spans])
    assert work.kv_written == rows * KVLayout(spec, BF16).token_bytes()


def every_byte(file: ModelFile, shape: ModelSpec) -> None:
    stored = sum(info.nbytes for name, info in file.tensors.items() if not name.startswith("rope_"))
    table = 0 if shape.tied_head else file.tensors["embedding"].nbytes
    assert streamed_bytes(shape) == stored - table
    values = sum(info.rows * info.columns for name, info in file.tensors.items() if not name.startswith("rope_"))
    assert parameters(shape).total == values


@pytest.mark.parametrize("options", MODELS, ids=lambda options: f"{options.architecture}-{options.format}")
def test_every_tensor_of_a_file(tiny_gguf: Callable[[TinyOptions], TinyModel], options: TinyOptions) -> None:
    with open_model(tiny_gguf(options).path) as file:
        every_byte(file, describe_model(file))


@pytest.mark.model
@pytest.mark.parametrize("alias", ["smollm2-135m", "gemma3-270m", "qwen2.5-coder-1.5b"])
def test_real_files(model_path: Callable[[str], Path], alias: str) -> None:
    spans = (SequenceRows(600, 100), SequenceRows(1, 1000), SequenceRows(1, 40))
    with open_model(model_path(alias)) as file:
        shape = describe_model(file)
        work, ops = step(shape, spans, setup=ENGINE), metered(file, spans)
        assert_equal(work, ops)
        agrees_with_its_own_count(file, work, ops, spans)
        every_byte(file, shape)
        spec, _ = read_model(file)
        assert kv_bytes_per_token(shape, ENGINE) == KVLayout(spec, BF16).token_bytes()


@pytest.mark.parametrize(("kv", "attention"), [("bf16", "bf16"), ("f16", "fp32"), ("f32", "fp32")])
def test_arithmetic_of_attention_and_of_float_weights(kv: KVType, attention: str) -> None:
    work = step(in_file(SMOLLM2_135M, "BF16"), [SequenceRows(1, 9)], setup=engine_setting(kv))
    arithmetic = {each.name: each.arithmetic for each in work.operators}
    assert (arithmetic["attention"], arithmetic["down"]) == (attention, "fp32")
