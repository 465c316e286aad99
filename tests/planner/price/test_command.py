"""``twofold price``, ``lifetime`` and ``crossover`` as commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cyclopts import App

from twofold.cli import price as commands
from twofold.cli.main import main
from twofold.core.errors import ModelNotFoundError, ParameterError

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    app = App(result_action="return_value", exit_on_error=False, print_error=False)
    for command in (commands.price, commands.lifetime, commands.crossover):
        app.command(command)

    def call(*arguments: str) -> str:
        assert app(arguments) is None
        return capsys.readouterr().out

    return call


def test_a_workload_at_an_api_and_on_own_hardware(run: Run) -> None:
    own = ("--hardware", "h100", "--own-model", "llama-3-8b", "--weights", "fp8", "--price-per-hour", "2.5")
    text = run("price", "claude-sonnet-4-6", "--input-tokens", "3000", "--cached", "2500", "--compress", "2", *own)
    for words in ("1h cache", "compressed 2:1", "llama-3-8b on 1 × h100, $2.50 per hour", "requests a day"):
        assert words in text


def test_the_same_as_json(run: Run) -> None:
    arguments = ("price", "gpt-5", "--batch", "--hardware", "a100-40", "--own-model", "llama-3-8b", "--compress", "2")
    found = json.loads(run(*arguments, "--json"))
    assert (found["schema"], found["tier"]) == ("twofold.price/1", "batch")
    assert found["own"]["per_hour"] == pytest.approx(1.844)
    assert found["compression"]["ratio"] == 2


def test_the_power_is_that_of_the_data_sheet(run: Run) -> None:
    own = ("--hardware", "h100", "--own-model", "llama-3-8b", "--price-per-kwh", "0.2", "--json")
    assert json.loads(run("price", "gpt-5", *own))["own"]["per_hour"] == pytest.approx(0.14)
    capital = ("--capital", "35064", "--years", "4")
    assert json.loads(run("price", "gpt-5", *own, *capital))["own"]["per_hour"] == pytest.approx(1.14)


def test_a_trace_instead(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:00:00.0000000,400,40\n2023-11-16 18:01:00.0000000,600,60\n"
    )
    own = ("--hardware", "h100", "--own-model", "llama-3-8b", "--price-per-hour", "2")
    assert "trace of 2 requests in 1.0 min: 500 input and 50 output tokens" in run(
        "price", "gpt-5", "--trace", str(path), *own
    )
    found = json.loads(run("price", "gpt-5", "--trace", str(path), "--json"))
    assert found["trace"]["without_cache"] == pytest.approx((1_000 * 1.25 + 100 * 10) / 1e6)
    with pytest.raises(ParameterError, match="A trace sets the lengths"):
        run("price", "gpt-5", "--trace", str(path), "--cached", "5")


def test_lifetime(run: Run) -> None:
    assert "17.4% less" in run("lifetime", "--parameters", "13e9", "--served-tokens", "2e12")
    assert json.loads(run("lifetime", "--json"))["schema"] == "twofold.lifetime/1"


def test_crossover(run: Run) -> None:
    assert "a price step at 200,000 tokens" in run("crossover", "llama-3-70b", "--cliff", "200000")
    found = json.loads(run("crossover", "llama-3-8b", "--weights", "int4", "--json"))
    assert found["implied_kv_bytes_a_token"] is None


def test_unknown_names_get_the_nearest(run: Run) -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        run("price", "claud-sonet-4-6")
    assert "claude-sonnet-4-6" in (caught.value.hint or "")
    with pytest.raises(ParameterError) as machine:
        run("price", "gpt-5", "--hardware", "h1000")
    assert "h100" in (machine.value.hint or "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("--batch", "--tier", "flex"),
        ("--tier", "fast", "--input-tokens", "0"),
        ("--hardware", "h100", "--price-per-hour", "1", "--busy-share", "0"),
        ("--hardware", "h100", "--price-per-hour", "1", "--batch-size", "0"),
        ("--hardware", "h100", "--watts", "700"),
        ("--compress", "-1"),
    ],
)
def test_impossible_flags_are_refused(run: Run, arguments: tuple[str, ...]) -> None:
    with pytest.raises(ParameterError):
        run("price", "gpt-5", *arguments)


def test_a_prefix_that_is_longer_than_the_prompt(capsys: pytest.CaptureFixture[str]) -> None:
    """The message names flags, and the limit, which may be a default."""
    assert main(["price", "claude-sonnet-4-6", "--cached", "2000"]) == 2
    error = capsys.readouterr().err
    assert "--cached 2,000 exceeds the 1,000 tokens of a prompt." in error
    assert "--input-tokens" in error
