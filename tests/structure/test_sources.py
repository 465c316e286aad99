"""What the other tests of this folder look with sees what it should."""

from __future__ import annotations

import ast
from pathlib import Path

from tests.structure.sources import ROOT, Source, attributes, functions, imported, length

CODE = """
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twofold.engine.llm import LLM

def outer():
    import llvmlite.binding
    def inner():
        return os.environ["HOME"]
    return inner
"""

SOURCE = Source(ROOT / "twofold" / Path("core/made_up.py"), "core", ast.parse(CODE))


def test_lazy_and_typing_imports_are_seen() -> None:
    assert {"os", "typing.TYPE_CHECKING", "twofold.engine.llm.LLM", "llvmlite.binding"} == set(imported(SOURCE))


def test_members_are_seen() -> None:
    assert "os.environ" in attributes(SOURCE)


def test_nested_functions_are_measured() -> None:
    assert {f.name: length(f) for f in functions(SOURCE.tree)} == {"outer": 5, "inner": 2}
