"""What `twofold fleet init` says where the package for certificates is missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from twofold.cli.main import main


def test_without_its_package_the_hint_is_a_command_for_this_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.asymmetric", None)
    assert main(["fleet", "init", str(tmp_path / "certs")]) == 2
    assert f"{sys.executable} -m pip install cryptography" in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "certs").exists()
