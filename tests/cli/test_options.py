"""Flags of the engine, and the keywords that they become."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command
from tests.cli.test_batch import write_input
from twofold.cli import loading
from twofold.cli.batch import BatchOptions
from twofold.cli.options import ConcurrentModelOptions, ModelOptions
from twofold.core.errors import ParameterError
from twofold.engine.config import EngineKeywords, EngineOptions
from twofold.engine.llm import LLM


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The keywords of the last LLM that a command made."""
    seen: dict[str, Any] = {}

    def make(*arguments: Any, **keywords: Any) -> LLM:
        seen.update(keywords)
        return LLM(*arguments, **keywords)

    monkeypatch.setattr(loading, "LLM", make)
    return seen


def test_every_engine_option_has_a_keyword() -> None:
    assert BatchOptions().engine_keywords().keys() == EngineKeywords.__annotations__.keys() - {"backend_options"}


def test_defaults_of_flags_are_those_of_the_engine() -> None:
    assert EngineOptions(**ConcurrentModelOptions().engine_keywords()) == EngineOptions()


def test_one_sequence_is_shown_at_once_and_many_are_computed_fast() -> None:
    one, many = ModelOptions().engine_keywords(), BatchOptions().engine_keywords()
    differ = {name: (one[name], many[name]) for name in one if one[name] != many[name]}
    assert differ == {
        "max_num_seqs": (1, 64),
        "max_num_batched_tokens": (512, 1024),
        "swap_space_bytes": (0, None),
        "overlap": (False, True),
    }


@pytest.mark.parametrize("command", ["run", "chat"])
def test_flags_of_one_sequence_reach_the_engine(
    command: str, twofold: Command, tiny: Path, made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda _prompt: "/exit")
    given: list[object] = ["-p", "in the", "-n", 1] if command == "run" else []
    assert twofold(command, *given, "-m", tiny, "--no-enable-prefix-caching").code == 0
    assert made["enable_prefix_caching"] is False


@pytest.mark.parametrize(("text", "size"), [("1.5M", 3 << 19), ("2097152", 1 << 21)])
def test_sizes_have_units(text: str, size: int, twofold: Command, tiny: Path, made: dict[str, Any]) -> None:
    assert twofold("run", "in the", "-n", 1, "-c", 64, "-m", tiny, "--kv-cache-memory-bytes", text).code == 0
    assert made["kv_cache_memory_bytes"] == size


def test_an_empty_variable_counts_as_unset(
    twofold: Command, tiny: Path, made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("URL", "KV_CACHE_MEMORY_BYTES"):
        monkeypatch.setenv(f"TWOFOLD_{name}", "")
    assert twofold("run", "in the", "-n", 1, "-c", 64, "-m", tiny).code == 0
    assert made["kv_cache_memory_bytes"] is None


def test_sizes_of_variables_have_units_too(
    twofold: Command, tiny: Path, made: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOFOLD_KV_CACHE_MEMORY_BYTES", "1M")
    assert twofold("run", "in the", "-n", 1, "-c", 64, "-m", tiny).code == 0
    assert made["kv_cache_memory_bytes"] == 1 << 20
    monkeypatch.setenv("TWOFOLD_KV_CACHE_MEMORY_BYTES", "1Q")
    result = twofold("run", "in the", "-m", tiny)
    assert result.code == 2
    assert "TWOFOLD_KV_CACHE_MEMORY_BYTES: '1Q' is not a size; write for example 512M or 1.5GiB." in result.err


def test_flags_of_many_sequences_reach_the_engine(
    twofold: Command, tiny: Path, tmp_path: Path, made: dict[str, Any]
) -> None:
    files = write_input(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl"
    swap = ("--swap-space", "0.5", "--max-waiting-seqs", "7")
    pace = ("--token-budget", "live", "--tpot-target-ms", "20.5")
    assert twofold("batch", *files, "-m", tiny, *swap, *pace).code == 0
    wanted = {"swap_space_bytes": 1 << 29, "max_waiting_seqs": 7, "token_budget": "live", "tpot_target_ms": 20.5}
    assert {name: made[name] for name in wanted} == wanted


def test_more_threads_than_cores_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    ModelOptions(threads=1).check()
    assert capsys.readouterr().err == ""
    ModelOptions(threads=100_000).check()
    assert capsys.readouterr().err.startswith("warning: 100000 threads share ")


@pytest.mark.parametrize("gibibytes", [-1, float("nan"), float("inf"), 1e300])
def test_impossible_swap_space(gibibytes: float) -> None:
    with pytest.raises(ParameterError, match="swap_space must be"):
        BatchOptions(swap_space=gibibytes).check()


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--token-budget", "life"], "Did you mean 'live'?"),
        (["--tpot-target-ms", "0"], "--tpot-target-ms"),
        (["--tpot-target-ms", "9", "--token-budget", "fixed"], "set --token-budget to live"),
        (["--max-waiting-seqs", "0"], "--max-waiting-seqs"),
        (["--swap-space", "much"], "much"),
        (["--enable-prefix-cachin"], "--enable-prefix-caching"),
    ],
)
def test_impossible_flags(flags: list[str], said: str, twofold: Command, tiny: Path, tmp_path: Path) -> None:
    result = twofold("batch", write_input(tmp_path / "in.jsonl", 1), tmp_path / "out.jsonl", "-m", tiny, *flags)
    assert (result.code, result.out) == (2, "")
    assert said in result.err
