"""Two tiny models, and a hub whose memory holds one of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.server.workers.conftest import ENGINE
from tests.support.tiny import TinyModel, TinyOptions
from twofold.server.models.hub import HubSettings
from twofold.server.models.offers import Offer, read_offers

ONE_MODEL = 12 << 20
TWO_MODELS = 24 << 20


def settings(budget: int, *, accept_any: bool = False) -> HubSettings:
    return HubSettings(engine=ENGINE, memory_budget=budget, accept_any=accept_any)


@pytest.fixture(scope="session")
def offers(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> tuple[Offer, ...]:
    first, second = (tiny_gguf(TinyOptions(seed=seed)).path for seed in (0, 1))
    return read_offers([f"first={first}", f"alias={first}", f"second={second}"])
