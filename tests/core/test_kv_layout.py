"""Bytes of keys and values: of blocks, groups and tokens, in formats of whole and of half bytes."""

from __future__ import annotations

import pytest

from tests.planner.models import SMOLLM2_135M, spec
from twofold.core.kv_layout import KVLayout, KVType, key_value_bytes
from twofold.core.values import FP8, FP16, INT4, INT8, MXFP4, ValueFormat


@pytest.mark.parametrize(("dtype", "size"), [("f16", 2), ("f32", 4)])
def test_a_token_of_smollm2(dtype: KVType, size: int) -> None:
    """2 · 30 layers · 3 heads · 64 values."""
    assert KVLayout.of(SMOLLM2_135M, dtype).token_bytes(30) == 11_520 * size


def test_a_block_has_the_layers_of_its_group() -> None:
    model = spec(4, 32, 64, 2, 1, 16, 100, windows=(8, 8, 8, None))
    layout = KVLayout.of(model, "f16", 32)
    full, narrow = model.kv_groups(100)
    assert layout.head_bytes == layout.layer_bytes == 2 * 16 * 32 * 2
    assert (layout.block_bytes(full), layout.block_bytes(narrow)) == (2_048, 3 * 2_048)
    assert layout.block_bytes(full) + layout.block_bytes(narrow) == 32 * layout.token_bytes(4)


@pytest.mark.parametrize(
    ("values", "size"),
    [
        (FP16, 2 * 8 * 3 * 128 * 2),
        (FP8, 2 * 8 * 3 * 128),
        (INT4, 2 * 8 * 3 * (64 + 2)),
        (MXFP4, 2 * 8 * 3 * (64 + 4)),
        (ValueFormat("int8 with a scale a head", 8, "int8", 128, 1, 2), 2 * 8 * 3 * (128 + 2)),
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
