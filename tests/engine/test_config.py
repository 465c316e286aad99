"""Automatic choices: context, blocks, limits."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.conftest import tiny_spec
from twofold.core.errors import ParameterError, ResourceError
from twofold.engine.config import EngineOptions, resolve

GIB = 1 << 30
SPEC = tiny_spec(context=1000)
TOKEN_BYTES = 2 * 2 * 4 * 2
"""K and V, two layers, one head of four values, f16."""


def test_defaults_with_plenty_of_memory() -> None:
    config = resolve(EngineOptions(), SPEC, 64 * GIB)
    assert (config.context, config.kv_type, config.block_size) == (1000, "f16", 16)
    assert config.blocks_per_sequence == 63
    assert config.kv_blocks == 63 * 32
    assert (config.limits.sequences, config.limits.rows, config.limits.logit_rows) == (32, 512, 32)


def test_an_open_context_shrinks_to_the_memory() -> None:
    config = resolve(EngineOptions(kv_cache_memory_bytes=TOKEN_BYTES * 16 * 10), SPEC, 64 * GIB)
    assert (config.context, config.kv_blocks) == (160, 10)
    assert resolve(EngineOptions(), SPEC, TOKEN_BYTES * 16 * 10).context == 80


def test_a_context_that_was_asked_for_does_not_shrink() -> None:
    with pytest.raises(ResourceError, match="of 500 tokens") as caught:
        resolve(EngineOptions(max_model_len=500, kv_cache_memory_bytes=TOKEN_BYTES * 16), SPEC, 64 * GIB)
    assert caught.value.hint is not None
    assert resolve(EngineOptions(max_model_len=16, kv_cache_memory_bytes=TOKEN_BYTES * 16), SPEC, GIB).kv_blocks == 1


def test_no_memory_at_all() -> None:
    with pytest.raises(ResourceError):
        resolve(EngineOptions(), SPEC, 0)


def test_f32_takes_twice_the_memory() -> None:
    memory = TOKEN_BYTES * 16 * 10
    f16, f32 = (resolve(EngineOptions(kv_cache_dtype=t, kv_cache_memory_bytes=memory), SPEC, 0) for t in ("f16", "f32"))
    assert (f16.kv_blocks, f32.kv_blocks) == (10, 5)


@pytest.mark.parametrize("length", [1, 1001])
def test_the_context_must_be_the_models(length: int) -> None:
    with pytest.raises(ParameterError, match="context of 1000"):
        resolve(EngineOptions(max_model_len=length), SPEC, GIB)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_seqs", True),
        ("max_num_batched_tokens", 0),
        ("max_num_batched_tokens", 1 << 20),
        ("block_size", 0),
        ("block_size", 16.0),
        ("max_model_len", -1),
        ("kv_cache_memory_bytes", 0),
        ("threads", 0),
        ("seed", -1),
        ("seed", 1 << 64),
        ("kv_cache_dtype", "int8"),
    ],
)
def test_impossible_options(name: str, value: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        EngineOptions(**{name: value})
    assert caught.value.param == name


def test_more_sequences_than_tokens_in_a_step() -> None:
    with pytest.raises(ParameterError, match="max_num_seqs is 64"):
        resolve(EngineOptions(max_num_seqs=64, max_num_batched_tokens=32), SPEC, GIB)
