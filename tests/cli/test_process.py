"""The command as a process: signals, pipes, start-up."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.cli.conftest import LONG_CONTEXT, ROOT

Start = Callable[..., "subprocess.Popen[str]"]
ENDLESS = ("--ignore-eos", "-n", LONG_CONTEXT - 100)
PATIENCE = 300
SCRIPT = "import sys; from twofold.__main__ import start; sys.exit(start())"
"""What installers make of the entry in pyproject.toml."""


def test_ctrl_c_keeps_the_completion_so_far(process: Start, tiny: Path) -> None:
    command = process("run", "in the", "-m", tiny, *ENDLESS, stdin=subprocess.DEVNULL)
    assert command.stdout is not None
    first = command.stdout.read(1)
    command.send_signal(signal.SIGINT)
    rest, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == 130
    assert first
    assert rest.endswith("\n")
    assert "prompt tokens: TTFT" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    "imported", ["twofold.cli", "dataclasses", "twofold.core.errors", "twofold.cli.main", "cyclopts"]
)
@pytest.mark.parametrize("script", [False, True])
def test_ctrl_c_at_the_start(imported: str, script: bool, variables: Mapping[str, str]) -> None:
    """Python says when it has imported a module; whatever runs next is interrupted."""
    start = ["-c", SCRIPT] if script else ["-m", "twofold"]
    with subprocess.Popen(
        [sys.executable, "-X", "importtime", *start, "serve", "--help"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=variables,
        text=True,
    ) as command:
        assert command.stderr is not None
        for line in command.stderr:
            if line.rstrip().endswith(f" {imported}"):
                break
        command.send_signal(signal.SIGINT)
        _, errors = command.communicate(timeout=PATIENCE)
    told = [line for line in errors.splitlines() if not line.startswith("import time:")]
    assert (command.returncode, "".join(told)) == (130, "")


def test_nothing_is_imported_before_ctrl_c_can_be_handled(variables: Mapping[str, str]) -> None:
    """``twofold.__main__`` handles it; Python imports the package before."""
    show = "import sys; before = set(sys.modules); import twofold; print(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", show], capture_output=True, env=variables, text=True, check=True)
    assert {*run.stdout.split()} <= {"__future__", "twofold"}


def test_ctrl_c_in_a_chat_stops_only_the_reply(process: Start, tiny: Path) -> None:
    command = process("chat", "-m", tiny, *ENDLESS)
    assert command.stdin is not None
    assert command.stdout is not None
    command.stdin.write("in the\n")
    command.stdin.flush()
    assert command.stdout.read(1)
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate("/exit\n", timeout=PATIENCE)
    assert command.returncode == 0
    assert "Traceback" not in errors


def test_a_closed_output(process: Start, tiny: Path) -> None:
    with process("run", "in the", "-m", tiny, *ENDLESS, stdin=subprocess.DEVNULL) as command:
        assert command.stdout is not None
        assert command.stderr is not None
        command.stdout.read(1)
        command.stdout.close()
        errors = command.stderr.read()
        assert command.wait(PATIENCE) == 141
    assert "Traceback" not in errors
    assert "Exception" not in errors


def test_an_output_on_a_full_disk(process: Start, tiny: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("only Linux has /dev/full")
    for words in (
        ["run", "in the", "-m", tiny, "-n", 1],
        ["ls"],
        ["explain", "-m", "llama-3-8b", "--hardware", "h100"],
    ):
        with full.open("w") as output:
            command = process(*words, stdin=subprocess.DEVNULL, stdout=output)
            _, errors = command.communicate(timeout=PATIENCE)
        assert command.returncode == 4
        assert "error: The output cannot be written: No space left on device." in errors
        assert "Exception" not in errors


def test_a_prompt_that_is_no_text(process: Start, tiny: Path, tmp_path: Path) -> None:
    latin = tmp_path / "latin.txt"
    latin.write_bytes("Grüße".encode("latin-1"))
    with latin.open() as given:
        command = process("run", "-m", tiny, "-n", 1, stdin=given, LANG="C.UTF-8", LC_ALL="C.UTF-8")
        _, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == 2
    assert "error: Standard input is not UTF-8 text." in errors


def test_a_prompt_through_a_pipe(process: Start, tiny: Path) -> None:
    command = process("run", "-m", tiny, "-n", 3, "--ignore-eos", "--json")
    out, _ = command.communicate("in the", timeout=PATIENCE)
    assert command.returncode == 0
    assert json.loads(out)["usage"]["completion_tokens"] == 3


def test_piped_text_follows_the_prompt(process: Start, tiny: Path) -> None:
    def tokens(*words: str, piped: str) -> int:
        command = process("run", *words, "-m", tiny, "-n", 1, "--json")
        return int(json.loads(command.communicate(piped, timeout=PATIENCE)[0])["usage"]["prompt_tokens"])

    assert tokens("in", piped="the") == tokens("-", piped="in\n\nthe") > tokens("in", piped="")


def test_a_silent_pipe_is_mentioned(process: Start, tiny: Path) -> None:
    command = process("run", "in the", "-m", tiny, "-n", 1)
    assert command.stderr is not None
    assert "Reading the prompt from standard input" in command.stderr.readline()
    command.communicate("", timeout=PATIENCE)
    assert command.returncode == 0


def test_an_internal_error_shows_where_only_when_asked(process: Start, tmp_path: Path) -> None:
    missing = tmp_path / "gone.gguf"
    quiet, loud = process("run", "-m", missing), process("run", "-m", missing, TWOFOLD_DEBUG="1")
    assert "Traceback" not in quiet.communicate("x", timeout=PATIENCE)[1]
    assert "Traceback" in loud.communicate("x", timeout=PATIENCE)[1]
    assert quiet.returncode == loud.returncode == 3


def test_start_up_imports_little() -> None:
    heavy = "{'numpy', 'llvmlite', 'tokenizers', 'rich', 'jinja2', 'huggingface_hub', 'prompt_toolkit'}"
    code = f"import sys, twofold.cli.main; sys.exit(str({heavy} & sys.modules.keys() or ''))"
    found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert found.stderr.strip() == ""


def test_a_run_imports_what_it_needs(variables: Mapping[str, str], tiny: Path) -> None:
    """Start-up is modules: those of grammars, downloads, versions and the planner's texts are for others."""
    command = [sys.executable, "-X", "importtime", "-m", "twofold", "run", "-m", str(tiny), "-n", "1", "in the"]
    run = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, env=variables, text=True, check=True, timeout=PATIENCE
    )
    lines = (line for line in run.stderr.splitlines() if line.startswith("import time:"))
    loaded = [line.rpartition("|")[2].strip() for line in lines]
    for name in (
        "llguidance",
        "importlib.metadata",
        "email",
        "huggingface_hub",
        "tomllib",
        "jinja2",
        "rich",
        "asyncio",
        "http",
    ):
        assert not [each for each in loaded if each == name or each.startswith(f"{name}.")], name
    assert 100 < sum(each.startswith("twofold") for each in loaded) < 205
    assert len(loaded) < 575, len(loaded)
