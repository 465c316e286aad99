"""``twofold chat`` with lines from a pipe."""

from __future__ import annotations

import io
import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Command, Result
from twofold.cli.chat.base import ChatCompletion, PromptRequest
from twofold.cli.chat.loop import Chat, is_open, message
from twofold.cli.chat.state import ChatSettings, Transcript
from twofold.cli.console import Write
from twofold.cli.options import DisplayOptions, SamplingOptions
from twofold.core.errors import NetworkError, UsageError
from twofold.core.sampling_defaults import NONE

BLOCK = 16
"""Positions of a KV block. A prompt may have up to this many tokens after its last full block."""


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
    """The number of cached tokens of each prompt."""
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
    plain, with_system = prompt_sizes(chat("in the", "/system is", "/clear", "in the"))
    assert with_system > plain
    (given,) = prompt_sizes(chat("in the", flags=("--system", "is")))
    assert given == with_system


def test_help_and_mistakes(chat: Command) -> None:
    result = chat("/help", "/rest", "/set tmperature", "/system", "", "/exit", "in the")
    assert result.code == 0
    assert "/regenerate" in result.err
    assert "Did you mean /reset?" in result.err
    assert "Did you mean temperature?" in result.err
    assert "There is no system message." in result.err
    assert prompt_sizes(result) == []


def test_a_message_that_does_not_fit_keeps_the_conversation(chat: Command) -> None:
    result = chat("in the " * 100, "in the", flags=("-c", "64"))
    assert result.code == 0
    assert "does not fit the context of 64" in result.err
    assert "-c" in result.err
    assert len(prompt_sizes(result)) == 1


def test_a_message_that_does_not_fit_alone_drops_nothing(chat: Command) -> None:
    result = chat("in the", "on the", "in the " * 100, "/show", "at the", flags=("-c", "128"))
    assert result.code == 0
    assert "does not fit the context of 128" in result.err
    assert "context is full" not in result.err
    assert re.search(r"^turns +2$", result.err, re.MULTILINE)
    first, second, third = prompt_sizes(result)
    assert first < second < third


def test_dropped_turns_are_counted_in_one_line(chat: Command) -> None:
    lines = ["in the"] * 4
    result = chat(*lines, "in the " * 40, flags=("-c", "128"))
    assert [line for line in result.err.splitlines() if "context is full" in line] == [
        "The context is full: the oldest 3 turns were not sent."
    ]
    alone = chat("in the", "in the " * 40, "/show", flags=("-c", "100"))
    assert "The context is full: the oldest turn was not sent." in alone.err
    assert re.search(r"^turns +2, the oldest 1 no longer sent$", alone.err, re.MULTILINE)


def test_a_full_context_drops_the_oldest_turns(chat: Command) -> None:
    result = chat(*["in the on the"] * 12, flags=("-c", "128", "--system", "is"))
    assert result.code == 0
    assert "error" not in result.err
    sizes = prompt_sizes(result)
    assert len(sizes) == 12
    assert max(sizes) + 4 <= 128
    dropped = [line for line in result.err.splitlines() if line.startswith("The context is full: the oldest ")]
    assert 0 < len(dropped) < 6
    assert any(later < before for before, later in pairwise(sizes))


def test_the_system_message_outlives_the_oldest_turns() -> None:
    transcript = Transcript("is")
    for number in range(3):
        transcript.add(f"q{number}", f"a{number}")
    transcript.drop()
    assert transcript.dropped == 2
    assert [message["content"] for message in transcript.messages("q3")] == ["is", "q2", "a2", "q3"]
    transcript.drop()
    assert transcript.dropped == 3
    assert [message["content"] for message in transcript.messages("q3")] == ["is", "q3"]


def test_cut_completions_are_marked(chat: Command) -> None:
    result = chat("in the", "/set max_tokens 2", "in the", flags=("--no-stats",))
    stops = [line for line in result.err.splitlines() if line.startswith("Stopped at ")]
    assert stops == [f"Stopped at {n} tokens; /set max_tokens raises the limit." for n in (4, 2)]
    full = chat("/set max_tokens 100", "in the", flags=("-c", "32", "--no-stats"))
    assert "Stopped: the context of 32 tokens is full." in full.err


def test_statistics_are_switched(chat: Command) -> None:
    assert prompt_sizes(chat("in the", flags=("--no-stats",))) == []
    assert chat("in the", flags=("--quiet",)).err == ""
    assert len(prompt_sizes(chat("in the", "/stats off", "in the", "/stats on", "in the"))) == 2
    assert "prefill" in chat("in the", "/timeline", flags=("--no-stats",)).err
    assert "loaded in" in chat(flags=("--verbose",)).err


def test_settings_change_the_next_reply(chat: Command) -> None:
    result = chat(
        "/set temp 0.5", "/set top_k 3", "/set seed 7", "/set", "/set max_tokens 0", "/set stop x", "/set stop"
    )
    assert result.err.splitlines()[:3] == ["temperature is 0.5.", "top_k is 3.", "seed is 7."]
    assert "max_tokens must be a whole number from 1" in result.err
    assert result.err.splitlines()[-1] == "'x'"
    lengths = [len(line) for line in chat("in the", "/set max_tokens 8", "in the").out.splitlines()]
    assert lengths[1] > lengths[0]


@pytest.mark.parametrize(
    ("text", "shown"), [("é\\n", r"'é\n'"), ("→\\t.", r"'→\t.'"), (r"\\x", r"'\\x'"), ("off", "off")]
)
def test_a_stop_text_may_have_escapes(chat: Command, text: str, shown: str) -> None:
    assert chat(f"/set stop {text}", "/set stop").err.splitlines()[-1] == shown


def test_a_stop_text_with_an_invalid_escape_is_an_error(chat: Command) -> None:
    result = chat("/set stop \\x", "/set stop")
    assert "stop must be a text with valid escapes" in result.err
    assert (result.code, result.err.splitlines()[-1]) == (0, "off")


def test_turns_are_taken_back_and_generated_again(chat: Command) -> None:
    result = chat("/undo", "in the", "on the", "/undo", "on the", "/regenerate")
    assert "There is nothing to undo." in result.err
    assert "Took back: on the" in result.err
    sizes = prompt_sizes(result)
    assert sizes[1] == sizes[2] == sizes[3] > sizes[0]
    assert result.out.splitlines()[1:] == result.out.splitlines()[1:2] * 3


def test_a_chat_is_saved_and_continued(chat: Command, tmp_path: Path) -> None:
    file, page, other = tmp_path / "talk.json", tmp_path / "talk.md", tmp_path / "other.txt"
    other.write_text("precious")
    whole = chat("in the", "on the", flags=("--system", "is"))
    saved = chat(
        "in the",
        "/set top_k 3",
        f"/save {file}",
        f"/save {page}",
        f"/save {other}",
        f"/save {file}",
        flags=("--system", "is"),
    )
    assert "is not a saved chat" in saved.err
    assert other.read_text() == "precious"
    document = json.loads(file.read_text())
    assert [message["role"] for message in document["messages"]] == ["system", "user", "assistant"]
    assert "**User**" in page.read_text()
    for result in (chat(f"/load {file}", "/set top_k", "on the"), chat("on the", flags=("--load", str(file)))):
        assert prompt_sizes(result) == prompt_sizes(whole)[1:]
    assert "\n3\n" in chat(f"/load {file}", "/set top_k").err


@pytest.mark.parametrize(
    "document", ["", "[1]", "{}", '{"messages": [{"role": "user", "content": "x"}]}', '{"messages": [{"role": "x"}]}']
)
def test_invalid_chats_are_not_loaded(document: str, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    file.write_text(document)
    transcript = Transcript("is", [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}])
    with pytest.raises(UsageError, match=r"talk\.json"):
        transcript.load(file)
    assert (transcript.system, len(transcript.turns)) == ("is", 2)


def test_a_chat_with_invalid_settings_is_not_loaded(chat: Command, tmp_path: Path) -> None:
    file, turn = tmp_path / "chat.json", [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    file.write_text(json.dumps({"messages": turn * 2, "settings": {"top_k": "many"}}))
    result = chat("in the", f"/load {file}", "/show")
    assert "error: " in result.err
    assert "turns               1\n" in result.err


class FailingModel:
    """A model whose server is gone."""

    name, context, has_template, defaults = "gone", None, True, NONE

    def complete(self, request: PromptRequest, write: Write) -> ChatCompletion:  # noqa: ARG002
        raise NetworkError("The server is gone.")

    def statistics(self) -> str:
        return ""

    def explain(self) -> list[str]:
        return []

    def loading(self) -> str:
        return ""

    def as_json(self) -> dict[str, Any]:
        return {}

    def models(self) -> list[str]:
        return []

    def use(self, name: str) -> None:
        raise NetworkError(f"The server of {name} is gone.")


def test_a_failed_regeneration_keeps_the_last_turn(capsys: pytest.CaptureFixture[str]) -> None:
    turns = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    chat = Chat(FailingModel(), ChatSettings(SamplingOptions(), DisplayOptions()), Transcript(None, list(turns)))
    chat.take("/regenerate")
    assert "The server is gone." in capsys.readouterr().err
    assert chat.transcript.turns == turns


def test_the_model_changes_and_the_conversation_stays(chat: Command, base: Path, tiny: Path) -> None:
    result = chat("in the", "/model gone.gguf", "in the", f"/model {base}", "in the", f"/model {tiny}", "in the")
    assert "gone.gguf" in result.err
    sizes = prompt_sizes(result)
    assert len(sizes) == 4
    assert sizes[0] < sizes[1] < sizes[3]
    assert sizes[2] < sizes[0]
    assert f"{base.stem}. /help" in result.err


def test_messages_of_several_lines(chat: Command) -> None:
    assert message('"""in\nthe"""') == "in\nthe"
    assert message("in \\\nthe") == "in \nthe"
    assert not is_open('"""in"""')
    assert len(prompt_sizes(chat('"""in', "the", '"""', "in \\", "the", "/etc/passwd the"))) == 3


def test_a_base_model_completes_each_message(twofold: Command, base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("in the\nin the\n/system is"))
    result = twofold("chat", "-m", base, "-n", 4)
    assert "it completes each message by itself" in result.err
    assert "which a system message needs" in result.err
    first, second = prompt_sizes(result)
    assert first == second
    assert twofold("chat", "-m", base, "--system", "is").code == 2


def test_a_traced_chat_keeps_its_model(chat: Command, base: Path, tmp_path: Path) -> None:
    result = chat(f"/model {base}", "in the", flags=("--trace", str(tmp_path / "trace.json")))
    assert "A chat with --trace keeps its model." in result.err
    assert len(prompt_sizes(result)) == 1
