"""How numbers are stored."""

from __future__ import annotations

import pytest

from twofold.core.errors import ParameterError
from twofold.core.model import Formats, GatedFFN, GroupedAttention, LayerSpec, ModelSpec
from twofold.core.values import (
    BF16,
    FORMATS,
    FP8_BLOCK,
    INT4,
    MXFP4,
    VALUE_FORMATS,
    QuantFormat,
    ValueFormat,
    find_format,
    grouped,
)


@pytest.mark.parametrize("quant", FORMATS, ids=lambda quant: quant.name)
def test_formats_of_gguf_files(quant: QuantFormat) -> None:
    form = ValueFormat.of_gguf(quant)
    assert form.nbytes(3, 512) == 3 * quant.row_bytes(512)
    assert form.bytes_per_value == quant.block_bytes / quant.block_values


def test_tiles_at_the_edges_have_whole_scales() -> None:
    assert FP8_BLOCK.nbytes(128, 128) == 128 * 128 + 4
    assert FP8_BLOCK.nbytes(129, 1) == 129 + 2 * 4
    assert MXFP4.nbytes(2, 33) == 33 + 2 * 2
    assert INT4.bytes_per_value == 0.5 + 2 / 128


def test_other_groups() -> None:
    assert grouped(INT4, 128) == INT4
    assert grouped(INT4, 32).nbytes(1, 64) == 32 + 2 * 2
    assert grouped(INT4, -1).nbytes(10, 4096) == 10 * (2048 + 2)


def test_names() -> None:
    assert find_format(" BF16") == BF16
    assert find_format("q4_K").bits == 4
    assert all(find_format(name) == form for name, form in VALUE_FORMATS.items())
    with pytest.raises(ParameterError, match="no number format 'int44'") as caught:
        find_format("int44")
    assert caught.value.hint is not None
    assert "'int4'" in caught.value.hint


def test_formats_go_by_name() -> None:
    formats = Formats(BF16, special=(("up", INT4), ("attention_norm", MXFP4)))
    assert [formats.of("up"), formats.of("down")] == [INT4, BF16]
    assert formats.of("attention_norm", vector=True) == MXFP4


def test_runs_of_equal_layers() -> None:
    one, other = (LayerSpec(GroupedAttention(1, 1, 8), GatedFFN(size)) for size in (8, 16))
    spec = ModelSpec("runs", 8, 8, 8, (one, one, other, one))
    assert spec.runs == ((2, one), (1, other), (1, one))
    assert ModelSpec("empty", 8, 8, 8, ()).runs == ()
