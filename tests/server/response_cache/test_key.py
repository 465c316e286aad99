"""Keys of the response cache: which requests qualify, and which share an entry."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.server.response_cache.jobs import IDS, job, vector_job
from twofold.core.errors import ModelNotFoundError
from twofold.core.params import StructuredOutputsParams, ThinkingParams
from twofold.core.request import EngineRequest, RequestOptions
from twofold.fleet.reading import model_identity
from twofold.server.response_cache import _digest, cache_key


@pytest.mark.parametrize(
    ("params", "asked", "seeded", "kept"),
    [
        ({}, None, False, True),
        ({"seed": 3}, None, False, True),
        ({}, False, False, False),
        ({"temperature": 0.7}, None, False, False),
        ({"temperature": 0.7, "seed": 3}, None, False, False),
        ({"temperature": 0.7, "seed": 3}, None, True, True),
        ({"temperature": 0.7, "seed": 3}, False, True, False),
        ({"temperature": 0.7}, None, True, False),
        ({"temperature": 0.7}, True, False, True),
    ],
)
def test_requests_that_qualify(params: dict[str, Any], asked: bool | None, seeded: bool, kept: bool) -> None:
    assert (cache_key("t", "m", [job(**params)], asked=asked, seeded=seeded) is not None) is kept


def test_all_jobs_must_qualify() -> None:
    assert cache_key("t", "m", [job(), vector_job()]) is not None
    assert cache_key("t", "m", [job(), job(temperature=1)]) is None
    assert cache_key("t", "m", []) is None


def digest(*jobs: EngineRequest, tenant: str = "t", identity: str = "m") -> bytes:
    key = cache_key(tenant, identity, jobs, asked=True)
    assert key is not None
    return key.digest


DIFFERENT: list[dict[str, Any]] = [
    {},
    {"max_tokens": 17},
    {"max_tokens": None},
    {"temperature": 1},
    {"temperature": 1, "seed": 1},
    {"temperature": 1, "seed": 2},
    {"stop": "a"},
    {"stop": ["a", "b"]},
    {"stop": ["ab"]},
    {"logprobs": 0},
    {"logprobs": 1},
    {"logit_bias": {3: 1.0}},
    {"logit_bias": {3: 1.5}},
    {"n": 2},
    {"n": 2, "best_of": 3},
    {"structured_outputs": StructuredOutputsParams(json={"a": 1, "b": 2})},
    {"structured_outputs": StructuredOutputsParams(json={"b": 2, "a": 1})},
    {"structured_outputs": StructuredOutputsParams(json_object=True)},
    {"thinking": ThinkingParams(end=(4,), budget=3)},
    {"thinking": ThinkingParams(end=(4,), budget=4)},
    {"thinking": ThinkingParams(start=(4,), end=(5,))},
]


def test_every_relevant_field_changes_the_key() -> None:
    found = [digest(job(**params)) for params in DIFFERENT]
    found += [digest(job(), tenant="u"), digest(job(), identity="n"), digest(job(salt="x")), digest(vector_job())]
    found += [digest(job(5, 7)), digest(job(5), job(7, 11)), digest(job(5, 7), job(11)), digest(job(5, 7, 12))]
    found += [digest(job(), job())]
    assert len(set(found)) == len(found)


def test_irrelevant_fields_do_not_change_the_key() -> None:
    assert digest(job()) == digest(job(seed=9)) == digest(job(temperature=0.0))
    assert digest(job(temperature=1)) == digest(job(temperature=1.0))
    urgent = EngineRequest(job().token_ids, job().params, RequestOptions(priority=7, deadline_s=3.0))
    assert digest(job()) == digest(urgent)


class Recorder:
    def __init__(self) -> None:
        self.data = b""

    def update(self, data: bytes) -> None:
        self.data += data


def recorded(value: object) -> bytes:
    recorder = Recorder()
    _digest(recorder, value)
    return recorder.data


leaves = st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False) | st.text(max_size=4)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4).map(tuple) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


def same(one: object, other: object) -> bool:
    """Whether both mean the same: 1 is 1.0, but not True, and order counts."""
    if isinstance(one, dict) and isinstance(other, dict):
        return same(tuple(one.items()), tuple(other.items()))
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def test_different_splits_of_a_text_have_different_digests() -> None:
    assert len({recorded(texts) for texts in (("ab", "c"), ("a", "bc"), ("abc",), ("as1:b", "c"), ())}) == 5


@settings(max_examples=300)
@given(one=values, other=values)
@example((0, 0), (0, 0.0))
def test_digested_bytes_are_equal_only_for_equal_values(one: object, other: object) -> None:
    assert (recorded(one) == recorded(other)) == same(one, other)


def test_identity_of_a_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" * 100)
    first = model_identity([path], {"kv": "f16", "context": 2048})
    assert first == model_identity([path], {"context": 2048, "kv": "f16"})
    assert first != model_identity([path], {"context": 2048, "kv": "int8"})
    os.utime(path, ns=(1, 1))
    assert first != model_identity([path], {"kv": "f16", "context": 2048})
    with pytest.raises(ModelNotFoundError, match="cannot be read"):
        model_identity([tmp_path / "other.gguf"], {})


def test_many_tokens_are_digested_fast() -> None:
    big = job(*range(100_000))
    began = time.thread_time()
    digest(big)
    assert time.thread_time() - began < 0.1
    assert digest(job(2**31 - 1)) != digest(job(*IDS))
