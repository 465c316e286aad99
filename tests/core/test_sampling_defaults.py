"""Defaults of sampling parameters that a request leaves out: their sources, in order."""

from __future__ import annotations

from pathlib import Path

import pytest

from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams
from twofold.core.sampling_defaults import FALLBACK, GENERATION_CONFIG, MAX_CONFIG_BYTES, SamplingDefaults

METADATA = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20, "general.sampling.top_p": 7.0, "x": 1}


def test_a_file_s_own_are_read_and_impossible_ones_passed_over() -> None:
    assert SamplingDefaults.of_metadata(METADATA).given() == {"temperature": 0.6, "top_k": 20}
    assert SamplingDefaults.of_metadata({"general.sampling.temp": "hot"}).given() == {}


def test_flags_go_before_the_file_and_that_before_the_fallback() -> None:
    found = SamplingDefaults(temperature=0.0).over(SamplingDefaults.of_metadata(METADATA)).over(FALLBACK)
    assert found.given() == {"temperature": 0.0, "top_k": 20, "top_p": 0.9}
    assert str(found) == "temperature 0, top_p 0.9, top_k 20"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"temperature": 0.7, "top_k": 40, "top_p": 7, "eos_token_id": [1, 2]}', {"temperature": 0.7, "top_k": 20}),
        ('{"temperature": "hot", "repetition_penalty": 1.1}', {"top_k": 20, "repetition_penalty": 1.1}),
        ("[]", {"top_k": 20}),
        ("{", {"top_k": 20}),
        ("[" * 30_000, {"top_k": 20}),
        ('{"temperature": 0.7' + " " * MAX_CONFIG_BYTES + "}", {"top_k": 20}),
        (None, {"top_k": 20}),
    ],
)
def test_a_generation_config_gives_the_defaults_that_the_file_lacks(
    text: str | None, found: dict[str, float], tmp_path: Path
) -> None:
    if text is not None:
        (tmp_path / GENERATION_CONFIG).write_text(text)
    defaults = SamplingDefaults.of_model(tmp_path / "m.gguf", {"general.sampling.top_k": 20})
    assert defaults.given() == {**FALLBACK.given(), **found}


def test_parameters_of_a_request_are_kept() -> None:
    defaults = SamplingDefaults(temperature=0.5, top_k=7)
    filled = defaults.fill(SamplingParams(temperature=1.0, seed=3), {"temperature"})
    assert (filled.temperature, filled.top_k, filled.seed) == (1.0, 7, 3)
    limit = SamplingDefaults(max_tokens=8)
    assert limit.fill(SamplingParams(max_tokens=None), ()).max_tokens == 8
    assert limit.fill(SamplingParams(max_tokens=None), ["max_tokens"]).max_tokens is None
    assert limit.fill(SamplingParams(max_tokens=None, min_tokens=9), ()).max_tokens == 9
    params = SamplingParams()
    assert SamplingDefaults().fill(params, ()) is params
    assert (params.temperature, params.top_p) == (1.0, 1.0), "those of the Python API are vLLM's"


def test_impossible_defaults_are_named() -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingDefaults(top_p=2)
    assert caught.value.param == "top_p"
