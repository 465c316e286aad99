"""How fast loads of a KV store are expected to be."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from twofold.engine.kv.segments import StoreKeys
from twofold.engine.kv.store import FIRST_RATE, LoadRates
from twofold.engine.kv_files import PIECE_BYTES, read_rate


def test_the_first_rate_is_measured_when_a_store_is_opened(tmp_path: Path) -> None:
    """By reading the segment that was used last, for a short time; files of less than a piece say nothing."""
    keys, names = StoreKeys(b"i" * 32, b"s" * 32), [bytes([number]) * 32 for number in range(3)]
    folder: Any = SimpleNamespace(path=tmp_path, keys=keys, file=lambda name: tmp_path / f"{name.hex()}.kv")
    assert read_rate(folder) is None
    for used, (name, pieces) in enumerate(zip(names, (1, 8, 0.5), strict=True)):
        folder.file(name).write_bytes(bytes(int(pieces * PIECE_BYTES)))
        os.utime(folder.file(name), ns=(used, used))
    assert read_rate(folder) is None
    folder.file(names[2]).unlink()
    for piece_s, pieces in ((0.001, 8), (0.015, 2), (1.0, 1)):
        ticks = count()
        assert read_rate(folder, lambda ticks=ticks, step=piece_s: next(ticks) * step) == pytest.approx(  # type: ignore[misc]
            PIECE_BYTES / piece_s
        )
        assert next(ticks) == pieces + 1


def test_declined_loads_raise_a_low_rate_only() -> None:
    for first in (1e8, 2e9):
        rates = LoadRates(first)
        for _ in range(200):
            rates.forgive(alone=True)
        assert rates.of(alone=True) == pytest.approx(max(first, FIRST_RATE), rel=0.02)
        assert rates.of(alone=False) == first
