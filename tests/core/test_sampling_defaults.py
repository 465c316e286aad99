"""Sampling parameters that a request leaves out: who says them, and in which order."""

from __future__ import annotations

import pytest

from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams
from twofold.core.sampling_defaults import FALLBACK, SamplingDefaults

METADATA = {"general.sampling.temp": 0.6, "general.sampling.top_k": 20, "general.sampling.top_p": 7.0, "x": 1}


def test_a_file_s_own_are_read_and_impossible_ones_passed_over() -> None:
    assert SamplingDefaults.of_metadata(METADATA).given() == {"temperature": 0.6, "top_k": 20}
    assert SamplingDefaults.of_metadata({"general.sampling.temp": "hot"}).given() == {}


def test_flags_go_before_the_file_and_that_before_the_fallback() -> None:
    found = SamplingDefaults(temperature=0.0).over(SamplingDefaults.of_metadata(METADATA)).over(FALLBACK)
    assert found.given() == {"temperature": 0.0, "top_k": 20, "top_p": 0.9}
    assert str(found) == "temperature 0, top_p 0.9, top_k 20"


def test_what_a_request_says_stays() -> None:
    defaults = SamplingDefaults(temperature=0.5, top_k=7)
    filled = defaults.fill(SamplingParams(temperature=1.0, seed=3), {"temperature"})
    assert (filled.temperature, filled.top_k, filled.seed) == (1.0, 7, 3)
    params = SamplingParams()
    assert SamplingDefaults().fill(params, ()) is params
    assert (params.temperature, params.top_p) == (1.0, 1.0), "those of the Python API are vLLM's"


def test_impossible_defaults_are_named() -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingDefaults(top_p=2)
    assert caught.value.param == "top_p"
