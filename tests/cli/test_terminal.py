"""Chat on a terminal: keys, history and completion, and the command on a pseudo-terminal."""

from __future__ import annotations

import os
import re
import select
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from twofold.cli.chat.terminal import MAX_HISTORY, CommandCompleter, TerminalReader

PATIENCE: Final = 300.0
PASTE: Final = "\x1b[200~{}\x1b[201~"


@pytest.fixture
def typed() -> Callable[..., list[str]]:
    """The messages that keys make; Ctrl-C at an empty prompt is "^C", the end is "^D"."""

    def messages(keys: str, history: Path | None = None) -> list[str]:
        found: list[str] = []
        with create_pipe_input() as pipe:
            pipe.send_text(keys + "\x04")
            reader = TerminalReader(history, list, input=pipe, output=DummyOutput())
            while not found or found[-1] != "^D":
                try:
                    found.append(reader.read())
                except KeyboardInterrupt:
                    found.append("^C")
                except EOFError:
                    found.append("^D")
        return found[:-1]

    return messages


@pytest.mark.parametrize(
    ("keys", "messages"),
    [
        ("one\rtwo\r", ["one", "two"]),
        (PASTE.format("one\ntwo\r\nthree") + "\r", ["one\ntwo\nthree"]),
        ("one\x1b\rtwo\r", ["one\ntwo"]),
        ("one\ntwo\r", ["one\ntwo"]),
        ("one\\\rtwo\r", ["one\ntwo"]),
        ('"""one\rtwo"""\r', ["one\ntwo"]),
        ("gone\x03one\r", ["one"]),
        ("\x03\x03", ["^C", "^C"]),
    ],
    ids=["enter", "paste", "alt-enter", "ctrl-j", "backslash", "quotes", "ctrl-c clears", "ctrl-c empty"],
)
def test_keys(keys: str, messages: list[str], typed: Callable[..., list[str]]) -> None:
    assert typed(keys) == messages


def test_the_history_outlives_the_chat_and_is_private(typed: Callable[..., list[str]], tmp_path: Path) -> None:
    file = tmp_path / "state" / "history"
    assert typed("one\rtwo\x1b\rlines\r", file) == ["one", "two\nlines"]
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert typed("three\r", file) == ["three"]
    assert list(FileHistory(str(file)).load_history_strings()) == ["three", "two\nlines", "one"]


def test_a_long_history_loses_its_older_half(typed: Callable[..., list[str]], tmp_path: Path) -> None:
    file = tmp_path / "history"
    file.write_text("".join(f"\n# 2026-01-01\n+message {number} {'x' * 1000}\n" for number in range(1200)))
    assert typed("one\r", file) == ["one"]
    text = file.read_text()
    assert MAX_HISTORY // 4 < len(text) < MAX_HISTORY * 0.6
    assert text.startswith("\n#")
    assert "message 1199 " in text


def test_without_a_writable_folder_only_the_history_is_lost(
    typed: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert typed("one\r", tmp_path / "file" / "history") == ["one"]
    assert "The history is not saved" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "offered"),
    [
        ("/re", {"/regenerate"}),
        ("/set te", {"temperature"}),
        ("/stats o", {"on", "off"}),
        ("/model sm", {"smollm2-135m"}),
        ("hello /re", set()),
        ("/nothing x", set()),
    ],
)
def test_completion(text: str, offered: set[str]) -> None:
    completer = CommandCompleter(lambda: ["smollm2-135m", "other"])
    found = {each.text for each in completer.get_completions(Document(text), CompleteEvent())}
    assert found == offered


class Screen:
    """A command on a pseudo-terminal, and its output so far."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self.text = ""

    def type(self, keys: str) -> None:
        os.write(self._descriptor, keys.encode())

    def until(self, pattern: str) -> str:
        """Waits for the pattern; returns and removes the output up to it, without escape sequences."""
        end = time.monotonic() + PATIENCE
        while (found := re.search(pattern, self.text)) is None:
            assert time.monotonic() < end, f"no {pattern!r} in {self.text!r}"
            if select.select([self._descriptor], [], [], 0.1)[0]:
                data = os.read(self._descriptor, 1 << 16).decode(errors="replace")
                if "\x1b[6n" in data:  # prompt_toolkit asks where the cursor is
                    self.type("\x1b[1;1R")
                self.text += re.sub(r"\x1b\[[\d;?]*[A-Za-z]|\x1b[()][A-Z0-9]", "", data)
        before, self.text = self.text[: found.end()], self.text[found.end() :]
        return before


@contextmanager
def on_terminal(
    variables: Mapping[str, str], *arguments: object, **settings: str
) -> Iterator[tuple[Screen, subprocess.Popen[bytes]]]:
    pty = pytest.importorskip("pty")
    master, slave = pty.openpty()
    environment = {**variables, "TERM": "xterm-256color", "COLUMNS": "80", "LINES": "24", **settings}
    environment.pop("NO_COLOR", None)
    command = [sys.executable, "-m", "twofold", *map(str, arguments)]
    process = subprocess.Popen(
        command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True
    )
    os.close(slave)
    try:
        yield Screen(master), process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)


def test_a_chat_on_a_terminal(variables: Mapping[str, str], tiny: Path, tmp_path: Path) -> None:
    flags = ("chat", "-m", tiny, "-n", 3, "--ignore-eos", "--temperature", 0)
    with on_terminal(variables, *flags, XDG_STATE_HOME=str(tmp_path)) as (screen, process):
        screen.until(r"/help lists the commands")
        screen.until(r">>> ")
        screen.type(PASTE.format("in the\non the") + "\r")
        screen.until(r"Stopped at 3 tokens")
        assert len(re.findall(r"prompt tokens", screen.until(r"output tokens:\s+TPOT"))) == 1
        screen.until(r">>> ")
        screen.type("/set max_tokens 16000\r")
        screen.until(r"max_tokens is 16000\.")
        screen.until(r">>> ")
        screen.type("at the\r")
        screen.until(r"at the\s")
        time.sleep(0.5)
        process.send_signal(2)
        screen.until(r"Stopped by Ctrl-C\.")
        screen.until(r"output tokens:\s+TPOT")
        screen.until(r">>> ")
        screen.type("\x03")
        screen.until(r"Press Ctrl-C again to leave")
        screen.until(r">>> ")
        screen.type("\x03")
        assert process.wait(PATIENCE) == 0
    assert "+at the" in (tmp_path / "twofold" / "chat_history").read_text()


def test_errors_are_folded_between_words(variables: Mapping[str, str], tiny: Path) -> None:
    """A hint such as that of a wrong model names many words of which none is broken."""
    with on_terminal(variables, "chat", "-m", tiny) as (screen, process):
        screen.until(r">>> ")
        screen.type("/model nope\r")
        told = screen.until(r"error:.*\r\nhint:  (.+\r\n)+[^\r\n]*>>> ")
        lines = told[told.index("error:") :].splitlines()[:-1]
        assert len(lines) > 2
        assert all(len(line) < 80 for line in lines)
        assert all(line.startswith(" " * 7) for line in lines[2:])
        screen.type("\x04")
        assert process.wait(PATIENCE) == 0


def test_run_on_a_terminal_ends_its_line(variables: Mapping[str, str], tiny: Path) -> None:
    flags = ("run", "in the", "-m", tiny, "-n", 3, "--ignore-eos", "--no-stats")
    with on_terminal(variables, *flags) as (screen, process):
        screen.until(r"\r\nStopped at 3 tokens; -n raises the limit")
        assert process.wait(PATIENCE) == 0
