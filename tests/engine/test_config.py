"""Automatic choices: context, blocks, limits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from inspect import signature
from typing import Any

import pytest

from tests.engine.conftest import tiny_spec
from twofold.core.errors import ParameterError, ResourceError
from twofold.core.model import GatedFFN, GroupedAttention, LayerSpec, ModelSpec
from twofold.engine import config as settings
from twofold.engine.config import MAX_BLOCKS, EngineKeywords, EngineOptions, runner_sizes

GIB = 1 << 30
CHUNK = 64
resolve = partial(settings.resolve, chunk=CHUNK)
SPEC = tiny_spec(context=1000)
TOKEN_BYTES = 2 * 2 * 4 * 2
"""K and V, two layers, one head of four values, f16."""


def test_defaults_with_plenty_of_memory() -> None:
    config = resolve(EngineOptions(), SPEC, 64 * GIB)
    assert (config.context, config.options.kv_type, config.options.block_size) == (1000, "bf16", 16)
    assert runner_sizes(config).blocks_per_sequence == 63
    assert config.kv_blocks == MAX_BLOCKS
    assert resolve(EngineOptions(enable_prefix_caching=False), SPEC, 64 * GIB).kv_blocks == 63 * 32
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


def test_what_takes_too_much_memory_is_named() -> None:
    with pytest.raises(ResourceError) as caught:
        resolve(EngineOptions(), SPEC, 500_000_000, weights=1_117_000_000)
    assert str(caught.value) == "The weights take 1.1 GB; the model may use 500.0 MB of memory."
    with pytest.raises(ResourceError) as caught:
        resolve(EngineOptions(max_model_len=32, kv_cache_memory_bytes=TOKEN_BYTES * 16), SPEC, 0, weights=GIB)
    assert str(caught.value).startswith("The KV cache of one sequence of 32 tokens takes ")
    assert caught.value.hint == "Lower max_model_len, or raise kv_cache_memory_bytes."


def test_f32_takes_twice_the_memory() -> None:
    memory = TOKEN_BYTES * 16 * 10
    f16, f32 = (resolve(EngineOptions(kv_cache_dtype=t, kv_cache_memory_bytes=memory), SPEC, 0) for t in ("f16", "f32"))
    assert (f16.kv_blocks, f32.kv_blocks) == (10, 5)


@pytest.mark.parametrize("kv_type", ["q8", "k8v4"])
def test_a_type_of_keys_and_values_must_suit_the_models_heads(kv_type: str) -> None:
    with pytest.raises(ParameterError, match="heads of 4 values") as caught:
        resolve(EngineOptions(kv_cache_dtype=kv_type), SPEC, GIB)
    assert caught.value.hint == "Use bf16, f16 or f32."


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


def windowed_spec(window: int, context: int = 1000) -> ModelSpec:
    """Two layers that see everything, four with a window."""
    full, short = (LayerSpec(GroupedAttention(2, 1, 4, seen), GatedFFN(8)) for seen in (None, window))
    return replace(tiny_spec(context), layers=(short, short, full, short, short, full))


def test_layers_with_a_window_keep_only_what_they_see() -> None:
    spec = windowed_spec(64)
    full, short = resolve(EngineOptions(max_num_batched_tokens=100, max_num_seqs=4), spec, 64 * GIB).kv_groups
    assert (full.window, short.window) == (None, 64)
    per_sequence = -(-(64 + 100 + CHUNK) // 16) + 1
    assert short.blocks == 4 * per_sequence


def test_little_memory_is_shared_so_that_one_sequence_fits() -> None:
    spec = windowed_spec(64)
    need = 63 * 16 * 2 * 4 * 2 * 2 + 16 * 16 * 4 * 4 * 2 * 2
    options = EngineOptions(max_model_len=1000, max_num_batched_tokens=100, max_num_seqs=4, kv_cache_memory_bytes=need)
    full, short = resolve(options, spec, 64 * GIB).kv_groups
    assert (full.blocks, short.blocks) == (63, 16)
    with pytest.raises(ResourceError):
        resolve(replace(options, kv_cache_memory_bytes=need - 1), spec, 64 * GIB)


def test_a_window_longer_than_the_context_is_none() -> None:
    groups = resolve(EngineOptions(max_model_len=60), windowed_spec(64), 64 * GIB).kv_groups
    assert [group.window for group in groups] == [None]


def test_swap_space_is_shared_like_the_cache() -> None:
    spec = windowed_spec(64)
    options = EngineOptions(kv_cache_memory_bytes=8 << 20, swap_space_bytes=4 << 20)
    groups = resolve(options, spec, 64 * GIB).kv_groups
    assert [group.host_slots for group in groups] == [pytest.approx(group.blocks / 2, abs=1) for group in groups]
    assert not any(g.host_slots for g in resolve(replace(options, swap_space_bytes=0), spec, 64 * GIB).kv_groups)


def test_keywords_are_those_of_the_options() -> None:
    assert EngineKeywords.__annotations__.keys() == signature(EngineOptions).parameters.keys()


def test_threads_and_instruction_set_are_options_of_the_backend() -> None:
    named = EngineOptions(threads=2, isa="portable")
    assert named == EngineOptions(backend_options={"isa": "portable", "threads": 2, "more": None})
    assert named.open_backend().variant == ("portable", 2)
    assert replace(named, seed=3).backend_options == named.backend_options
    assert EngineOptions(threads=1000, backend_options={"threads": 1000}).backend_options == {"threads": 1000}


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"threads": 2, "backend_options": {"threads": 3}}, "threads"),
        ({"backend_options": [2]}, "backend_options"),
        ({"backend_options": {2: 3}}, "backend_options"),
        ({"backend_options": {"threads": 0}}, "threads"),
        ({"backend_options": {"cores": 2}}, "cores"),
        ({"backend": "reference", "threads": 2}, "threads"),
    ],
)
def test_options_that_the_backend_does_not_have_are_refused(options: dict[str, Any], param: str) -> None:
    with pytest.raises(ParameterError) as caught:
        EngineOptions(**options).open_backend()
    assert caught.value.param == param


def test_the_reference_backend_has_no_drafts() -> None:
    assert EngineOptions(backend="reference").speculation.method == "off"
    assert EngineOptions().speculation.method == "auto"
    with pytest.raises(ParameterError, match="does not support speculation"):
        EngineOptions(backend="reference", speculative_config={"method": "suffix"})
