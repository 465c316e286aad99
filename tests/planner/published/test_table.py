"""docs/cost.md names a test for each figure and claim: each of them exists."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

REPOSITORY = Path(__file__).parents[3]
PAGE = REPOSITORY / "docs" / "cost.md"


@cache
def names_in(path: str) -> frozenset[str]:
    """Names of the test functions of a file; none where there is no such file."""
    file = REPOSITORY / path
    body = ast.parse(file.read_text()).body if file.is_file() else []
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"))


def figures() -> list[str]:
    """Lines of the tables of figures and claims, without their heads."""
    page = PAGE.read_text()
    lines = page[page.index("## Figures and claims") :].splitlines()
    return [line for line in lines if line.startswith("| ") and line != "| figure or claim | ours | test |"]


def test_each_figure_has_a_test_that_exists() -> None:
    assert len(figures()) > 60
    for line in figures():
        found = re.fullmatch(r"\|.+\|.+\| `(tests/\S+\.py)::(test_\w+)` \|", line)
        assert found, line
        assert found[2] in names_in(found[1]), line


def test_each_test_of_this_folder_is_in_the_table() -> None:
    page = PAGE.read_text()
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        if path.name != Path(__file__).name:
            name = path.relative_to(REPOSITORY).as_posix()
            assert any(f"`{name}::{test}`" in page for test in names_in(name)), name


def test_links_lead_somewhere() -> None:
    for name in re.findall(r"\]\(([\w/.]+\.md)\)", PAGE.read_text()):
        assert (PAGE.parent / name).is_file(), name
