"""Every command line of README and docs: its flags exist, and what runs offline prints what is shown, up to numbers."""

from __future__ import annotations

import re
import shlex
import subprocess

import pytest

from tests.docs.blocks import REPOSITORY, Command, blocks, commands, holds
from twofold.cli.main import app, main

OFFLINE = ("explain", "plan", "price", "lifetime", "crossover", "simulate")
"""Commands of the cost model: they need no model, no server and no network."""
TRACES = ("azure_conv_2023.csv", "mooncake_conversation.jsonl.gz")

NOT_RUN = {
    "twofold run": "answers of a model, none of which is shown; tests/cli runs the command",
    "twofold chat": "a conversation; tests/cli runs the command",
    "twofold serve": "a server that stays; tests/server starts it",
    "twofold ps": "needs a running server",
    "twofold fleet": "needs a running server; tests/cli/test_replicas.py runs it",
    "twofold load": "needs a running server",
    "twofold unload": "needs a running server",
    "twofold stop": "needs a running server",
    "twofold keys": "writes into the user's folder; tests/cli runs it in another one",
    "twofold batch": "needs the file of its example; tests/api/batch runs it",
    "twofold bench": "measures for minutes; test_live runs what is shown, tests/cli/bench each form against a stub",
    "twofold doctor": "measures this machine; tests/planner/calibrate and tests/cli run it",
    "twofold kernels": "shows machine code of this processor; tests/cli runs it",
    "twofold kv": "needs a store on disk; tests/cli runs it",
    "twofold pull": "needs the network",
    "twofold ls": "shows this machine's cache",
    "twofold show": "needs a model that the network has",
    "twofold rm": "deletes",
    "twofold completion": "prints a shell script; tests/cli runs it",
    "twofold simulate --check": "needs a calibrated machine; tests/planner/simulate runs it",
    "twofold simulate --trace …": "names no trace",
    "twofold simulate --model llama-3.1-8b --hardware h100 --replicas": "takes a minute, and shows nothing",
    "twofold explain run.json": "needs the file of a run",
    "twofold explain http": "needs a running server",
    "twofold explain bench.json": "needs the file of a bench",
}
"""Why a command is parsed, and not run: by how it begins."""

SHOWN = [each for each in commands() if each.words[0] == "twofold"]


def id_of(command: Command) -> str:
    return f"{command.block.place}: {command.line[:60]}"


def not_run(line: str) -> str | None:
    return next((why for begin, why in NOT_RUN.items() if line.startswith(begin)), None)


def alternatives(words: list[str]) -> list[list[str]]:
    """``ps | load MODEL`` are two commands, ``completion bash | zsh`` is one with two arguments."""
    rest = shlex.join(words[1:]).replace("'|'", "|").split(" | ")
    argument = rest[-1].split()[1:]
    if len(rest[0].split()) > 1:
        return [[rest[0].split()[0], each.split()[-1]] for each in rest]
    return [[*each.split(), *(argument if len(each.split()) == 1 and len(rest) > 1 else [])] for each in rest]


def test_there_are_commands() -> None:
    assert len(SHOWN) > 30
    assert {each.block.page for each in SHOWN} >= {"README.md", "bench.md", "explain.md", "plan.md", "price.md"}


@pytest.mark.parametrize("command", SHOWN, ids=id_of)
def test_flags_and_arguments_exist(command: Command) -> None:
    """Each is one that its command has, with a value of its kind."""
    if " | " in command.line:
        for words in alternatives(command.words):
            assert words[0] in app(), words
        return
    words = ["http://127.0.0.1" if word == "…" else word for word in command.words[1:]]
    app().parse_args(words, exit_on_error=False, print_error=False)


@pytest.mark.parametrize("command", SHOWN, ids=id_of)
def test_what_is_shown_is_printed(
    command: Command,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    """Where it can be run here; a command that cannot must be listed with a reason."""
    words = command.words
    if not_run(command.line) is not None:
        assert words[1] not in OFFLINE or re.search(r"\.json|http|…", command.line)
        return
    assert words[1] in OFFLINE, f"{command.line}: neither run nor listed in NOT_RUN"
    if any(name in words for name in TRACES):
        monkeypatch.chdir(request.getfixturevalue("test_data") / "traces")
    monkeypatch.setenv("COLUMNS", "100")
    code = main(words[1:])
    printed = capsys.readouterr()
    if code:
        assert command.output, f"{printed.err} - and nothing says so"
    assert holds(command.output, printed.out + printed.err) == ""


def test_make_has_the_targets() -> None:
    for command in commands():
        if command.words[0] == "make":
            subprocess.run(["make", "-n", *command.words[1:]], cwd=REPOSITORY, check=True, capture_output=True)


def test_explain_md_shows_what_the_command_above_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Its sample stands in a block of its own."""
    page = [each for each in blocks() if each.page == "explain.md"]
    (sample,) = (each for each in page if each.text.startswith("llama-3-70b"))
    (line,) = (each.line for each in commands() if each.block.page == "explain.md" and "--batch 16" in each.line)
    assert main([*shlex.split(line)[1:]]) == 0
    assert holds(sample.text, capsys.readouterr().out) == ""


@pytest.mark.parametrize("page", ["predict.md"])
def test_python_runs_as_it_stands(page: str) -> None:
    for block in blocks():
        if block.page == page and block.language == "python":
            exec(compile(block.text, block.place, "exec"), {})


def test_python_is_python() -> None:
    for block in blocks():
        if block.language == "python":
            compile(block.text, block.place, "exec")


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a 12 b", "x\na 7.5\nb c", True),
        ("a\n…\nc", "a b c", True),
        ("a c", "a b c", False),
        ("12 ms", "13 s", False),
    ],
)
def test_shapes(shown: str, printed: str, same: bool) -> None:
    assert (holds(shown, printed) == "") == same


def test_listed_reasons_are_used() -> None:
    for begin in NOT_RUN:
        if not any(each.line.startswith(begin) for each in SHOWN):
            assert begin in {"twofold kernels", "twofold completion", "twofold ls", "twofold rm", "twofold pull"}, begin
