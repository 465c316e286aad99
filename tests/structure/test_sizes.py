"""Ratchets on the size of files and functions. Lower a limit when the code allows it; do not raise one."""

from __future__ import annotations

import ast
from pathlib import Path
from statistics import median

import pytest

from tests.structure.sources import ROOT, functions, length, package_sources, python_files

MOST_FILE_LINES = 400
MOST_FUNCTION_LINES = 60
MOST_MEDIAN_LINES = 9

FILES = list(python_files("twofold", "tests", "benchmarks"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    assert lines < MOST_FILE_LINES
    long = {f.name: length(f) for f in functions(ast.parse(text)) if length(f) > MOST_FUNCTION_LINES}
    assert not long


def test_the_median_function_of_the_package_is_short() -> None:
    lengths = [length(function) for source in package_sources() for function in functions(source.tree)]
    assert median(lengths) <= MOST_MEDIAN_LINES
