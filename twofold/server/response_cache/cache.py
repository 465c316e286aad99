"""The response cache: exact repeats of deterministic requests are answered at once. It is off unless asked for.

    key = cache.key(tenant, identity, jobs, asked)        None: the request must be run
    outputs = await cache.get(key, request_id)            None: it was not asked lately
    await cache.put(key, outputs)                         after it was run

Laws
- A tenant never gets what another one's request made: its name is in the digest, and looked at again.
- Nothing is older than ``ttl_s``, and all of it is at most ``max_bytes``. Where it gets too much, the tenant that
  holds the most loses what it used least lately, so nobody drives out others.
- Whatever happens to the file, no request fails for it: a cache that cannot be read is empty.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from twofold.core.errors import ResourceError
from twofold.core.request import EngineRequest
from twofold.engine.outputs import RequestOutput
from twofold.server.response_cache.answers import pack, unpack
from twofold.server.response_cache.key import ResponseCacheKey, replay_key
from twofold.server.storage.database import Database
from twofold.server.storage.thread import SingleThread

CACHE_HEADER: Final = "x-twofold-cache"
"""In it a request says what it wants of kept answers."""
HIT_HEADER: Final = (CACHE_HEADER.encode(), b"hit")
"""What marks an answer that was kept."""
ROW_BYTES: Final = 256
"""What an entry takes beside its data, about."""
MAX_SHARE: Final = 8
"""An answer that takes more than 1/8 of the cache is not kept."""
MAX_WRITES: Final = 64
"""Answers that wait to be written; beyond, they are not kept."""
VERSION: Final = 1
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
"""


@dataclass(frozen=True, slots=True)
class ResponseCacheSettings:
    """``seeded`` keeps answers of requests that name a seed, too. ``ttl_s`` counts from when an answer was made."""

    ttl_s: float = 86_400.0
    max_bytes: int = 256 << 20
    seeded: bool = False


@dataclass(slots=True)
class ResponseCacheCounts:
    """Since the cache was opened. ``failed`` readings and writings of the file were passed over."""

    hits: int = 0
    misses: int = 0
    stored: int = 0
    evicted: int = 0
    expired: int = 0
    dropped: int = 0
    failed: int = 0


class ResponseCache:
    """Kept answers in the file at ``path``, in memory for None; ``now`` gives seconds since 1970.

    Raises ResourceError where the file cannot be opened.
    """

    def __init__(self, path: Path | None, settings: ResponseCacheSettings, now: Callable[[], float]) -> None:
        self.counts = ResponseCacheCounts()
        self._settings = settings
        self._now = now
        self._file = Database(path, SCHEMA, VERSION, durable=False)
        self._thread = SingleThread("replay")
        self._sizes: Counter[str] = Counter()
        self._sizes_of = -1
        self._writes = 0
        self._closed = False

    def key(
        self, tenant: str, identity: str, jobs: Sequence[EngineRequest], asked: bool | None = None
    ) -> ResponseCacheKey | None:
        """By what this request is found again; None where it must be run. See ``replay_key``."""
        return replay_key(tenant, identity, jobs, asked=asked, seeded=self._settings.seeded)

    async def get(self, key: ResponseCacheKey, request_id: str) -> tuple[RequestOutput, ...] | None:
        """The outputs of the key's jobs, as those of the request ``request_id``; None where there are none."""
        found = None if self._closed else await self._thread.call(self._find, key, request_id)
        if found is None:
            self.counts.misses += 1
        else:
            self.counts.hits += 1
        return found

    async def put(self, key: ResponseCacheKey, outputs: Sequence[RequestOutput]) -> None:
        """Keeps the outputs, if they are whole. It never fails, and does not keep what comes too fast."""
        if self._closed or self._writes >= MAX_WRITES:
            self.counts.dropped += 1
            return
        self._writes += 1
        try:
            await self._thread.call(self._keep, key, tuple(outputs))
        finally:
            self._writes -= 1

    async def clear(self, tenant: str | None = None) -> int:
        """Forgets what a tenant's requests made, what all did for None; how many answers. ResourceError."""
        return await self._thread.call(self._forget, tenant)

    def close(self) -> None:
        """Ends what is being written. It is empty from then on."""
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

    def _keep(self, key: ResponseCacheKey, outputs: tuple[RequestOutput, ...]) -> None:
        data = pack(outputs)
        if data is None or len(data) > self._settings.max_bytes // MAX_SHARE or len(outputs) != len(key.jobs):
            self.counts.dropped += 1
            return
        try:
            self._file.use(lambda connection: self._insert(connection, key, data))
            self.counts.stored += 1
        except ResourceError:
            self.counts.failed += 1
            self._sizes_of = -1

    def _insert(self, connection: sqlite3.Connection, key: ResponseCacheKey, data: bytes) -> None:
        now, size, digest = self._now(), len(data) + ROW_BYTES, key.digest
        if self._sizes_of != self._file.replaced:
            self._measure(connection)
        gone = "DELETE FROM answers WHERE {} RETURNING tenant, size"
        ended = connection.execute(gone.format("expires <= ?"), (now,)).fetchall()
        same = connection.execute(gone.format("digest = ?"), (digest,)).fetchall()
        for tenant, freed in (*ended, *same):
            self._sizes[tenant] -= freed
        self.counts.expired += len(ended)
        ends = now + self._settings.ttl_s
        connection.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", (digest, key.tenant, ends, now, size))
        connection.execute("INSERT INTO bodies VALUES (?, ?)", (digest, data))
        self._sizes[key.tenant] += size
        while self._sizes.total() > self._settings.max_bytes:
            self._evict(connection)

    def _evict(self, connection: sqlite3.Connection) -> None:
        """Drops what the tenant with the most used least lately."""
        ((tenant, _),) = self._sizes.most_common(1)
        oldest = "SELECT rowid FROM answers WHERE tenant = ? ORDER BY used LIMIT 1"
        ((freed,),) = connection.execute(
            f"DELETE FROM answers WHERE rowid = ({oldest}) RETURNING size", (tenant,)
        ).fetchall()
        self._sizes[tenant] -= freed
        self.counts.evicted += 1

    def _measure(self, connection: sqlite3.Connection) -> None:
        self._sizes = Counter(dict(connection.execute("SELECT tenant, SUM(size) FROM answers GROUP BY tenant")))
        self._sizes_of = self._file.replaced

    def _forget(self, tenant: str | None) -> int:
        self._sizes_of = -1
        query = "DELETE FROM answers WHERE ? IS NULL OR tenant = ?"
        return self._file.use(lambda connection: connection.execute(query, (tenant, tenant)).rowcount)


def _look_up(connection: sqlite3.Connection, key: ResponseCacheKey, now: float) -> bytes | None:
    """What is kept under a key, which is now the one used last."""
    known = connection.execute(
        "UPDATE answers SET used = ? WHERE digest = ? AND tenant = ? AND expires > ?",
        (now, key.digest, key.tenant, now),
    ).rowcount
    if not known:
        return None
    row: tuple[bytes] | None = connection.execute("SELECT data FROM bodies WHERE digest = ?", (key.digest,)).fetchone()
    return None if row is None else row[0]
