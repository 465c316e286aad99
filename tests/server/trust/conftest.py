"""Tolerances of measured promises on this machine, and clients of live servers."""

from __future__ import annotations

import os
from typing import Final

import pytest

from tests.server.live import LiveServer
from tests.server.trust.client import Client

LONG: Final = "TWOFOLD_TRUST_LONG"
"""Where it is set, tests take their long form and hold every figure as it was promised."""


@pytest.fixture(scope="session")
def long_form() -> bool:
    return bool(os.environ.get(LONG))


@pytest.fixture(scope="session")
def slack(long_form: bool) -> float:
    """What promised seconds are multiplied with: machines that run tests do other things, too."""
    return 1.0 if long_form else 30.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of promised seconds get three attempts: a pause of the machine does not come back, a stall does."""
    if os.environ.get(LONG):
        return
    for item in items:
        if "slack" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.flaky(reruns=2, only_rerun=["AssertionError"]))


@pytest.fixture
def client(server: LiveServer) -> Client:
    return Client(server.url)
