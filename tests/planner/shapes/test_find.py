"""Models by name: an alias of a model that is in the cache is that file, and not its namesake of the table."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.tensors import main_format
from twofold.formats.fetch import sources
from twofold.formats.fetch.names import ALIASES, HUB_ALIASES
from twofold.planner.count.memory import weight_bytes
from twofold.planner.shapes.known import find_shape, model_file, named_shape, resolve_shape


def test_an_alias_is_its_file(monkeypatch: pytest.MonkeyPatch, tiny_gguf: Callable[[TinyOptions], TinyModel]) -> None:
    path = tiny_gguf(TinyOptions()).path
    monkeypatch.setattr(sources, "locate", lambda *_, **__: SimpleNamespace(path=path))
    found = resolve_shape("smollm2-135m")
    assert found.name == "smollm2-135m"
    assert found.source == str(path)
    assert resolve_shape(str(path)).name == path.stem


@pytest.fixture
def empty_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))


@pytest.mark.usefixtures("empty_cache")
def test_an_alias_that_is_not_in_the_cache_is_what_pull_would_fetch() -> None:
    assert model_file("qwen3-8b") is None
    found = resolve_shape("qwen3-8b")
    assert (found.name, main_format(found).name) == ("qwen3-8b Q4_K_M", "Q4_K")
    assert weight_bytes(found) == pytest.approx(5.03e9, rel=0.01)
    chosen = resolve_shape("qwen3-8b", "bf16")
    assert (chosen.name, main_format(chosen).name) == ("qwen3-8b", "bf16")
    assert main_format(find_shape("Qwen/Qwen3-8B")).name == "bf16"
    assert resolve_shape("gemma3-4b").hidden_size == find_shape("gemma-3-4b").hidden_size
    assert model_file("llama-3-70b") is None


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("alias", [*ALIASES, *HUB_ALIASES])
def test_every_alias_is_known(alias: str) -> None:
    """Where the size of the file is known, its tensors take nearly all of it; the rest is mostly the vocabulary."""
    found = weight_bytes(resolve_shape(alias))
    if alias in ALIASES:
        assert 0.97 < found / ALIASES[alias].size < 1


def test_formats_are_those_of_the_file(default_model: Path) -> None:
    assert weight_bytes(named_shape("smollm2-135m")) == weight_bytes(resolve_shape(str(default_model)))
