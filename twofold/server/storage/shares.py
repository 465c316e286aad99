"""Tables whose bytes are bounded: where space is needed, the tenant that holds most loses an entry."""

from __future__ import annotations

import sqlite3


def shares_schema(table: str) -> str:
    """Triggers that sum the column ``size`` of a table by its column ``tenant``, in the table ``held``."""
    return f"""
CREATE TABLE IF NOT EXISTS held (tenant TEXT PRIMARY KEY, bytes INTEGER NOT NULL);
CREATE TRIGGER IF NOT EXISTS kept AFTER INSERT ON {table} BEGIN
    INSERT INTO held VALUES (new.tenant, new.size)
    ON CONFLICT (tenant) DO UPDATE SET bytes = bytes + excluded.bytes;
END;
CREATE TRIGGER IF NOT EXISTS forgotten AFTER DELETE ON {table} BEGIN
    UPDATE held SET bytes = bytes - old.size WHERE tenant = old.tenant;
    DELETE FROM held WHERE tenant = old.tenant AND bytes = 0;
END;
"""


def evict(sql: sqlite3.Connection, table: str, order: str, max_bytes: int) -> int:
    """Deletes entries, each the first by ``order`` of the tenant that holds most, until all fit; returns how many."""
    oldest = f"""
    SELECT rowid FROM {table} WHERE tenant = (SELECT tenant FROM held ORDER BY bytes DESC, tenant LIMIT 1)
    ORDER BY {order} LIMIT 1
"""
    evicted = 0
    while sql.execute("SELECT coalesce(sum(bytes), 0) FROM held").fetchone()[0] > max_bytes:
        assert sql.execute(f"DELETE FROM {table} WHERE rowid = ({oldest})").rowcount, "held has the sum of all sizes"
        evicted += 1
    return evicted
