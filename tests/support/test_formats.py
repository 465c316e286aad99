"""The plain NumPy formats that other tests trust, held against the gguf package and against themselves."""

from __future__ import annotations

import gguf
import numpy as np
import pytest

from tests.support.quantize import quantize, random_rows
from twofold.backends.dequantize import dequantize
from twofold.core.values import FORMATS, QuantFormat

QUANTISED = [fmt for fmt in FORMATS if not fmt.is_float]
WORST_ERROR = {"Q2_K": 0.4, "Q3_K": 0.25, "Q4_0": 0.12, "IQ4_NL": 0.15}
"""Largest error of a rounded normal value over the largest value; 0.1 for other formats."""


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_random_blocks_mean_what_the_gguf_package_says(fmt: QuantFormat) -> None:
    raw = random_rows(fmt, 6, 512, np.random.default_rng(1))
    expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[fmt.name]).reshape(6, 512)
    np.testing.assert_allclose(dequantize(raw, fmt, 512), expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("fmt", FORMATS, ids=lambda fmt: fmt.name)
def test_quantised_values_are_near(fmt: QuantFormat) -> None:
    values = np.random.default_rng(2).standard_normal((5, 512)).astype(np.float32)
    raw = quantize(values, fmt)
    assert raw.shape == (5, fmt.row_bytes(512))
    error = np.abs(dequantize(raw, fmt, 512) - values).max() / np.abs(values).max()
    assert error < WORST_ERROR.get(fmt.name, 0.1)


@pytest.mark.parametrize("fmt", QUANTISED, ids=lambda fmt: fmt.name)
def test_zeros_stay_zeros(fmt: QuantFormat) -> None:
    raw = quantize(np.zeros((2, 256), np.float32), fmt)
    assert not dequantize(raw, fmt, 256).any()
