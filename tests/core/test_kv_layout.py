"""Bytes of keys and values: of blocks, groups and tokens, in formats of whole and of half bytes."""

from __future__ import annotations

from dataclasses import replace
from typing import get_args

import pytest

from tests.planner.models import SMOLLM2_135M, spec
from twofold.backends.cpu.kernels.cache import LayerBlock
from twofold.core.errors import ParameterError
from twofold.core.kv_layout import (
    K8V4,
    KV_FORMATS,
    Q8,
    KVLayout,
    KVType,
    check_kv_type,
    find_kv_format,
    key_value_bytes,
    position_bytes,
    state_bytes,
)
from twofold.core.model import GroupedAttention, KVGroup, LatentAttention, Paged, RecurrentAttention, State
from twofold.core.values import FP8, FP16, INT4, INT8, MXFP4, ValueFormat

LATENT = LatentAttention(heads=4, q_rank=None, kv_rank=512, rope_dim=64, nope_dim=128, v_dim=128)


def test_recurrent_layers_keep_a_state_and_nothing_for_each_token() -> None:
    """Qwen3-Next: float32 matrices of 128 × 128 for 32 heads, and 3 tokens of 8,192 convolved values."""
    attention = RecurrentAttention(32, 16, 128, 128, 4)
    assert position_bytes(attention.kept, FP16) == 0
    assert attention.kept == State(4 * (32 * 128 * 128 + 3 * 8192))
    assert state_bytes(attention, FP16) == 4 * 32 * 128 * 128 + 2 * 3 * 8192
    assert state_bytes(attention, FP16, devices=2) == state_bytes(attention, FP16) / 2
    assert state_bytes(GroupedAttention(8, 8, 128), FP16) == 0


@pytest.mark.parametrize(("dtype", "size"), [("f16", 2), ("f32", 4)])
def test_a_token_of_smollm2(dtype: KVType, size: int) -> None:
    """2 · 30 layers · 3 heads · 64 values."""
    assert KVLayout(SMOLLM2_135M, KV_FORMATS[dtype]).token_bytes() == 11_520 * size


def test_a_block_has_the_layers_of_its_group() -> None:
    model = spec(4, 32, 64, 2, 1, 16, 100, windows=(8, 8, 8, None))
    layout = KVLayout(model, FP16, 32)
    full, narrow = model.kv_groups(100)
    assert (layout.block_bytes(full), layout.block_bytes(narrow)) == (2_048, 3 * 2_048)
    assert layout.block_bytes(full) + layout.block_bytes(narrow) == 32 * layout.token_bytes()


def test_layers_that_keep_different_things_are_different_groups() -> None:
    """Latent attention, 8 heads of 128 values, a state, and 2 heads of 64 values with a window and without."""
    narrow = GroupedAttention(8, 2, 64, window=100)
    kinds = (
        LATENT,
        GroupedAttention(8, 8, 128),
        RecurrentAttention(4, 2, 16, 16, 4),
        narrow,
        replace(narrow, window=None),
    )
    layers = tuple(replace(SMOLLM2_135M.layers[0], attention=each) for each in kinds)
    layout = KVLayout(replace(SMOLLM2_135M, layers=layers), FP16, 16)
    sizes = [16 * (512 + 64) * 2, 16 * 2 * 8 * 128 * 2, 16 * 2 * 2 * 64 * 2]
    state = 4 * (4 * 16 * 16 + 3 * 128)
    for context, indices, expected in (
        (1000, [(0,), (1,), (4,), (3,), (2,)], [*sizes, sizes[2], state]),
        (100, [(0,), (1,), (3, 4), (2,)], [*sizes[:2], 2 * sizes[2], state]),
    ):
        groups = layout.spec.kv_groups(context)
        assert [group.layers for group in groups] == indices
        assert [group.number for group in groups] == list(range(len(groups)))
        assert [layout.block_bytes(group) for group in groups] == expected
    assert layout.window_bytes(1000) == {None: sum(sizes), 100: sizes[2]}
    assert layout.token_bytes() * 16 == sum(sizes) + sizes[2]


def test_a_draft_model_is_in_the_blocks_of_the_first_group() -> None:
    kinds = (GroupedAttention(8, 2, 64), GroupedAttention(8, 1, 64))
    layers = tuple(replace(SMOLLM2_135M.layers[0], attention=each) for each in kinds)
    model = replace(SMOLLM2_135M, layers=layers)
    alone, both = KVLayout(model, FP16, 16), KVLayout(model, FP16, 16, draft=model)
    first, second = model.kv_groups(1000)
    assert both.block_bytes(first) == alone.block_bytes(first) + 16 * alone.token_bytes()
    assert both.block_bytes(second) == alone.block_bytes(second)
    assert both.token_bytes() == 2 * alone.token_bytes()


def test_devices_share_heads_and_keep_copies_beyond_them() -> None:
    grouped = GroupedAttention(8, 4, 128)
    assert [position_bytes(grouped.kept, FP16, devices) for devices in (1, 2, 4, 8)] == [2_048, 1_024, 512, 512]
    assert position_bytes(LATENT.kept, FP16, 8) == position_bytes(LATENT.kept, FP16) == 1_152


def test_the_engines_blocks_lie_as_the_layout_says() -> None:
    """In a layer of 3 heads of 64 values, a block of 16 positions."""
    block = LayerBlock(3, 64, 16, "f16")
    group = KVGroup(Paged(None, 3, 64), (0,))
    assert block.nbytes == 3 * block.head_bytes == KVLayout(SMOLLM2_135M, FP16, 16).block_bytes(group)


@pytest.mark.parametrize(
    ("values", "size"),
    [
        (FP16, 2 * 8 * 3 * 128 * 2),
        (FP8, 2 * 8 * 3 * 128),
        (INT4, 2 * 8 * 3 * (64 + 2)),
        (MXFP4, 2 * 8 * 3 * (64 + 4)),
        (Q8, 2 * 8 * 3 * (128 + 2)),
        (K8V4, 8 * 3 * (128 + 2 + 64 + 4 * 2 + 2)),
        (ValueFormat("half a byte", 4, "int8"), 8 * 3 * 128),
    ],
    ids=lambda value: value.name if isinstance(value, ValueFormat) else "",
)
def test_formats_with_fractions_and_scales(values: ValueFormat, size: int) -> None:
    """Keys and values of 3 positions of 8 heads of 128 values."""
    assert key_value_bytes(8, 128, 3, values) == size


def test_a_position_costs_the_same_wherever_it_is() -> None:
    for values in (FP16, INT8, INT4):
        assert key_value_bytes(8, 128, 16, values) == 16 * key_value_bytes(8, 128, 1, values)


@pytest.mark.parametrize("head_dim", [64, 80, 128, 256])
@pytest.mark.parametrize(("form", "most"), [(Q8, 0.53), (K8V4, 0.42)], ids=["q8", "k8v4"])
def test_integers_with_their_scales_take_half_and_two_fifths_of_16_bits(
    head_dim: int, form: ValueFormat, most: float
) -> None:
    assert key_value_bytes(2, head_dim, 16, form) <= most * key_value_bytes(2, head_dim, 16, FP16)


def test_formats_of_keys_and_values_by_name() -> None:
    assert [find_kv_format(name) for name in ("q8", " K8V4", "bf16", "fp8")] == [Q8, K8V4, KV_FORMATS["bf16"], FP8]
    with pytest.raises(ParameterError, match="no number format 'q9'"):
        find_kv_format("q9")


@pytest.mark.parametrize(
    ("head_dim", "kv_type", "others"),
    [
        (80, "k8v4", "bf16, f16, f32 or q8"),
        (1024, "q8", "bf16, f16 or f32"),
        (8, "q8", "bf16, f16 or f32"),
        (8, "k8v4", "bf16, f16 or f32"),
    ],
)
def test_a_type_that_a_model_cannot_take_is_an_error_that_names_the_others(
    head_dim: int, kv_type: KVType, others: str
) -> None:
    model = spec(2, 64, 64, 2, 1, head_dim, 100)
    with pytest.raises(ParameterError, match=f"heads of {head_dim} values cannot be cached as {kv_type}") as caught:
        check_kv_type(model, kv_type)
    assert (caught.value.param, caught.value.hint) == ("kv_cache_dtype", f"Use {others}.")
    check_kv_type(model, "bf16")


@pytest.mark.parametrize("head_dim", [64, 96, 128, 256, 512])
def test_usual_models_take_every_type(head_dim: int) -> None:
    for kv_type in get_args(KVType):
        check_kv_type(spec(2, 64, 64, 2, 1, head_dim, 100), kv_type)
