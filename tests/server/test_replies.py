"""Requests whose client has disconnected leave no reference cycles."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from twofold.server.context import CLIENT_GONE
from twofold.server.http.endpoints import EndpointRequest, Reply


class _Record:
    status = 200


class _Endless:
    """A runner whose requests never end."""

    @asynccontextmanager
    async def open(self, *_: object) -> AsyncIterator[None]:
        await asyncio.Event().wait()
        yield


def test_a_disconnected_client_leaves_no_reference_cycles() -> None:
    async def gone() -> dict[str, str]:
        await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    async def answer() -> weakref.ref[_Record]:
        unused: Any = None
        record: Any = _Record()
        services: Any = SimpleNamespace(runner=_Endless())
        request = EndpointRequest(record, unused, unused, "", scope={}, channel=gone, services=services)
        await Reply(request, unused).send(unused)
        assert record.status == CLIENT_GONE
        return weakref.ref(record)

    gc.disable()
    try:
        assert asyncio.run(answer())() is None
    finally:
        gc.enable()
