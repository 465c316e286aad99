"""The wheel and the source distribution: built, installed outside the checkout, and used."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from twofold.host.paths import CacheFolders

ROOT = Path(__file__).parents[1]
BUILD = "import sys; from setuptools import build_meta as b; print(getattr(b, 'build_' + sys.argv[1])(sys.argv[2]))"
PATIENCE = 900


def ran(command: Sequence[object], folder: Path, **variables: str) -> str:
    """What a command prints, with nothing of this checkout in its environment."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TWOFOLD_", "PYTHON"))}
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env={**kept, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from what a clone has: the files that git tracks, and new ones that it does not ignore."""
    folder = tmp_path_factory.mktemp("sdist")
    clone = folder / "clone"
    listed = ran(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], ROOT)
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            (clone / name).write_bytes((ROOT / name).read_bytes())
    built = ran([sys.executable, "-c", BUILD, "sdist", folder], clone).split()[-1]
    return folder / built


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the source distribution, as an installer would."""
    folder = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        safe: Any = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}  # from Python 3.11.4 on
        archive.extractall(folder, **safe)
    built = ran([sys.executable, "-c", BUILD, "wheel", folder], folder / sdist.name.removesuffix(".tar.gz"))
    return folder / built.split()[-1]


def test_the_wheel_has_every_file_of_the_package(wheel: Path) -> None:
    ours = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "twofold").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    packed = set(zipfile.ZipFile(wheel).namelist())
    assert ours <= packed
    assert {name.partition("/")[0] for name in packed} == {
        "twofold",
        wheel.name.removesuffix("-py3-none-any.whl") + ".dist-info",
    }


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The command of an environment that has the wheel, and borrows the packages that it needs from this one."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, with_pip=False)
    packages = next(folder.rglob("site-packages"))
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin" / "python"]
    ran([*pip, "install", "--quiet", "--no-deps", "--no-index", wheel], folder)
    (packages / "borrowed.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # its own .pth files do not count
    return folder / "bin" / "twofold"


def test_the_installed_command_knows_its_version_and_tables(installed: Path, wheel: Path) -> None:
    assert ran([installed, "--version"], installed.parent).strip() == wheel.name.split("-")[1]
    where = ran([installed.with_name("python"), "-c", "import twofold; print(twofold.__file__)"], installed.parent)
    assert where.startswith(str(installed.parents[1]))
    assert "claude" in ran([installed, "price", "claude-sonnet-4-6"], installed.parent)


@pytest.mark.model
def test_the_installed_command_answers(installed: Path, default_model: Path) -> None:
    assert_answers(installed, default_model, {"TWOFOLD_CACHE": str(CacheFolders.of().root)})


@pytest.mark.model
@pytest.mark.skipif("TWOFOLD_TEST_INSTALL" not in os.environ, reason="TWOFOLD_TEST_INSTALL=1 installs from pip's index")
def test_pip_alone_installs_it(wheel: Path, default_model: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    pip = tmp_path / "venv" / "bin" / "pip"
    found = subprocess.run([pip, "install", "--quiet", wheel], capture_output=True, text=True, check=False)
    if "No matching distribution found" in found.stderr or "Retrying (" in found.stderr:
        pytest.skip(f"pip cannot fetch the dependencies: {found.stderr.strip().splitlines()[-1]}")
    assert found.returncode == 0, found.stderr
    assert_answers(pip.with_name("twofold"), default_model, {"TWOFOLD_CACHE": str(tmp_path / "cache")})


def assert_answers(command: Path, model: Path, variables: Mapping[str, str]) -> None:
    flags = ("-n", "8", "--temperature", "0", "-m", model)
    assert len(ran([command, "run", *flags, "Why is the sky blue?"], command.parent, **variables).split()) > 3


def test_the_quick_tests_exist() -> None:
    for line in (ROOT / "tests" / "smoke.txt").read_text().splitlines():
        path, _, name = line.partition("::")
        assert (ROOT / path).exists(), line
        assert not name or f"def {name.partition('[')[0]}(" in (ROOT / path).read_text(), line


def test_no_pattern_has_a_possessive_group() -> None:
    """Python before 3.11.5 matches some of them wrongly (its issue 106052)."""
    for path in (ROOT / "twofold").rglob("*.py"):
        assert not re.search(r"\)[*+?]\+(?!,)", path.read_text()), path
