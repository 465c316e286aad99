"""Limits on the lines of files, functions, rooms and the whole package."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

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
MAX_PACKAGE_LINES = 100_007
"""Lower it after a cleanup. A commit that needs more lines raises it, and its message says what they are for."""


ROOM_BUDGETS: Final[Mapping[str, int]] = {
    "engine": 14_600,
    "planner": 13_800,
    "server": 12_500,
    "bench": 10_800,
    "backends": 9_100,
    "api": 8_400,
    "fleet": 7_900,
    "cli": 7_200,
    "text": 5_400,
    "core": 4_000,
    "observe": 3_200,
    "formats": 2_000,
    "models": 1_600,
    "host": 700,
    "web": 300,
    "twofold": 200,
}
"""Of each folder of the package, rounded up. Lower one after a cleanup. A commit that needs more raises it, and its
message says what the lines are for."""


def room_lines() -> dict[str, int]:
    """Lines of each folder of the package, comments and blank ones included; files beside them are "twofold"."""
    found: Counter[str] = Counter()
    for path in python_files(PACKAGE):
        inner = path.relative_to(ROOT / PACKAGE).parts
        found[inner[0] if len(inner) > 1 else PACKAGE] += path.read_text(encoding="utf-8").count("\n")
    return dict(found)


def package_lines() -> int:
    """Lines of the package, comments and blank ones included."""
    return sum(room_lines().values())


def room_table() -> str:
    """A line for each room, the largest first: its lines and its budget."""
    rooms = sorted(room_lines().items(), key=lambda room: -room[1])
    return "\n".join(f"  {name:10} {lines:7,} of {ROOM_BUDGETS.get(name, 0):7,}" for name, lines in rooms)


FILES = list(python_files("twofold", "tests", "benchmarks"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_and_functions_are_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= MAX_FILE_LINES
    assert not {f.name: length(f) for f in functions(ast.parse(text)) if length(f) > MAX_FUNCTION_LINES}


def test_the_package_keeps_its_budget_of_lines() -> None:
    assert package_lines() <= MAX_PACKAGE_LINES, "delete lines, or raise MAX_PACKAGE_LINES and say why in the commit"


def test_each_room_keeps_its_budget_of_lines() -> None:
    lines = room_lines()
    assert lines.keys() == ROOM_BUDGETS.keys(), "a room that is new, or gone, is one in ROOM_BUDGETS"
    over = {name: found for name, found in lines.items() if found > ROOM_BUDGETS[name]}
    assert over == {}, "delete lines, or raise ROOM_BUDGETS and say why in the commit"


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
