"""Clients of live servers."""

from __future__ import annotations

import pytest

from tests.server.live import LiveServer
from tests.server.trust.client import Client


@pytest.fixture
def client(server: LiveServer) -> Client:
    return Client(server.url)
