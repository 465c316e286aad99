"""One stub server for all tests; each test sets its rules."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.bench.stub.live import LiveStub, stub_server


@pytest.fixture(scope="session")
def running_stub() -> Iterator[LiveStub]:
    with stub_server() as live:
        yield live


@pytest.fixture
def stub(running_stub: LiveStub) -> LiveStub:
    running_stub.rules()
    return running_stub
