"""``twofold chat`` with lines from a pipe, and prompts for models without a chat template."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Result
from tests.support.vocabulary import tokenizer_metadata
from twofold.cli.prompt import prompt_for
from twofold.core.errors import UsageError
from twofold.engine.prompts import GivenPrompt
from twofold.text.tokenizer import Tokenizer

BLOCK = 16
"""Positions of a KV block: what a prompt may have beyond its last full one."""


@pytest.fixture
def chat(twofold: Command, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    def talk(*lines: str, flags: tuple[str, ...] = ()) -> Result:
        monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(lines)))
        return twofold("chat", "-m", tiny, "-n", 4, "--ignore-eos", "--temperature", 0, *flags)

    return talk


def prompt_sizes(result: Result) -> list[int]:
    return [int(line.split()[0]) for line in result.err.splitlines() if "prompt tokens" in line]


def test_turns_grow_the_prompt(chat: Command) -> None:
    result = chat("in the", "on the", "at the")
    assert result.code == 0
    sizes = prompt_sizes(result)
    assert len(sizes) == 3
    assert sizes == sorted(set(sizes))


def cached(result: Result) -> list[int]:
    """How many tokens of each prompt came from the cache."""
    found = [re.search(r"prompt tokens(?: \((\d+) cached\))?:", line) for line in result.err.splitlines()]
    return [int(match[1] or 0) for match in found if match]


def test_a_turn_computes_only_what_is_new(chat: Command) -> None:
    lines = ("in the " * 20, "on the", "at the")
    result, fresh = chat(*lines), chat(*lines, flags=("--no-enable-prefix-caching",))
    first, second, third = cached(result)
    assert first == 0 < second < third
    assert second >= prompt_sizes(result)[0] - BLOCK
    assert third >= prompt_sizes(result)[1] - BLOCK
    assert cached(fresh) == [0, 0, 0]
    assert result.out == fresh.out


@pytest.mark.model
def test_a_turn_of_a_real_model_computes_only_what_is_new(
    twofold: Command, default_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Tell me about the sea.\nAnd the sky?"))
    result = twofold("chat", "-m", default_model, "-c", 512, "-n", 8, "--temperature", 0)
    first, second = cached(result)
    assert (result.code, first) == (0, 0)
    assert second >= prompt_sizes(result)[0] - BLOCK


def test_reset_forgets_the_turns(chat: Command) -> None:
    first, _, third = prompt_sizes(chat("in the", "in the", "/reset", "in the"))
    assert first == third


def test_a_system_message_stays(chat: Command) -> None:
    plain, with_system = prompt_sizes(chat("in the", "/system is", "in the"))
    assert with_system > plain
    (given,) = prompt_sizes(chat("in the", flags=("--system", "is")))
    assert given == with_system


def test_help_and_mistakes(chat: Command) -> None:
    result = chat("/help", "/rest", "/system", "", "/exit", "in the")
    assert result.code == 0
    assert "/reset" in result.err
    assert "Did you mean /reset?" in result.err
    assert "There is no system message." in result.err
    assert prompt_sizes(result) == []


def test_a_prompt_that_does_not_fit_leaves_the_conversation_alive(chat: Command) -> None:
    result = chat("in the " * 100, "in the", flags=("-c", "64"))
    assert result.code == 0
    assert "does not fit" in result.err
    assert len(prompt_sizes(result)) == 1


def test_no_chat_template(capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer.from_metadata(tokenizer_metadata(300))
    assert prompt_for(tokenizer, "in the", None, raw=False) == GivenPrompt(text="in the")
    assert "no chat template" in capsys.readouterr().err
    assert prompt_for(tokenizer, "in the", None, raw=True) == GivenPrompt(text="in the")
    assert capsys.readouterr().err == ""
    with pytest.raises(UsageError, match="no system message"):
        prompt_for(tokenizer, "in the", "is", raw=False)
