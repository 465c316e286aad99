"""Who found what: names that are often given to the wrong paper."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import twofold

SOURCES = sorted(Path(twofold.__file__).parent.rglob("*.py"))


@pytest.mark.parametrize(("paper", "authors"), [("SARATHI", "Agrawal"), ("Splitwise", "Patel"), ("DistServe", "Zhong")])
def test_papers_are_their_authors(paper: str, authors: str) -> None:
    """Chunked prefill is Agrawal et al. (SARATHI), not Patel et al., who split prefill and decode (Splitwise)."""
    named = [name for path in SOURCES for name in re.findall(rf"{paper}[ ,(]+([A-Z]\w+) et al", _text(path))]
    assert named
    assert set(named) == {authors}


def _text(path: Path) -> str:
    return " ".join(path.read_text().split())
