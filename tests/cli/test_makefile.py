"""The Makefile: signals reach the commands that it starts."""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path

import pytest

MAKEFILE = Path(__file__).parents[2] / "Makefile"
COMMAND = """#!/bin/sh
trap "echo stopped > stopped; exit 143" TERM
echo started > started
for step in $(seq 400); do sleep 0.05; done
"""
PATIENCE = 300


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
@pytest.mark.parametrize("target", ["serve", "run"])
def test_sigterm_of_make_reaches_the_command(tmp_path: Path, target: str) -> None:
    """Otherwise the server would keep running, and its port stay in use, when a supervisor stops ``make serve``."""
    command = tmp_path / ".venv" / "bin" / "twofold"
    command.parent.mkdir(parents=True)
    command.write_text(COMMAND)
    command.chmod(0o755)
    (tmp_path / ".venv" / ".runtime").touch()
    make = subprocess.Popen(["make", "--file", str(MAKEFILE), "--assume-old", ".venv/.runtime", target], cwd=tmp_path)
    wait_for(tmp_path / "started")
    make.terminate()
    make.wait(PATIENCE)
    wait_for(tmp_path / "stopped")


def wait_for(path: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
