"""Sizes and durations with units."""

from __future__ import annotations

import pytest

from twofold.core.units import GIB, MIB, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("4096", 4096),
        ("1e9", 10**9),
        ("512M", 512 * MIB),
        ("512m", 512 * MIB),
        ("1G", GIB),
        ("1.5GiB", 3 * GIB // 2),
        (" 2 gib ", 2 * GIB),
        ("2Ki", 2048),
        ("1MB", 10**6),
        ("1.5 kB", 1500),
        ("1T", 1024 * GIB),
        ("7B", 7),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


def test_a_number_without_a_unit_counts_what_the_flag_says() -> None:
    assert parse_size("1.5", GIB) == 3 * GIB // 2
    assert parse_size("512M", GIB) == 512 * MIB


@pytest.mark.parametrize("text", ["", "G", "1Q", "1 GiBs", "nan", "inf", "1e999", "1,5G", "0x10", "1G 2M", "١"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("600", 600), ("0.5", 0.5), ("500ms", 0.5), ("5m", 300), ("1.5h", 5400), ("2 min", 120)]
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "5 minutes ago", "1y", "nan", "inf", "1e999"])
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)
