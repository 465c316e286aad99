"""The Makefile: signals reach the commands that it starts, and what it installs can be imported from any folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import time
import venv
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MAKEFILE = REPOSITORY / "Makefile"
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


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_package_is_found_in_the_folder_above_the_clone(tmp_path: Path) -> None:
    """There, a clone named twofold is itself a package without a name space of its own, before any finder."""
    clone = tmp_path / "twofold"
    (clone / "twofold" / "core").mkdir(parents=True)
    for name in ("pyproject.toml", "README.md", "LICENSE", "twofold/__init__.py"):
        shutil.copy(REPOSITORY / name, clone / name)
    (clone / "twofold" / "__init__.py").write_text("FOUND = 1\n")
    for name in ("requirements.lock", "Makefile"):  # the first one names nothing
        (clone / name).touch()
    venv.create(clone / ".venv", with_pip=False)
    (clone / ".venv" / ".python").touch()
    packages = next((clone / ".venv").rglob("site-packages"))
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # setuptools
    pip = f"{sys.executable} -m pip --python .venv/bin/python install --quiet --disable-pip-version-check"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = ["make", "--directory", str(clone), "--file", str(MAKEFILE), f"INSTALL={pip}", ".venv/.runtime"]
    done = subprocess.run(command, env=kept, capture_output=True, text=True, check=False, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    for script in ("from twofold import FOUND", "import twofold; twofold.FOUND"):
        subprocess.run([clone / ".venv/bin/python", "-c", script], cwd=tmp_path, env=kept, check=True, timeout=PATIENCE)


def wait_for(path: Path) -> None:
    until = time.monotonic() + PATIENCE
    while not path.exists():
        assert time.monotonic() < until
        time.sleep(0.02)
