"""Ratchets on the size of files and functions. Lower a limit when the code allows it; do not raise one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.structure.sources import ROOT, functions, length, python_files

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60

FILES = list(python_files("twofold", "tests", "benchmarks"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FILE_LINES
    assert not {f.name: length(f) for f in functions(ast.parse(text)) if length(f) > MAX_FUNCTION_LINES}
