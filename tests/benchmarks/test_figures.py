"""Figures of the benchmarks, and what they read and draw."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest

from benchmarks.compare import ROOT
from benchmarks.figures import BAR, bar, gaps, medians, percentile, random_tokens
from benchmarks.goodput import Objectives, poisson, read_lengths, tpot
from benchmarks.throughput import contestants


def test_a_percentile_is_a_value_that_enough_others_do_not_exceed() -> None:
    values = range(1, 101)
    assert percentile(values, 0.99) == 99
    assert percentile(values, 0.5) == 50
    assert percentile([3.0], 0.99) == 3
    assert math.isnan(percentile([], 0.5))


def test_medians_are_taken_field_by_field() -> None:
    assert medians([{"a": 1, "b": 9}, {"a": 3, "b": 5}, {"a": 2, "b": 7}]) == {"a": 2, "b": 7}


def test_the_longest_bar_is_full_and_none_is_empty() -> None:
    assert len(bar(5.0, 5.0)) == BAR
    assert len(bar(0.0, 5.0)) == 1


def test_tokens_are_the_same_for_a_seed() -> None:
    assert random_tokens(5, 1_000, 3) == random_tokens(5, 1_000, 3) != random_tokens(5, 1_000, 4)
    assert max(random_tokens(500, 150, 1)) < 150


def test_tpot_is_the_mean_gap_after_the_first_token() -> None:
    assert tpot({"times": [1.0, 1.5, 3.0]}) == pytest.approx(1.0)
    assert tpot({"times": [1.0]}) == 0
    assert gaps([1.0, 1.5, 3.0]) == [0.5, 1.5]


@pytest.mark.parametrize(("ttft", "end", "met"), [(0.5, 2.0, True), (0.6, 2.0, False), (0.5, 2.1, False)])
def test_a_request_meets_both_objectives_or_none_counts(ttft: float, end: float, met: bool) -> None:
    assert Objectives(0.5, 1.0).met_by({"ttft": ttft, "times": [1.0, end]}) is met


def test_arrivals_have_the_rate_and_the_lengths_of_the_trace() -> None:
    drawn = poisson([(10, 2), (20, 4)], 50.0, 20.0, 1)
    assert 900 < len(drawn) < 1_100
    assert {length[1:] for length in drawn} == {(10, 2), (20, 4)}
    assert all(earlier[0] <= later[0] < 20 for earlier, later in itertools.pairwise(drawn))
    assert len(poisson([(1, 2)], 1e-9, 1.0, 1)) == 1


def test_lengths_are_divided_but_never_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\nmonday,100,40\ntuesday,1,1\n", "utf-8")
    assert read_lengths(path, 4) == [(25, 10), (1, 2)]


def test_only_engines_that_are_installed_take_part(tmp_path: Path) -> None:
    assert [one.name for one in contestants(tmp_path)] == ["twofold"]
    for name in (".venv-peers", ".venv-vllm"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").touch()
    found = contestants(tmp_path)
    assert [one.name for one in found] == ["twofold", "llama.cpp", "llama.cpp-q4_0", "vllm"]
    assert all(Path(one.command[1]).parent == ROOT / "peers" for one in found[1:])
