"""SamplingParams: what is accepted, what is refused and how the refusal reads."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from twofold.core.errors import ParameterError
from twofold.core.params import MAX_BIASED_TOKENS, MAX_LOGPROBS, MAX_N, MAX_STOPS, SamplingParams
from twofold.core.request import RequestOptions


def test_defaults_are_vllms() -> None:
    params = SamplingParams()
    assert (params.n, params.temperature, params.top_p, params.max_tokens, params.seed) == (1, 1.0, 1.0, 16, None)
    assert not params.greedy
    assert not params.penalises


def test_an_unknown_name_gives_the_nearest() -> None:
    with pytest.raises(ParameterError, match="temprature") as caught:
        SamplingParams(temprature=1)  # type: ignore[call-arg]
    assert caught.value.param == "temprature"
    assert caught.value.hint == "Did you mean 'temperature'?"


def test_an_unknown_name_far_from_all_lists_them() -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingParams(zzz=1)  # type: ignore[call-arg]
    assert caught.value.hint is not None
    assert "top_p" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", bad) for bad in (-0.1, math.nan, math.inf, 10**400, "1", None, True)),
        *(("top_p", bad) for bad in (-0.1, 1.01, math.nan, "x")),
        *(("min_p", bad) for bad in (-0.1, 1.01, math.nan)),
        *(("top_k", bad) for bad in (-2, 1.5, True, 2**31)),
        *(("repetition_penalty", bad) for bad in (0, -1, math.nan, math.inf)),
        *(("presence_penalty", bad) for bad in (-2.1, 2.1, math.nan)),
        *(("frequency_penalty", bad) for bad in (-2.1, 2.1, math.nan)),
        *(("n", bad) for bad in (0, MAX_N + 1, 1.0)),
        *(("seed", bad) for bad in (-1, 2**64, 1.0)),
        *(("max_tokens", bad) for bad in (0, -1, 2.5)),
        *(("min_tokens", bad) for bad in (-1, 17)),
        *(("logprobs", bad) for bad in (-1, MAX_LOGPROBS + 1, True)),
        *(("prompt_logprobs", bad) for bad in (-1, MAX_LOGPROBS + 1)),
        *(("stop", bad) for bad in ("", [""], 5, ["x"] * (MAX_STOPS + 1), "x" * 257, [b"x"])),
        *(("stop_token_ids", bad) for bad in (3, [-1], [1.5], [2**31], "12", range(257))),
        *(("logit_bias", bad) for bad in ([1], {"1": 1}, {-1: 1}, {1: 101}, {1: math.nan}, {1: "x"})),
        ("logit_bias", dict.fromkeys(range(MAX_BIASED_TOKENS + 1), 1.0)),
        *((name, 1) for name in ("ignore_eos", "skip_special_tokens", "include_stop_str_in_output", "detokenize")),
    ],
)
def test_impossible_values_are_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(ParameterError) as caught:
        SamplingParams(**{name: value})
    assert caught.value.param == name
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize("name", ["tpot_target_s", "deadline_s", "queue_limit_s"])
def test_seconds_are_positive_and_fit_a_float(name: str) -> None:
    possible: tuple[Any, ...] = (1, 0.5, math.inf)
    for value in possible:
        assert getattr(RequestOptions(**{name: value}), name) == value
    impossible: tuple[Any, ...] = (0, -1, math.nan, True, "1", 10**400)
    for value in impossible:
        with pytest.raises(ParameterError, match=f"{name} must be a number of seconds above 0"):
            RequestOptions(**{name: value})


def test_the_error_of_a_stop_string_fits_the_way_it_was_given() -> None:
    for stop, told in (("", "stop must have 1 to 256 characters, not 0"), (["a", ""], "each of stop must have")):
        with pytest.raises(ParameterError, match=told):
            SamplingParams(stop=stop)
    with pytest.raises(ParameterError, match="a string or a list of strings, not 5"):
        SamplingParams(stop=5)  # type: ignore[arg-type]


def test_stop_strings_need_text() -> None:
    with pytest.raises(ParameterError, match="detokenize"):
        SamplingParams(stop="x", detokenize=False)


def test_boundary_values_are_accepted() -> None:
    params = SamplingParams(
        temperature=0, top_p=1, top_k=-1, min_p=1, seed=2**64 - 1, max_tokens=None, min_tokens=5, logprobs=0, n=MAX_N
    )
    assert params.greedy
    assert SamplingParams(top_p=0).top_p == 0


def test_the_callers_objects_are_copied() -> None:
    stop, ids, bias = ["a"], [1], {1: 2.0}
    params = SamplingParams(stop=stop, stop_token_ids=ids, logit_bias=bias)
    stop.append("b")
    ids.append(2)
    bias[3] = 1.0
    assert params.stop_strings == ("a",)
    assert params.stop_tokens == (1,)
    assert dict(params.biases) == {1: 2.0}
    with pytest.raises(TypeError):
        params.biases[5] = 1.0  # type: ignore[index]


def test_frozen_hashable_and_comparable() -> None:
    params = SamplingParams(stop="x", logit_bias={1: 1.0})
    assert params == SamplingParams(stop=["x"], logit_bias={1: 1.0})
    assert hash(params) == hash(SamplingParams(stop=("x",), logit_bias={1: 1.0}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.n = 2  # type: ignore[misc]


def test_replace_keeps_the_checks() -> None:
    assert dataclasses.replace(SamplingParams(stop="x"), top_k=3).stop_strings == ("x",)
    with pytest.raises(ParameterError):
        dataclasses.replace(SamplingParams(), top_p=2)
