"""Formulas against numbers worked out by hand or published."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cost.models import LLAMA_3_8B, LLAMA_3_70B, SMOLLM2_135M, spec, tensors
from twofold.core.kv_layout import KVLayout
from twofold.cost.model import ModelCost, MultiplyAdds
from twofold.formats.gguf import GGUFFile
from twofold.models.read import read_model


def test_keys_and_values_of_llama_3_70b() -> None:
    cost = ModelCost.of(LLAMA_3_70B, tensors(LLAMA_3_70B))
    assert cost.kv_bytes(1, 2) == KVLayout.of(LLAMA_3_70B, "f16").token_bytes(80) == 327_680
    assert cost.kv_bytes(4096, 2) == 4096 * 327_680


def test_parameters_of_llama_3_70b() -> None:
    cost = ModelCost.of(LLAMA_3_70B, tensors(LLAMA_3_70B))
    assert cost.layers.total == pytest.approx(68.451e9, rel=1e-4)
    assert cost.head.total == pytest.approx(1.0507e9, rel=1e-4)


@pytest.mark.parametrize(("model", "tokens"), [(LLAMA_3_70B, 104_448), (LLAMA_3_8B, 53_248)])
def test_attention_equals_the_matrices_where_published(model: object, tokens: int) -> None:
    """S* = P / (L · n_q · d): the prompt whose attention costs as much as its matrices."""
    cost = ModelCost.of(model, tensors(model))  # type: ignore[arg-type]
    assert cost.attention_macs(tokens) == pytest.approx(cost.layers.total * tokens, rel=1e-4)


def test_smollm2_multiply_adds() -> None:
    """30 · (2·576·576 + 2·576·192 + 3·576·1536) for the layers, 576 · 49,152 for the head."""
    cost = ModelCost.of(SMOLLM2_135M, tensors(SMOLLM2_135M, "Q4_1"))
    assert cost.layers == MultiplyAdds(106_168_320, 0)
    assert cost.head == MultiplyAdds(28_311_552, 0)


@pytest.mark.model
def test_smollm2_bytes_of_a_step(default_model: Path) -> None:
    """The file is 98.4 MB, of which 1.8 MB are metadata; every tensor is read, for the head is the embedding."""
    with GGUFFile.open(default_model) as file:
        model, _ = read_model(file.metadata, file.tensors, file.data)
        cost = ModelCost.of(model, file.tensors)
        stored = sum(info.nbytes for info in file.tensors.values())
    assert cost.weight_bytes == stored == 96_576_768
    assert cost.step_bytes([1000], 2) == 96_576_768 + 1000 * 23_040
    assert cost.layers.total == 106_168_320


def test_an_embedding_counts_only_where_it_is_the_head() -> None:
    table = 100 * 32 * 2
    tied, untied = (spec(1, 32, 64, 2, 1, 16, 100, tied=tied) for tied in (True, False))
    costs = [ModelCost.of(model, tensors(model)) for model in (tied, untied)]
    layer = 2 * (32 * 32 * 2 + 16 * 32 * 2 + 3 * 64 * 32) + 3 * 32 * 4
    assert [cost.weight_bytes for cost in costs] == [table + layer, table + layer]


def test_prefill_of_parts_adds_up() -> None:
    model = spec(2, 32, 64, 2, 1, 16, 100, windows=(None, 5))
    cost = ModelCost.of(model, tensors(model))
    whole = cost.attention_macs(20)
    assert cost.attention_macs(7) + cost.attention_macs(13, cached=7) == whole
    by_hand = 2 * 32 * sum(i + min(i, 5) for i in range(1, 21))
    assert whole == by_hand


def test_window_layers_stop_growing() -> None:
    model = spec(4, 32, 64, 2, 1, 16, 100, windows=(8, 8, 8, None))
    cost = ModelCost.of(model, tensors(model))
    assert cost.kv_bytes(100, 2) == 2 * 16 * 2 * (3 * 8 + 100)
    assert cost.kv_bytes(4, 2) == 2 * 16 * 2 * 4 * 4


def test_a_step_of_a_batch_reads_weights_once() -> None:
    cost = ModelCost.of(SMOLLM2_135M, tensors(SMOLLM2_135M))
    assert cost.step_bytes([10, 30], 2) == cost.weight_bytes + 40 * 23_040
    assert cost.step_macs([10, 30]).total == 2 * (106_168_320 + 28_311_552) + 2 * 576 * 30 * 40


def test_float_and_integer_matrices_are_told_apart() -> None:
    floats = ModelCost.of(SMOLLM2_135M, tensors(SMOLLM2_135M, "F16"))
    assert floats.layers == MultiplyAdds(0, 106_168_320)
    assert floats.prefill_macs(2).floating == 2 * 106_168_320 + 28_311_552 + 2 * 576 * 30 * 3
