"""The CPU kernels against the NumPy reference, for every architecture, format and option."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.backends.cpu.conftest import ISAS
from tests.models.test_decoder import CASES, TABLE, TOKENS
from tests.support.cpu import cpu_model, cpu_sizes
from tests.support.oracle import oracle_logits
from tests.support.reference import load_reference_model, one_sequence
from tests.support.tiny import TinyModel, TinyOptions
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.core.kv_layout import KVType
from twofold.core.values import FORMATS

Make = Callable[[TinyOptions], TinyModel]
Compilers = Callable[[str], Compiler]

SMALL = cpu_sizes(64, 512, 64, 64, kv_type="f32")


@pytest.mark.parametrize("name", [name for name in CASES if name != "quantised"])
def test_float_weights_give_the_oracles_logits(name: str, tiny_gguf: Make, compiler_for: Compilers) -> None:
    tiny = tiny_gguf(CASES[name])
    with cpu_model(tiny.path, compiler_for(ISAS[0]), SMALL) as model:
        logits = model.run(one_sequence(TOKENS, TABLE))
        expected = oracle_logits(tiny.metadata, tiny.weights, TOKENS.tolist())
        np.testing.assert_allclose(logits, expected, atol=1e-4)
        _, reference = load_reference_model(tiny.path)
        reference.run(one_sequence(TOKENS, TABLE))
        assert model.hidden.shape == (len(TOKENS), tiny.options.hidden)
        np.testing.assert_allclose(model.hidden, reference.hidden, atol=1e-4)


@pytest.mark.parametrize("name", [form.name for form in FORMATS])
def test_every_format_is_near_its_dequantised_weights(name: str, tiny_gguf: Make, compiler_for: Compilers) -> None:
    """Activations are quantised to 8 bits, so logits differ a little from float32's, never by much."""
    options = TinyOptions.wide(format=name, layers=1)
    tiny = tiny_gguf(options)
    _, reference = load_reference_model(tiny.path)
    expected = reference.run(one_sequence(TOKENS, TABLE))
    with cpu_model(tiny.path, compiler_for(ISAS[0]), SMALL) as model:
        logits = model.run(one_sequence(TOKENS, TABLE))
        error = np.sqrt(np.mean((logits - expected) ** 2)) / np.std(expected)
        assert error < 0.03
        assert (logits.argmax(1) == expected.argmax(1)).mean() > 0.8


@pytest.mark.parametrize(("dtype", "error"), [("bf16", 0.1), ("f16", 0.02), ("f32", 1e-4), ("q8", 0.2)])
@pytest.mark.parametrize("block_size", [16, 48])
def test_block_size_and_cache_type(
    dtype: KVType, error: float, block_size: int, tiny_gguf: Make, compiler_for: Compilers
) -> None:
    tiny = tiny_gguf(TinyOptions("qwen3", head_dim=32))
    options = cpu_sizes(64, 512, 64, 64, block_size=block_size, kv_type=dtype)
    expected = oracle_logits(tiny.metadata, tiny.weights, TOKENS.tolist())
    with cpu_model(tiny.path, compiler_for(ISAS[0]), options) as model:
        logits = model.run(one_sequence(TOKENS, TABLE))
        np.testing.assert_allclose(logits, expected, atol=error)


@pytest.mark.parametrize("kv_type", ["q8", "k8v4"])
@pytest.mark.parametrize(
    "options",
    [
        TinyOptions("llama", bias=True, head_dim=32),
        TinyOptions("qwen3", head_dim=64),
        TinyOptions("gemma2", head_dim=96, layers=3, window=5),
    ],
    ids=lambda options: options.architecture,
)
def test_integers_give_the_references_logits(
    kv_type: KVType, options: TinyOptions, tiny_gguf: Make, compiler_for: Compilers
) -> None:
    """Within what 16-bit weights of attention round off; uneven biases of keys are evened out alike."""
    tiny = tiny_gguf(options)
    _, reference = load_reference_model(tiny.path, kv_type=kv_type)
    expected = reference.run(one_sequence(TOKENS, TABLE))
    with cpu_model(tiny.path, compiler_for(ISAS[0]), cpu_sizes(64, 512, 64, 64, kv_type=kv_type)) as model:
        np.testing.assert_allclose(model.run(one_sequence(TOKENS, TABLE)), expected, atol=0.03)


def test_packed_weights_are_as_large_as_the_files(tiny_gguf: Make, compiler_for: Compilers) -> None:
    for form in FORMATS:
        tiny = tiny_gguf(TinyOptions.wide(format=form.name, layers=1, vocab=304))
        with cpu_model(tiny.path, compiler_for(ISAS[0]), SMALL) as model:
            matrices = sum(w.size for w in tiny.weights.values() if len(w.shape) == 2 and w.shape[0] > 1)
            packed = sum(matrix.panels * matrix.panel_bytes for matrix in model.weights._matrices.values())
            assert packed <= 1.06 * matrices * form.block_bytes / form.block_values
