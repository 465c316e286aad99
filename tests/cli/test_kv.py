"""``twofold kv``."""

from __future__ import annotations

import errno
import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams
from twofold.engine import kv_folder
from twofold.engine.kv.segments import SegmentHeader, StoreKeys
from twofold.engine.kv_folder import read_header, secure_folder
from twofold.engine.llm import LLM

TOKENS = {"prompt_token_ids": [3 + i % 200 for i in range(600)]}


@pytest.fixture
def store(tiny_gguf: object, tmp_path: Path) -> Path:
    """A store of a tiny model, of two segments."""
    made: TinyModel = tiny_gguf(TinyOptions("llama", context=1024))  # type: ignore[operator]
    with LLM(made.path, kv_store=tmp_path / "kv") as llm:
        llm.generate(TOKENS, SamplingParams(max_tokens=1))  # type: ignore[arg-type]
    return tmp_path / "kv"


def test_ls_shows_what_a_store_has(store: Path, twofold: Command) -> None:
    (found,) = json.loads(twofold("kv", "ls", store, "--json").out)
    size = sum(path.stat().st_size for path in store.rglob("*.kv"))
    assert (found["segments"], found["tokens"], found["bytes"], found["process"]) == (2, 512, size, "")
    text = twofold("kv", "ls", store).out
    assert found["model"] in text
    assert found["folder"] in text
    assert "pinned" not in text
    later = time.time() + 7_200
    for path in store.rglob("*.kv"):
        os.utime(path, (later, later))
    text = twofold("kv", "ls", store).out
    assert f"pinned until {datetime.fromtimestamp(later, UTC):%Y-%m-%d %H:%M} UTC" in text


def test_verify_finds_a_damaged_segment(store: Path, twofold: Command) -> None:
    assert json.loads(twofold("kv", "verify", store, "--json").out) == {"segments": 2, "damaged": []}
    path = min(store.rglob("*.kv"))
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 1
    path.write_bytes(raw)
    result = twofold("kv", "verify", store)
    assert result.code == 1
    assert f"damaged: {path}\nsegments: 2, damaged: 1" in result.out


def test_verify_lists_segments_of_another_version(store: Path, twofold: Command) -> None:
    for path in store.rglob("*.kv"):
        raw = bytearray(path.read_bytes())
        raw[8] -= 1
        path.write_bytes(raw)
    result = twofold("kv", "verify", store)
    assert result.code == 1
    assert "segments: 2, damaged: 2" in result.out


@pytest.mark.parametrize("size", [0, 31, 100])
def test_a_damaged_secret_is_named_and_the_store_can_be_removed(size: int, store: Path, twofold: Command) -> None:
    (store / "secret").write_bytes(bytes(size))
    result = twofold("kv", "verify", store)
    assert result.code == 2
    assert f"secret is damaged: it has {size} bytes instead of 32" in result.err
    assert f"twofold kv rm {store}" in result.err
    assert json.loads(twofold("kv", "ls", store, "--json").out)[0]["segments"] == 2
    assert twofold("kv", "rm", store).code == 0
    assert not store.exists()


def test_verify_passes_over_segments_that_are_evicted_meanwhile(
    store: Path, twofold: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_and_evict(path: Path, keys: StoreKeys) -> SegmentHeader | None:
        header = read_header(path, keys)
        path.unlink()
        return header

    monkeypatch.setattr(kv_folder, "read_header", read_and_evict)
    result = twofold("kv", "verify", store, "--json")
    assert (result.code, json.loads(result.out)["damaged"]) == (0, [])


def test_rm_removes_the_store_but_no_other_file(store: Path, twofold: Command) -> None:
    (folder,) = {path.parent for path in store.rglob("*.kv")}
    assert twofold("kv", "rm", store, "--model", "nothing").code == 2
    assert twofold("kv", "rm", store, "--model", folder.name).code == 0
    assert (store / "secret").exists()
    assert not folder.exists()
    (store / "mine.txt").write_text("")
    assert twofold("kv", "rm", store).code == 0
    assert [path.name for path in store.iterdir()] == ["mine.txt"]


def test_a_store_in_use_is_not_removed(store: Path, twofold: Command, tiny_gguf: object) -> None:
    made: TinyModel = tiny_gguf(TinyOptions("llama", context=1024))  # type: ignore[operator]
    with LLM(made.path, kv_store=store):
        result = twofold("kv", "rm", store)
    assert result.code == 4
    assert "Stop it first" in result.err
    assert len(list(store.rglob("*.kv"))) == 2


def test_a_store_of_another_user_is_refused(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: store.stat().st_uid + 1)
    with pytest.raises(ParameterError, match="belongs to another user") as error:
        secure_folder(store)
    assert error.value.hint == "Choose another folder with --kv-store.", "chmod would not help"


def test_a_file_that_cannot_be_removed_is_named(store: Path, twofold: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: bool) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "unlink", refuse)
        result = twofold("kv", "rm", store)
    assert result.code == 4
    assert ".kv cannot be removed: Read-only file system." in result.err
    assert len(list(store.rglob("*.kv"))) == 2


def test_another_folder_is_no_store(tmp_path: Path, twofold: Command) -> None:
    for words in (("ls",), ("verify",), ("rm",)):
        result = twofold("kv", *words, tmp_path)
        assert result.code == 2
        assert 'is no KV store: it has no file "secret"' in result.err
        missing = twofold("kv", *words, tmp_path / "missing")
        assert "is no KV store: No such file or directory" in missing.err
