"""What a model is known by: each byte of each of its parts."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.tiny import TinyOptions, write_tiny_parts
from twofold import LLM, SamplingParams
from twofold.core.errors import ModelNotFoundError
from twofold.engine.kv_folder import store_identity
from twofold.engine.prompts import TokensPrompt
from twofold.fleet.reading import model_identity, read_file, system_fingerprint
from twofold.formats.base import open_model
from twofold.formats.identity import changed, file_digest, model_key, model_parts
from twofold.host.paths import CacheFolders
from twofold.server.models.named_models import NamedModel
from twofold.server.models.registry import ServedModel

Parts = tuple[Path, ...]
MADE_NS: Final = 1_700_000_000_000_000_000
OF_CONTENT: Final[dict[str, Callable[[Parts, Path], Any]]] = {
    "nodes": lambda parts, _: file_digest(parts),
    "response cache and block names": lambda parts, _: model_identity(parts, {"seed": 0}),
    "fingerprint": lambda parts, _: system_fingerprint(parts, "bf16"),
    "KV store": lambda parts, folder: store_identity(parts, folder, ("f16",)),
}
BEFORE_PARTS: Final = {
    "nodes": "90c15163ac51c12311b5cf936aa6bba9ac92ab61864c8fe1bfcaf6f93fd2bad7",
    "response cache and block names": "b76a900d594f6b45275b346afd73371cff7b9f289983c02bfacf075887f9a269",
    "KV store": "0d7a31737ece7bd7061620db0dd7d5fb620b9dc5f2bfd05422d24ec19c45c684",
}
"""Identities of the file of ``one`` that Twofold 0.1.0 made when it knew the first part only."""


def one(folder: Path) -> Parts:
    path = folder / "one.gguf"
    path.write_bytes(b"GGUF" * 1000)
    os.utime(path, ns=(MADE_NS, MADE_NS))
    return (path,)


def split(folder: Path, options: TinyOptions | None = None) -> Parts:
    parts = write_tiny_parts(folder, options or TinyOptions("llama"))
    for part in parts:
        os.utime(part, ns=(MADE_NS, MADE_NS))
    return parts


@pytest.mark.parametrize("kind", BEFORE_PARTS)
def test_a_model_of_one_file_keeps_its_identities(tmp_path: Path, kind: str) -> None:
    found = OF_CONTENT[kind](one(tmp_path), tmp_path)
    assert (found.hex() if isinstance(found, bytes) else found) == BEFORE_PARTS[kind]


def test_the_key_of_one_file_is_kept(tmp_path: Path) -> None:
    assert model_key(one(tmp_path)) == "one-4000-6c6a45c87bfc"


@pytest.mark.parametrize("kind", OF_CONTENT)
@pytest.mark.parametrize("number", [0, 1])
def test_a_byte_of_any_part_makes_another_model(tmp_path: Path, kind: str, number: int) -> None:
    parts = split(tmp_path)
    first = OF_CONTENT[kind](parts, tmp_path)
    assert OF_CONTENT[kind](parts, tmp_path) == first
    content = bytearray(parts[number].read_bytes())
    content[-1] ^= 1
    parts[number].write_bytes(content)
    os.utime(parts[number], ns=(MADE_NS, MADE_NS))
    assert OF_CONTENT[kind](parts, tmp_path) != first


def test_a_kv_store_serves_nothing_of_another_second_part(tmp_path: Path) -> None:
    parts = split(tmp_path, TinyOptions("llama", context=1024))
    prompt = TokensPrompt(prompt_token_ids=[5 + number % 90 for number in range(600)])
    loaded = []
    for changes in (False, False, True):
        if changes:
            content = bytearray(parts[1].read_bytes())
            content[-1] ^= 1
            parts[1].write_bytes(content)
        with LLM(str(parts[0]), kv_store=tmp_path / "store") as llm:
            loaded.append(llm.generate(prompt, SamplingParams(max_tokens=1))[0].metrics.record.loaded)
    assert loaded == [0, 512, 0]


def test_a_reading_is_of_all_parts(tmp_path: Path) -> None:
    parts = split(tmp_path)
    reading = read_file(parts[0], CacheFolders(tmp_path / "cache"))
    assert reading.parts == parts
    assert reading.is_of(parts[0])
    os.utime(parts[1], ns=(MADE_NS + 1, MADE_NS + 1))
    assert not reading.is_of(parts[0])
    assert changed(parts) == (MADE_NS, MADE_NS + 1)


def test_the_size_before_loading_is_that_of_all_parts(tmp_path: Path) -> None:
    parts = split(tmp_path)
    model = ServedModel(NamedModel(("tiny",), str(parts[0])))
    model.find_file(CacheFolders(tmp_path / "cache"))
    assert model.file_bytes == sum(part.stat().st_size for part in parts)


@pytest.mark.parametrize("number", [0, 1])
def test_parts_are_found_by_name_from_any_part(tmp_path: Path, number: int) -> None:
    parts = split(tmp_path)
    with open_model(parts[number]) as file:
        assert model_parts(parts[number]) == file.parts == parts
    alone = one(tmp_path)
    with pytest.raises(ModelNotFoundError, match="absent"):
        file_digest(model_parts(tmp_path / "absent.gguf"))
    assert model_parts(alone[0]) == alone
