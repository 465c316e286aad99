"""No class name twice, one driver of the engine's loop, no import cycle."""

from __future__ import annotations

from tests.structure.measures import import_cycles, loop_drivers, names_defined_twice
from tests.structure.sources import package_sources

SOURCES = package_sources()


def test_no_class_name_is_defined_twice() -> None:
    assert names_defined_twice(SOURCES) == {}


def test_one_place_drives_the_engine() -> None:
    (driver,) = loop_drivers(SOURCES)
    assert driver.startswith("twofold/engine/loop.py:")


def test_no_modules_import_each_other() -> None:
    """Lazy and typing imports included."""
    assert import_cycles(SOURCES) == []
