"""Memory plans of models, alone and together."""

from __future__ import annotations

from functools import partial

import pytest

from tests.engine.conftest import tiny_spec
from twofold.core.errors import ResourceError
from twofold.engine import config
from twofold.engine.config import EngineOptions
from twofold.fleet import memory
from twofold.fleet.memory import MIN_ROOM, plan_of, room_for

GIB = 1 << 30
plan = partial(memory.plan, chunk=64)
resolve = partial(config.resolve, chunk=64)


def test_a_plan_counts_weights_cache_and_host_slots() -> None:
    spec = tiny_spec()
    options = EngineOptions(kv_cache_memory_bytes=1 << 20)
    planned = plan(options, spec, 1000, 2000)
    assert planned == plan_of(resolve(options, spec, 0), spec, 1000)
    assert planned.bytes == 1000 + planned.kv_cache + planned.host_slots
    assert 0.9 * (1 << 20) < planned.kv_cache <= 1 << 20
    assert 0.4 * (1 << 20) < planned.host_slots <= 1 << 19


def test_a_plan_stays_within_its_room() -> None:
    spec = tiny_spec()
    planned = plan(EngineOptions(), spec, 1 << 20, 3 << 20)
    assert planned.bytes <= 3 << 20
    with pytest.raises(ResourceError):
        plan(EngineOptions(), spec, 1 << 20, 1 << 20)


def test_weights_that_do_not_fit_are_named() -> None:
    """Whatever the KV cache is: neither its size nor the context would help."""
    for options in (EngineOptions(), EngineOptions(kv_cache_memory_bytes=1 << 20)):
        with pytest.raises(ResourceError) as caught:
            plan(options, tiny_spec(), 1_117_320_768, 524_288_000)
        assert str(caught.value) == "The weights take 1.1 GB; the model may use 524.3 MB of memory."
        assert caught.value.hint == "Raise --memory-budget, or serve a smaller model."


def test_a_process_that_gets_the_planned_cache_takes_what_was_planned() -> None:
    spec = tiny_spec(context=4096)
    planned = plan(EngineOptions(), spec, 1 << 20, 9 << 20)
    resolved = resolve(EngineOptions(kv_cache_memory_bytes=planned.kv_cache), spec, 123)
    assert plan_of(resolved, spec, 1 << 20) == planned


def test_models_that_fit_together_share_and_others_take_turns() -> None:
    assert room_for(GIB, [], 4 * GIB) == 4 * GIB
    assert room_for(GIB, [GIB], 4 * GIB) == 2 * GIB
    assert room_for(GIB, [2 * GIB], 4 * GIB) == GIB + GIB // 2
    assert room_for(GIB, [3 * GIB], 4 * GIB) == 4 * GIB
    assert room_for(GIB, [GIB], 2 * GIB + 2 * MIN_ROOM - 2) == 2 * GIB + 2 * MIN_ROOM - 2
