"""The response cache returns exact repeats of deterministic requests at once. It is off by default.

    key = cache.key(tenant, identity, jobs, asked)        None: the request does not qualify
    outputs = await cache.get(key, request_id)            None: a miss
    await cache.put(key, outputs)                         after the request ran

Invariants
- A tenant never gets the outputs of another: its name is part of the digest, and checked again.
- Entries live for ``ttl_s`` and take at most ``max_bytes`` together. Where space is needed, the tenant that holds most
  loses its least recently used entry, so a tenant cannot evict the entries of others.
- No request fails because of the file: a cache that cannot be read is empty.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twofold.core.errors import ResourceError
from twofold.core.request import EngineRequest
from twofold.engine.outputs import RequestOutput
from twofold.server.response_cache.key import ResponseCacheKey, cache_key
from twofold.server.response_cache.outputs import pack, unpack
from twofold.server.storage.database import Database, evict, shares_schema
from twofold.server.storage.thread import SingleThread

CACHE_HEADER: Final = "x-twofold-cache"
"""Of a request: keep or skip."""
HIT_HEADER: Final = (CACHE_HEADER.encode(), b"hit")
"""Of a reply from the cache."""
ROW_BYTES: Final = 256
"""Size of an entry besides its data, approximately."""
MAX_SHARE: Final = 8
"""An output larger than 1/8 of the cache is not stored."""
MAX_WRITES: Final = 64
"""Outputs that wait to be written; beyond, they are not stored."""
VERSION: Final = 2
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (
    digest BLOB PRIMARY KEY,
    tenant TEXT NOT NULL,
    expires REAL NOT NULL,
    used REAL NOT NULL,
    size INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS bodies (digest BLOB PRIMARY KEY, data BLOB NOT NULL);
CREATE TRIGGER IF NOT EXISTS bodies_go AFTER DELETE ON answers
BEGIN DELETE FROM bodies WHERE digest = old.digest; END;
CREATE INDEX IF NOT EXISTS answers_by_use ON answers (tenant, used);
CREATE INDEX IF NOT EXISTS answers_by_end ON answers (expires);
""" + shares_schema("answers")


@dataclass(frozen=True, slots=True)
class ResponseCacheSettings:
    """``seeded`` includes requests with a seed. ``ttl_s`` counts from the completion of a request."""

    ttl_s: float = 86_400.0
    max_bytes: int = 256 << 20
    seeded: bool = False


@dataclass(slots=True)
class ResponseCacheCounts:
    """Since the cache was opened. ``failed`` counts reads and writes of the file."""

    hits: int = 0
    misses: int = 0
    stored: int = 0
    evicted: int = 0
    expired: int = 0
    dropped: int = 0
    failed: int = 0


class ResponseCache:
    """The cache in the file at ``path``, in memory for None; ``now`` returns seconds since 1970.

    Raises ResourceError where the file cannot be opened.
    """

    def __init__(self, path: Path | None, settings: ResponseCacheSettings, now: Callable[[], float]) -> None:
        self.counts = ResponseCacheCounts()
        self._settings = settings
        self._now = now
        self._file = Database(path, SCHEMA, VERSION, durable=False)
        self._thread = SingleThread("response-cache")
        self._writes = 0
        self._closed = False

    def key(
        self, tenant: str, identity: str, jobs: Sequence[EngineRequest], asked: bool | None = None
    ) -> ResponseCacheKey | None:
        """See ``cache_key``."""
        return cache_key(tenant, identity, jobs, asked=asked, seeded=self._settings.seeded)

    async def get(self, key: ResponseCacheKey, request_id: str) -> tuple[RequestOutput, ...] | None:
        """The outputs of the key's jobs, as outputs of the request ``request_id``; None on a miss."""
        found = None if self._closed else await self._thread.call(self._find, key, request_id)
        if found is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        return found

    async def put(self, key: ResponseCacheKey, outputs: Sequence[RequestOutput]) -> None:
        """Stores the outputs, if they are whole and the writes keep up. Never raises."""
        if self._closed or self._writes >= MAX_WRITES:
            self.counts.dropped += 1
            return
        self._writes += 1
        try:
            await self._thread.call(self._store, key, tuple(outputs))
        finally:
            self._writes -= 1

    def close(self) -> None:
        """Completes the write in progress. A closed cache is empty."""
        self._closed = True
        self._thread.close()
        self._file.close()

    def _find(self, key: ResponseCacheKey, request_id: str) -> tuple[RequestOutput, ...] | None:
        try:
            data = self._file.use(lambda connection: _look_up(connection, key, self._now()))
        except ResourceError:
            self.counts.failed += 1
            return None
        found = None if data is None else unpack(data, key.jobs, request_id)
        self.counts.failed += data is not None and found is None
        return found

    def _store(self, key: ResponseCacheKey, outputs: tuple[RequestOutput, ...]) -> None:
        data = pack(outputs)
        if data is None or len(data) > self._settings.max_bytes // MAX_SHARE or len(outputs) != len(key.jobs):
            self.counts.dropped += 1
            return
        try:
            self._file.use(lambda connection: self._insert(connection, key, data))
            self.counts.stored += 1
        except ResourceError:
            self.counts.failed += 1

    def _insert(self, sql: sqlite3.Connection, key: ResponseCacheKey, data: bytes) -> None:
        now, size = self._now(), len(data) + ROW_BYTES
        self.counts.expired += sql.execute("DELETE FROM answers WHERE expires <= ?", (now,)).rowcount
        sql.execute("DELETE FROM answers WHERE digest = ?", (key.digest,))
        row = (key.digest, key.tenant, now + self._settings.ttl_s, now, size)
        sql.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", row)
        sql.execute("INSERT INTO bodies VALUES (?, ?)", (key.digest, data))
        self.counts.evicted += evict(sql, "answers", "used", self._settings.max_bytes)


def _look_up(connection: sqlite3.Connection, key: ResponseCacheKey, now: float) -> bytes | None:
    """The data of a key, which becomes the most recently used."""
    known = connection.execute(
        "UPDATE answers SET used = ? WHERE digest = ? AND tenant = ? AND expires > ?",
        (now, key.digest, key.tenant, now),
    ).rowcount
    if not known:
        return None
    row: tuple[bytes] | None = connection.execute("SELECT data FROM bodies WHERE digest = ?", (key.digest,)).fetchone()
    return None if row is None else row[0]
