"""Links of the documents lead to files and headings that exist, and the log of measurements has an index."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, REPOSITORY

PACKAGE = REPOSITORY / "twofold"
LOG = REPOSITORY / "benchmarks" / "LOG.md"
DOCUMENTS = [
    *PAGES,
    *sorted((REPOSITORY / "docs" / "extend").glob("*.md")),
    *(REPOSITORY / name for name in ("ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")),
    LOG,
]


def prose(page: Path) -> str:
    """Its text without fenced blocks and code."""
    return re.sub(r"`[^`\n]*`", "", re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL))


def anchors(page: Path) -> set[str]:
    """What GitHub makes of its headings."""
    text = re.sub(r"^```.*?^```", "", page.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken(page: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        name, _, heading = target.partition("#")
        if ":" in name:
            continue
        file = page.parent / name if name else page
        if not file.exists() or (heading and heading not in anchors(file)):
            yield target


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert list(broken(page)) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A `b`: c\n\n[1](#a-b-c) [2](#a) [3](none.md) [4](page.md#a-b-c) [5](https://x.y)\n\n`[6](no)`\n")
    assert list(broken(page)) == ["#a", "none.md"]


@pytest.mark.parametrize("name", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_named_files_exist(name: str) -> None:
    """Of the package or of the repository."""
    named = re.findall(r"`([\w.]+/[\w./]+)`", (REPOSITORY / name).read_text("utf-8"))
    missing = {each for each in named if not any((folder / each).exists() for folder in (REPOSITORY, PACKAGE))}
    assert len(named) > 5
    assert missing == set()


def test_the_log_has_an_index_of_its_questions() -> None:
    """In the order of the log, each with an answer; an entry has at most four points: when, expected, seen, so."""
    index, *subjects = re.split(r"^## (?!Index)", LOG.read_text("utf-8"), flags=re.MULTILINE)
    entries = [entry for subject in subjects for entry in re.split(r"^### ", subject, flags=re.MULTILINE)[1:]]
    questions = [entry.split("\n", 1)[0] for entry in entries]
    listed = re.findall(r"^- \[(.*?)\]\(#(.*?)\) \S.*$", index, re.MULTILINE)
    assert listed == [(question, anchor(question)) for question in questions]
    for entry in entries:
        points = re.findall(r"^- (?:\*\*(\w+)\*\*: )?", entry, re.MULTILINE)
        assert points in (["", "Expected", "Seen", "So"], ["", "Seen", "So"]), entry
