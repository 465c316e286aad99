"""Stored responses in an SQLite file, by tenant and id.

Invariants: a tenant finds only its own responses; all entries take at most ``max_bytes`` together; where space is
needed, the tenant that holds most loses the response that expires first. A conversation lives as long as its last
response.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from twofold.server.storage.database import Database, evict, shares_schema

VERSION: Final = 1
ENTRY_BYTES: Final = 512
"""Size of an entry besides its texts, approximately: ids and indexes."""
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS responses (
    tenant TEXT NOT NULL, id TEXT NOT NULL, previous TEXT, response BLOB NOT NULL, items BLOB NOT NULL,
    size INTEGER NOT NULL, expires REAL NOT NULL, PRIMARY KEY (tenant, id)
);
CREATE INDEX IF NOT EXISTS responses_of_tenant ON responses (tenant, expires);
CREATE INDEX IF NOT EXISTS responses_by_time ON responses (expires);
""" + shares_schema("responses")
RENEW: Final = """
WITH RECURSIVE chain (id, previous, depth) AS (
    SELECT id, previous, 1 FROM responses WHERE tenant = :tenant AND id = :id
    UNION ALL
    SELECT older.id, older.previous, depth + 1 FROM responses AS older JOIN chain ON older.id = chain.previous
    WHERE older.tenant = :tenant AND depth < :length
)
UPDATE responses SET expires = :expires WHERE tenant = :tenant AND id IN (SELECT id FROM chain)
"""


@dataclass(frozen=True, slots=True)
class StoreLimits:
    """Lifetime of a response in seconds; max bytes of all; max bytes and responses of one conversation."""

    ttl_s: float = 30 * 86_400.0
    max_bytes: int = 1 << 30
    chain_bytes: int = 16 << 20
    chain_length: int = 1024


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """A response as it was returned, with the input items of its request."""

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
    """Responses of a conversation, oldest first. ``missing`` is the id of an earlier one that is not stored; ``cut``:
    the conversation exceeds the limits.
    """

    responses: Sequence[StoredResponse]
    missing: str | None = None
    cut: bool = False


class ResponseTable:
    """The table in the file at ``path``, in memory for None. ``clock`` returns seconds since 1970.

    Calls may come from any thread, but only one at a time. All raise ResourceError where the file cannot be used.
    """

    def __init__(self, path: Path | None, limits: StoreLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._file = Database(path, SCHEMA, VERSION, durable=False)

    def put(self, tenant: str, stored: StoredResponse) -> None:
        """Stores a response; replaces one of the same id. The responses before it live as long as it does."""
        texts = orjson.dumps(stored.response), orjson.dumps(stored.items)
        now, size = self._clock(), sum(map(len, texts)) + ENTRY_BYTES
        expires = now + self._limits.ttl_s
        chain = {"tenant": tenant, "id": stored.previous, "expires": expires, "length": self._limits.chain_length}

        def work(sql: sqlite3.Connection) -> None:
            sql.execute("DELETE FROM responses WHERE expires <= ?", (now,))
            sql.execute("DELETE FROM responses WHERE tenant = ? AND id = ?", (tenant, stored.id))
            row = (tenant, stored.id, stored.previous, *texts, size, expires)
            sql.execute("INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?)", row)
            if stored.previous is not None:
                sql.execute(RENEW, chain)
            evict(sql, "responses", "expires, rowid", self._limits.max_bytes)

        self._file.use(work)

    def get(self, tenant: str, identity: str) -> StoredResponse | None:
        """The tenant's response; None if it is not stored or has expired."""
        return self._file.use(lambda sql: self._find(sql, tenant, identity))

    def chain(self, tenant: str, identity: str) -> Chain:
        """A response and those before it, back to the first, as far as they are stored and within the limits."""

        def work(sql: sqlite3.Connection) -> Chain:
            found: list[StoredResponse] = []
            wanted: str | None = identity
            room = self._limits.chain_bytes
            while wanted is not None:
                size = self._size(sql, tenant, wanted)
                if size is None:
                    return Chain(found[::-1], missing=wanted)
                room -= size
                stored = self._find(sql, tenant, wanted)
                if stored is None or room < 0 or len(found) == self._limits.chain_length:
                    return Chain(found[::-1], cut=True)
                found.append(stored)
                wanted = stored.previous
            return Chain(found[::-1])

        return self._file.use(work)

    def delete(self, tenant: str, identity: str) -> bool:
        """Removes a response; whether it was stored."""
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
