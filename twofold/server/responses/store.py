"""Kept responses, away from the event loop: every call waits for a thread that uses the table alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from twofold.server.responses.table import Chain, KeptResponse, ResponseTable, StoreLimits
from twofold.server.storage.thread import OneThread

LIMITS: Final = StoreLimits()


class ResponseStore:
    """The responses of all tenants. What cannot be read or written is a ResourceError."""

    def __init__(self, thread: OneThread, table: ResponseTable) -> None:
        self._thread = thread
        self._table = table

    @classmethod
    async def open(
        cls, path: Path | None, limits: StoreLimits = LIMITS, clock: Callable[[], float] = time.time
    ) -> Self:
        """Opens or makes the file at ``path``; None keeps responses in memory. ``clock``: seconds since 1970.

        Raises ResourceError where the file cannot be used.
        """
        thread = OneThread("responses")
        try:
            return cls(thread, await thread.call(ResponseTable, path, limits, clock))
        except BaseException:
            thread.close()
            raise

    async def put(self, tenant: str, kept: KeptResponse) -> None:
        await self._thread.call(self._table.put, tenant, kept)

    async def get(self, tenant: str, identity: str) -> KeptResponse | None:
        return await self._thread.call(self._table.get, tenant, identity)

    async def chain(self, tenant: str, identity: str) -> Chain:
        return await self._thread.call(self._table.chain, tenant, identity)

    async def delete(self, tenant: str, identity: str) -> bool:
        return await self._thread.call(self._table.delete, tenant, identity)

    async def close(self) -> None:
        """Waits for what was begun."""
        await self._thread.call(self._table.close)
        self._thread.close()
