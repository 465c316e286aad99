"""Limits on the lines of files, functions and the whole package."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.structure.sources import PACKAGE, ROOT, functions, length, python_files
from twofold.web.page import WebPage, sources

MAX_FILE_LINES = 600
MAX_SCRIPT_LINES = 399
MAX_PAGE_FILES = 8
MAX_PAGE_BYTES = 262_000
MAX_PAGE_GZIP_BYTES = 87_500
"""Of all files of the web page as they are shipped, of which a view loads its own when it is opened. The goals are
150 kB and 48 kB. deno lint measures their functions."""
MAX_FIRST_BYTES = 149_000
MAX_FIRST_GZIP_BYTES = 47_300
"""Of the files before one can type. The goals are 75 kB and 25 kB."""
MAX_FUNCTION_LINES = 60
MAX_PACKAGE_LINES = 100_191
"""Lower it after a cleanup. A commit that needs more lines raises it, and its message says what they are for."""


def package_lines() -> int:
    """Lines of the package, comments and blank ones included."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in python_files(PACKAGE))


FILES = list(python_files("twofold", "tests", "benchmarks"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FILE_LINES
    assert not {f.name: length(f) for f in functions(ast.parse(text)) if length(f) > MAX_FUNCTION_LINES}


def test_the_package_keeps_its_budget_of_lines() -> None:
    assert package_lines() <= MAX_PACKAGE_LINES, "delete lines, or raise MAX_PACKAGE_LINES and say why in the commit"


def test_the_page_is_small() -> None:
    page = WebPage.read()
    files = [page.index, *page.files.values()]
    long = {name: text.count("\n") for name, text in sources().items()}
    assert {name: lines for name, lines in long.items() if lines > MAX_SCRIPT_LINES} == {}
    assert sum(len(file.body) for file in files) <= MAX_PAGE_BYTES
    assert sum(len(file.packed) for file in files) <= MAX_PAGE_GZIP_BYTES
    assert len(page.files) <= MAX_PAGE_FILES
    first = [page.index, page.files["app.css"], page.files["app.js"]]
    assert sum(len(file.body) for file in first) <= MAX_FIRST_BYTES
    assert sum(len(file.packed) for file in first) <= MAX_FIRST_GZIP_BYTES
