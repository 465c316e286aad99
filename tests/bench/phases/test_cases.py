"""Which cases there are, how much context each takes, and what is no size."""

from __future__ import annotations

import pytest

from twofold.bench.phases.cases import PURE_STEPS, Case, Decode, Mixed, Prefill, Prefix, Sizes, parse_sizes
from twofold.core.errors import ParameterError


def test_cases_go_from_phase_to_phase_and_from_small_to_large() -> None:
    sizes = Sizes(input_tokens=(512, 32, 512), context=(128,), batch=(8, 1, 32), output_tokens=16)
    assert list(sizes.cases()) == [
        Prefill(32),
        Prefill(512),
        Prefix(512),
        Decode(1, 128, 16),
        Decode(8, 128, 16),
        Decode(32, 128, 16),
        Mixed(8, 128, 32),
        Mixed(8, 128, 512),
    ]


def test_without_a_prefix_cache_nothing_can_be_found_in_it() -> None:
    assert not any(case.phase == "prefix" for case in Sizes().cases(prefix_caching=False))


@pytest.mark.parametrize(
    ("case", "extent"),
    [
        (Prefill(100), 101),
        (Prefix(100), 101),
        (Decode(4, 30, 10), 30 + 10 + 1 + 3),  # 120 tokens in 60 rows a step, and one more step
        (Mixed(4, 100, 121), 100 + 2 * (PURE_STEPS + 3 + 1) + 1 + 8),  # 121 tokens in three steps
        (Mixed(4, 30, 1000), 1001),
    ],
)
def test_the_context_that_a_case_takes(case: Case, extent: int) -> None:
    assert case.extent(64, 2) == extent


def test_sizes_are_read_from_text() -> None:
    assert parse_sizes("input_tokens", "32, 128,5") == (32, 128, 5)


@pytest.mark.parametrize("text", ["", "a", "32;64", "1.5", "32,,64"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ParameterError, match=r"batch must be numbers with commas"):
        parse_sizes("batch", text)


@pytest.mark.parametrize(
    ("field", "value"),
    [("input_tokens", ()), ("batch", (0,)), ("context", (-1,)), ("rounds", 0), ("output_tokens", 1 << 21)],
)
def test_impossible_sizes_are_refused_by_name(field: str, value: object) -> None:
    with pytest.raises(ParameterError, match=f"{field} must be from 1") as caught:
        Sizes(**{field: value})  # type: ignore[arg-type]
    assert caught.value.param == field
