"""How fast loads of a KV store are expected to be, and how often a block is copied on its way."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import MakeLLM
from twofold.core.params import SamplingParams
from twofold.engine import kv_files
from twofold.engine.kv.segments import SEGMENT_TOKENS, StoreKeys, header_bytes
from twofold.engine.kv.store import FIRST_RATE, LoadRates
from twofold.engine.kv_files import BESIDE_SHARE, PIECE_BYTES, read_rate
from twofold.engine.kv_folder import StoreFolder
from twofold.engine.prompts import TokensPrompt


def test_the_first_rate_is_measured_when_a_store_is_opened(tmp_path: Path) -> None:
    """By reading the segment that was used last, for a short time; files of less than a piece say nothing."""
    keys, names = StoreKeys(b"i" * 32, b"s" * 32), [bytes([number]) * 32 for number in range(3)]
    folder = StoreFolder(tmp_path, keys)
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


def test_a_load_beside_sequences_takes_its_share_of_a_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each piece the thread sleeps until it has used no more than that; a load alone does not sleep."""
    data = os.urandom(5 * PIECE_BYTES // 2)
    path, slept, ticks = tmp_path / "file", list[float](), count()
    path.write_bytes(data)
    monkeypatch.setattr(time, "thread_time", lambda: 0.001 * next(ticks))
    monkeypatch.setattr(time, "sleep", slept.append)
    found = bytearray(len(data))
    for share, pauses in ((1.0, 0), (BESIDE_SHARE, 3)):
        mac = StoreFolder(tmp_path, StoreKeys(b"i" * 32, b"s" * 32)).mac(b"n" * 32, 0)
        with path.open("rb") as file:
            assert not kv_files._read_into(file.fileno(), memoryview(found), 1, mac, 1.0), "the file ends before"
            assert kv_files._read_into(file.fileno(), memoryview(found), 0, mac, share)
        assert found == data
        assert slept == pytest.approx([0.001 * (1 / BESIDE_SHARE - 1)] * pauses)


def test_declined_loads_raise_a_low_rate_only() -> None:
    for first in (1e8, 2e9):
        rates = LoadRates(first)
        for _ in range(200):
            rates.forgive(alone=True)
        assert rates.of(alone=True) == pytest.approx(max(first, FIRST_RATE), rel=0.02)
        assert rates.of(alone=False) == first


def test_a_segment_is_copied_once_on_its_way(make_llm: MakeLLM, tmp_path: Path) -> None:
    """Into a buffer, which is digested and written; and from a buffer that was digested into its blocks."""
    segment, prompt = SEGMENT_TOKENS * 8, TokensPrompt(prompt_token_ids=list(range(3, 253)) * 4)
    for kind in ("read", "write"):
        llm = make_llm(store=tmp_path / "kv", block_size=16, blocks=160, context=2048, rows=512)
        llm.generate(prompt, SamplingParams(max_tokens=1))
        llm.close()
        runner: Any = llm.loaded.runner
        assert runner.forward.copied == [(kind, 0, segment)] * 3
    assert sum(path.stat().st_size for path in tmp_path.rglob("*.kv")) == 3 * (segment + header_bytes(1))
