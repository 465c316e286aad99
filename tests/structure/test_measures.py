"""No class name twice, one driver of the engine's loop, no import cycle, no backend by name above the backends."""

from __future__ import annotations

import ast

import pytest

from tests.structure.measures import backend_users, import_cycles, loop_drivers, names_defined_twice
from tests.structure.sources import PACKAGE, ROOT, Source, package_sources
from twofold.backends.base import BACKENDS

SOURCES = package_sources()


def test_no_class_name_is_defined_twice() -> None:
    assert names_defined_twice(SOURCES) == {}


def test_one_place_drives_the_engine() -> None:
    (driver,) = loop_drivers(SOURCES)
    assert driver.startswith("twofold/engine/loop.py:")


def test_no_modules_import_each_other() -> None:
    """Lazy and typing imports included."""
    assert import_cycles(SOURCES) == []


def test_a_backend_is_named_by_its_table_alone() -> None:
    """So a new one needs its own module and a line of ``BACKENDS``."""
    assert backend_users(SOURCES, BACKENDS.values()) == []


NAMING = (
    "from twofold.backends.cpu.tables import choose_table",
    "import twofold.backends.cpu",
    "made = CpuBackend()",
    "def f():\n    return base.ReferenceBackend",
    "NAME = 'twofold.backends.cpu.backend:CpuBackend'",
)


@pytest.mark.parametrize("text", NAMING)
def test_a_name_of_a_backend_is_found(text: str) -> None:
    source = Source(ROOT / PACKAGE / "engine" / "made.py", "engine.made", ast.parse(text))
    assert backend_users([source], BACKENDS.values()) == ["twofold/engine/made.py"]
