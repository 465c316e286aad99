"""Two tiny models, and settings of a registry whose memory holds one of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.fleet.conftest import ENGINE
from tests.support.tiny import TinyModel, TinyOptions
from twofold.server.models.named_models import NamedModel, read_named_models
from twofold.server.models.registry import RegistrySettings

ONE_MODEL = 12 << 20
TWO_MODELS = 24 << 20


def settings(budget: int, *, accept_any: bool = False) -> RegistrySettings:
    return RegistrySettings(engine=ENGINE, memory_budget=budget, accept_any=accept_any)


@pytest.fixture(scope="session")
def offers(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> tuple[NamedModel, ...]:
    first, second = (tiny_gguf(TinyOptions(seed=seed)).path for seed in (0, 1))
    return read_named_models([f"first={first}", f"alias={first}", f"second={second}"])
