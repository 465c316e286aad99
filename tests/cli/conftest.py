"""Runs commands in this process and in others, with a cache folder for these tests only."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.cli.main import main

ROOT = Path(__file__).parents[2]
LONG_CONTEXT = 16_384


@dataclass(frozen=True, slots=True)
class Result:
    """The exit code and the outputs of a command."""

    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture(scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def variables(cache_folder: Path) -> Mapping[str, str]:
    """The environment of a command: the current one without the user's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TWOFOLD_")}
    return kept | {"TWOFOLD_CACHE": str(cache_folder), "PYTHONPATH": str(ROOT)}


@pytest.fixture(scope="session")
def tiny(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> Path:
    """A small model with random weights."""
    return tiny_gguf(TinyOptions(context=LONG_CONTEXT)).path


@pytest.fixture(scope="session")
def base(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> Path:
    """A model without a chat template, but with the control tokens of a family."""
    return tiny_gguf(TinyOptions(context=LONG_CONTEXT, chat_template=None)).path


@pytest.fixture
def twofold(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, variables: Mapping[str, str]
) -> Command:
    """Runs a command in this process: ``twofold("run", "hello", "-n", 3)``."""
    for name in os.environ.keys() - variables.keys():
        monkeypatch.delenv(name)
    monkeypatch.setenv("TWOFOLD_CACHE", variables["TWOFOLD_CACHE"])
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def run(*arguments: object) -> Result:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Result(code, captured.out, captured.err)

    return run


@pytest.fixture
def process(variables: Mapping[str, str]) -> Callable[..., subprocess.Popen[str]]:
    """Starts a command in a process of its own, with pipes for its streams."""

    def start(
        *arguments: object,
        stdin: int | IO[str] = subprocess.PIPE,
        stdout: int | IO[str] = subprocess.PIPE,
        **settings: str,
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "twofold", *map(str, arguments)],
            stdin=stdin,
            stdout=stdout,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env={**variables, **settings},
        )

    return start
