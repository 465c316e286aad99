"""Figures of the benchmarks, and what they read and draw."""

from __future__ import annotations

import itertools
from pathlib import Path

from benchmarks.compare import ROOT
from benchmarks.figures import BAR, bar, gaps, medians, random_tokens
from benchmarks.goodput import as_sample, poisson, read_lengths
from benchmarks.throughput import contestants
from twofold.bench.load.base import Ask
from twofold.bench.metrics.requests import RequestFigures


def test_medians_are_taken_field_by_field() -> None:
    assert medians([{"a": 1, "b": 9}, {"a": 3, "b": 5}, {"a": 2, "b": 7}]) == {"a": 2, "b": 7}


def test_the_longest_bar_is_full_and_none_is_empty() -> None:
    assert len(bar(5.0, 5.0)) == BAR
    assert len(bar(0.0, 5.0)) == 1


def test_tokens_are_the_same_for_a_seed() -> None:
    assert random_tokens(5, 1_000, 3) == random_tokens(5, 1_000, 3) != random_tokens(5, 1_000, 4)
    assert max(random_tokens(500, 150, 1)) < 150


def test_what_an_engine_gave_is_judged_as_what_a_server_gives() -> None:
    figures = RequestFigures.of(as_sample(Ask(0, 0.5, 10, 3), [1.0, 1.5, 3.0]))
    assert (figures.outcome, figures.ttft_s, figures.tpot_s, figures.longest_gap_s) == ("ok", 0.5, 1.0, 1.5)
    assert (figures.ttft_sent_s, figures.e2e_s) == (0.5, 2.5)
    assert gaps([1.0, 1.5, 3.0]) == [0.5, 1.5]


def test_arrivals_have_the_rate_and_the_lengths_of_the_trace() -> None:
    drawn = poisson([(10, 2), (20, 4)], 50.0, 20.0, 1)
    assert 900 < len(drawn) < 1_100
    assert {(ask.input_tokens, ask.output_tokens) for ask in drawn} == {(10, 2), (20, 4)}
    assert all(earlier.due_s <= later.due_s < 20 for earlier, later in itertools.pairwise(drawn))
    assert len(poisson([(1, 2)], 1e-9, 1.0, 1)) == 1


def test_lengths_are_divided_but_never_nothing(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    lines = ("TIMESTAMP,ContextTokens,GeneratedTokens", "2023-11-16 18:15:46.68,100,40", "2023-11-16 18:15:50.99,1,1")
    path.write_text("\n".join(lines), "utf-8")
    assert read_lengths(path, 4) == [(25, 10), (1, 2)]


def test_only_engines_that_are_installed_take_part(tmp_path: Path) -> None:
    assert [one.name for one in contestants(tmp_path)] == ["twofold"]
    for name in (".venv-peers", ".venv-vllm"):
        (tmp_path / name / "bin").mkdir(parents=True)
        (tmp_path / name / "bin" / "python").touch()
    found = contestants(tmp_path)
    assert [one.name for one in found] == ["twofold", "llama.cpp", "llama.cpp-q4_0", "vllm"]
    assert all(Path(one.command[1]).parent == ROOT / "peers" for one in found[1:])
