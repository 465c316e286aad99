"""Fixtures for tests that need a model file or reference data; each says why it skips."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.tiny import TinyModel, TinyOptions, write_tiny
from twofold.core.errors import NetworkError, TwofoldError
from twofold.formats.fetch.names import DEFAULT_MODEL
from twofold.formats.fetch.sources import locate, resolve
from twofold.host.paths import CacheFolders

# How long an example takes, or drawing one, says nothing about the code on a machine that does other things.
settings.register_profile("counts", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("counts")


def pytest_collection_finish() -> None:
    """Collected tests, modules and syntax trees live until the end: garbage collections need not traverse them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> Iterator[None]:
    """SIGINT interrupts, here and in the processes that tests start, also where a background job ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def own_garbage() -> None:
    """What other tests left in memory is not looked through while time is taken: only the test's own garbage is."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def default_model() -> Path:
    """The default model's GGUF file: the one TWOFOLD_TEST_MODEL names, or the cached one, fetched where need be."""
    named = os.environ.get("TWOFOLD_TEST_MODEL")
    if named:
        return Path(named)
    try:
        return resolve(DEFAULT_MODEL, cache=CacheFolders.of().models).path
    except NetworkError as error:
        pytest.skip(f"the default model cannot be fetched: {error}")


@pytest.fixture(scope="session")
def model_path(default_model: Path) -> Callable[[str], Path]:
    """The file of a model by its alias. Models other than the default are never fetched.

    They may lie beside the file that TWOFOLD_TEST_MODEL names, as ``gemma3.gguf`` for gemma3-270m.
    """

    def find(alias: str) -> Path:
        if alias == DEFAULT_MODEL:
            return default_model
        beside = [path for path in default_model.parent.glob("*.gguf") if alias.startswith(path.stem)]
        if beside:
            return beside[0]
        try:
            return locate(alias, cache=CacheFolders.of().models).path
        except TwofoldError as error:
            pytest.skip(f"{alias} is not on this machine: {error}")

    return find


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of reference data that TWOFOLD_TEST_DATA names."""
    named = os.environ.get("TWOFOLD_TEST_DATA")
    if not named:
        pytest.skip("TWOFOLD_TEST_DATA names no folder of reference data")
    return Path(named)


@pytest.fixture(scope="session")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Callable[[TinyOptions], TinyModel]:
    """Writes a tiny model with these options, once a session: ``tiny_gguf(TinyOptions("qwen2", format="Q8_0"))``."""
    folder = tmp_path_factory.mktemp("tiny")
    made: dict[TinyOptions, TinyModel] = {}

    def make(options: TinyOptions) -> TinyModel:
        if options not in made:
            made[options] = write_tiny(folder / f"{len(made)}.gguf", options)
        return made[options]

    return make
