"""Models by name: an alias of a model that is in the cache is that file, and not its namesake of the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.formats.fetch import sources
from twofold.planner.shapes.known import find_shape, model_file, resolve_shape


def test_an_alias_is_its_file(monkeypatch: pytest.MonkeyPatch, tiny_gguf: Callable[[TinyOptions], TinyModel]) -> None:
    path = tiny_gguf(TinyOptions()).path
    monkeypatch.setattr(sources, "locate", lambda *_, **__: SimpleNamespace(path=path))
    found = resolve_shape("smollm2-135m")
    assert found.name == "smollm2-135m"
    assert found.source == str(path)
    assert resolve_shape(str(path)).name == path.stem


def test_an_alias_that_is_not_in_the_cache_is_the_table_s(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))
    assert model_file("smollm2-135m") is None
    assert resolve_shape("smollm2-135m") == find_shape("smollm2-135m")
    assert model_file("llama-3-70b") is None
