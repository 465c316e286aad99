"""Tokens and log-probabilities of the default model are those that were written down, to the bit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.engine import golden
from twofold.engine.llm import LLM

pytestmark = pytest.mark.model


@pytest.mark.parametrize("kv", golden.FILES)
def test_outputs_are_those_written_down(kv: str, default_model: Path) -> None:
    expected = json.loads(golden.FILES[kv].read_text(encoding="utf-8"))
    with LLM(model=str(default_model), kv_cache_dtype=kv) as llm:
        found = json.loads(json.dumps(golden.outputs(llm)))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == value, name
