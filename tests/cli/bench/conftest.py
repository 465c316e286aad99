"""``twofold bench`` with a stub that responds as the command's ``--extra-body`` says."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from tests.bench.stub.fixtures import running_stub, stub
from tests.bench.stub.live import LiveStub
from tests.bench.stub.script import Script
from tests.cli.conftest import Command, Result

__all__ = ["running_stub", "stub"]

QUICK = Script(first_s=0.01, gap_s=0.002)
SHORT = {"--input-tokens": 24, "--output-tokens": 6}


@dataclass(frozen=True, slots=True)
class Bench:
    """Runs ``twofold bench serve`` in this process, by default with short prompts and completions."""

    command: Command
    url: str

    def __call__(self, *arguments: object, script: Script = QUICK) -> Result:
        lengths = {} if "--trace" in arguments else SHORT
        given = {"--url": self.url, **lengths, "--extra-body": json.dumps(script.fields)}
        flags = [part for name, value in given.items() if name not in arguments for part in (name, value)]
        return self.command("bench", "serve", *flags, *arguments)

    def found(self, *arguments: object, script: Script = QUICK) -> dict[str, Any]:
        """The document of a successful benchmark."""
        result = self(*arguments, "--json", "--quiet", script=script)
        assert result.code == 0, result.err
        document: dict[str, Any] = json.loads(result.out)
        return document

    def summary(self, *arguments: object, script: Script = QUICK) -> dict[str, Any]:
        """The figures of its only run."""
        (run,) = self.found(*arguments, script=script)["runs"]
        summary: dict[str, Any] = run["summary"]
        return summary


@pytest.fixture
def bench(twofold: Callable[..., Result], stub: LiveStub) -> Bench:
    return Bench(twofold, stub.url)
