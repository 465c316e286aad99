"""Kept responses in an SQLite file: found by tenant and id, forgotten after their time or when there is no room.

Laws: a tenant finds only its own; the bytes of all entries are at most ``max_bytes``; where room is needed, the tenant
that holds most gives up what would expire first. A conversation that goes on is kept as long as its last response.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from twofold.server.storage.database import Database

VERSION: Final = 1
ENTRY_BYTES: Final = 512
"""What an entry takes beside its texts: ids, and its places in indexes."""
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS responses (
    tenant TEXT NOT NULL, id TEXT NOT NULL, previous TEXT, response BLOB NOT NULL, items BLOB NOT NULL,
    size INTEGER NOT NULL, expires REAL NOT NULL, PRIMARY KEY (tenant, id)
);
CREATE INDEX IF NOT EXISTS responses_of_tenant ON responses (tenant, expires);
CREATE INDEX IF NOT EXISTS responses_by_time ON responses (expires);
CREATE TABLE IF NOT EXISTS held (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS kept AFTER INSERT ON responses BEGIN
    INSERT INTO held VALUES (new.tenant, new.size)
    ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER IF NOT EXISTS forgotten AFTER DELETE ON responses BEGIN
    UPDATE held SET bytes = bytes - old.size WHERE tenant = old.tenant;
    DELETE FROM held WHERE tenant = old.tenant AND bytes = 0;
END;
"""
RENEW: Final = """
WITH RECURSIVE chain (id, previous, depth) AS (
    SELECT id, previous, 1 FROM responses WHERE tenant = :tenant AND id = :id
    UNION ALL
    SELECT older.id, older.previous, depth + 1 FROM responses AS older JOIN chain ON older.id = chain.previous
    WHERE older.tenant = :tenant AND depth < :length
)
UPDATE responses SET expires = :expires WHERE tenant = :tenant AND id IN (SELECT id FROM chain)
"""
EVICT: Final = """
DELETE FROM responses WHERE rowid = (
    SELECT rowid FROM responses WHERE tenant = (SELECT tenant FROM held ORDER BY bytes DESC, tenant LIMIT 1)
    ORDER BY expires, rowid LIMIT 1
)
"""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """How long a response is kept, in seconds, and how much may be kept of all and told of one conversation."""

    ttl_s: float = 30 * 86_400.0
    max_bytes: int = 1 << 30
    chain_bytes: int = 16 << 20
    chain_length: int = 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was told, with the items that its request brought."""

    response: dict[str, Any]
    items: list[dict[str, Any]]

    @property
    def id(self) -> str:
        return str(self.response["id"])

    @property
    def previous(self) -> str | None:
        found: str | None = self.response["previous_response_id"]
        return found

    @property
    def output(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.response["output"]
        return found


@dataclass(frozen=True, slots=True)
class Chain:
    """Responses of a conversation, oldest first. ``missing`` is the id of the one before them that is not there.

    ``cut`` says that there are more than the limits allow.
    """

    responses: Sequence[StoredResponse]
    missing: str | None = None
    cut: bool = False


class ResponseTable:
    """The table in the file at ``path``, or in memory for None. ``clock`` gives seconds since 1970.

    Calls may come from any thread, but only one at a time. All raise ResourceError where the file cannot be used.
    """

    def __init__(self, path: Path | None, limits: StoreLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._file = Database(path, SCHEMA, VERSION, durable=False)

    def put(self, tenant: str, kept: StoredResponse) -> None:
        """Keeps a response; one of the same id is replaced. The responses before it live as long as it does."""
        texts = orjson.dumps(kept.response), orjson.dumps(kept.items)
        now, size = self._clock(), sum(map(len, texts)) + ENTRY_BYTES
        expires = now + self._limits.ttl_s
        chain = {"tenant": tenant, "id": kept.previous, "expires": expires, "length": self._limits.chain_length}

        def work(sql: sqlite3.Connection) -> None:
            sql.execute("DELETE FROM responses WHERE expires <= ?", (now,))
            sql.execute("DELETE FROM responses WHERE tenant = ? AND id = ?", (tenant, kept.id))
            row = (tenant, kept.id, kept.previous, *texts, size, expires)
            sql.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            if kept.previous is not None:
                sql.execute(RENEW, chain)
            while _held(sql) > self._limits.max_bytes:
                evicted = sql.execute(EVICT).rowcount
                assert evicted, "what is held is the sum of what is there"

        self._file.use(work)

    def get(self, tenant: str, identity: str) -> StoredResponse | None:
        """The response, if it is kept for this tenant and its time is not over."""
        return self._file.use(lambda sql: self._find(sql, tenant, identity))

    def chain(self, tenant: str, identity: str) -> Chain:
        """A response and those before it, back to the first one as far as they are there and the limits allow."""

        def work(sql: sqlite3.Connection) -> Chain:
            found: list[StoredResponse] = []
            wanted: str | None = identity
            room = self._limits.chain_bytes
            while wanted is not None:
                size = self._size(sql, tenant, wanted)
                if size is None:
                    return Chain(found[::-1], missing=wanted)
                room -= size
                kept = self._find(sql, tenant, wanted)
                if kept is None or room < 0 or len(found) == self._limits.chain_length:
                    return Chain(found[::-1], cut=True)
                found.append(kept)
                wanted = kept.previous
            return Chain(found[::-1])

        return self._file.use(work)

    def delete(self, tenant: str, identity: str) -> bool:
        """Forgets a response; whether it was there."""
        there = "DELETE FROM responses WHERE tenant = ? AND id = ? AND expires > ?"
        return self._file.use(lambda sql: sql.execute(there, (tenant, identity, self._clock())).rowcount > 0)

    def close(self) -> None:
        """Closing twice is fine."""
        self._file.close()

    def _size(self, sql: sqlite3.Connection, tenant: str, identity: str) -> int | None:
        query = "SELECT size FROM responses WHERE tenant = ? AND id = ? AND expires > ?"
        found = sql.execute(query, (tenant, identity, self._clock())).fetchone()
        return None if found is None else int(found[0])

    def _find(self, sql: sqlite3.Connection, tenant: str, identity: str) -> StoredResponse | None:
        query = "SELECT response, items FROM responses WHERE tenant = ? AND id = ? AND expires > ?"
        found = sql.execute(query, (tenant, identity, self._clock())).fetchone()
        return None if found is None else StoredResponse(*map(orjson.loads, found))


def _held(sql: sqlite3.Connection) -> int:
    """Bytes of all entries."""
    return int(sql.execute("SELECT coalesce(sum(bytes), 0) FROM held").fetchone()[0])
