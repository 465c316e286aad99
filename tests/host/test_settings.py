"""Settings files: what is wrong is named, with the way out."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from twofold.core.errors import ParameterError, UsageError
from twofold.host.settings import Table, parse_toml, read_toml


def number(table: Table) -> Decimal | None:
    return table.number("x", "0", "10", places=2)


@pytest.mark.parametrize(("text", "value"), [("1", "1"), ("0.25", "0.25"), ("2.500", "2.5"), ("1e1", "10"), ("0", "0")])
def test_numbers_are_exact(text: str, value: str) -> None:
    assert number(parse_toml(f"x = {text}")) == Decimal(value)


@pytest.mark.parametrize(
    "text", ["-0.01", "10.01", "0.001", "nan", "inf", "true", '"1"', "[1]", "1.0000000000000000000000000000001"]
)
def test_impossible_numbers_are_named(text: str) -> None:
    with pytest.raises(ParameterError, match=r"^a\.x must be a number from 0 to 10 with at most 2 decimal places"):
        number(Table(parse_toml(f"[a]\nx = {text}")._values["a"], "a"))


READS: dict[str, tuple[Callable[[Table], Any], str, str]] = {
    "whole": (lambda table: table.whole("x", 1, 5), "x = 5", "x = 6"),
    "whole, not a number with a point": (lambda table: table.whole("x", 1, 5), "x = 5", "x = 5.0"),
    "flag": (lambda table: table.flag("x"), "x = true", "x = 1"),
    "text": (lambda table: table.text("x", 3), 'x = "abc"', 'x = "abcd"'),
    "text, not empty": (lambda table: table.text("x", 3), 'x = "abc"', 'x = ""'),
    "inner": (lambda table: table.inner("x"), "[x]", "x = 1"),
    "tables": (lambda table: list(table.tables()), "[x]", "x = 1"),
}


@pytest.mark.parametrize("kind", READS)
def test_types(kind: str) -> None:
    read, good, bad = READS[kind]
    assert read(parse_toml(good)) is not None
    assert not read(parse_toml(""))
    with pytest.raises(ParameterError, match=r"^x must be "):
        read(parse_toml(bad))


def test_fields_that_were_not_read_are_unknown() -> None:
    table = parse_toml("colour = 1\n[inner]\ncolor = 2")
    table.whole("colour", 0, 9)
    inner = table.inner("inner")
    table.close()
    assert inner is not None
    inner.whole("colour", 0, 9)
    with pytest.raises(ParameterError, match=r"inner\.color is not a known setting") as caught:
        inner.close()
    assert caught.value.hint == "Did you mean 'colour'?"
    inner.close(["color"])


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "settings.toml"
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_toml(path)
    for data in (b"x = ", b"\xff", b"x = " + b"[" * 5000):
        path.write_bytes(data)
        with pytest.raises(ParameterError, match="is not TOML"):
            read_toml(path)
    path.write_bytes(b"#" * ((1 << 20) + 1))
    with pytest.raises(ParameterError, match="is longer than"):
        read_toml(path)
    path.write_text("x = 1")
    assert read_toml(path).whole("x", 0, 1) == 1
