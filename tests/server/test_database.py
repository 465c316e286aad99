"""A database file: persistence, corrupt files, and locks."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from twofold.core.errors import ResourceError
from twofold.server.storage.database import Database

SCHEMA = "CREATE TABLE IF NOT EXISTS numbers (n INTEGER)"


def add(connection: sqlite3.Connection) -> list[int]:
    connection.execute("INSERT INTO numbers SELECT 1 + COUNT(*) FROM numbers")
    return [n for (n,) in connection.execute("SELECT n FROM numbers")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "numbers.db"


def test_a_database_is_persistent_and_private(path: Path) -> None:
    for numbers in ([1], [1, 2]):
        kept = Database(path, SCHEMA, 1, durable=False)
        assert kept.use(add) == numbers
        assert {file.stat().st_mode & 0o077 for file in path.parent.iterdir()} == {0}
        kept.close()
        kept.close()
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_failed_transaction_changes_nothing(path: Path) -> None:
    kept = Database(path, SCHEMA, 1, durable=False)

    def fail(connection: sqlite3.Connection) -> None:
        add(connection)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        kept.use(fail)
    assert kept.use(add) == [1]
    kept.close()


@pytest.mark.parametrize("junk", [b"no database at all" * 500, b"SQLite format 3\x00" + b"\xff" * 8000])
def test_a_file_that_is_no_database_is_renamed(path: Path, junk: bytes) -> None:
    path.parent.mkdir()
    path.write_bytes(junk)
    kept = Database(path, SCHEMA, 1, durable=False)
    assert kept.use(add) == [1]
    assert path.with_name("numbers.db.bad").read_bytes() == junk
    kept.close()


def test_a_file_of_another_version_is_renamed(path: Path) -> None:
    for version in (1, 2, 1):
        kept = Database(path, SCHEMA, version, durable=False)
        assert kept.use(add) == [1]
        kept.close()


def test_a_file_that_becomes_corrupt_while_it_is_used(path: Path) -> None:
    kept = Database(path, SCHEMA, 1, durable=False)
    kept.use(lambda connection: [add(connection) for _ in range(800)])
    kept.close()
    kept = Database(path, SCHEMA, 1, durable=False)
    kept.use(lambda connection: connection.execute("PRAGMA cache_size = 1"))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))
    assert kept.use(add) == [1]
    assert path.with_name("numbers.db.bad").exists()
    kept.close()


def test_one_process_at_a_time(path: Path) -> None:
    kept = Database(path, SCHEMA, 1, durable=False)
    with pytest.raises(ResourceError, match="is used by another process"):
        Database(path, SCHEMA, 1, durable=False)
    kept.close()
    Database(path, SCHEMA, 1, durable=False).close()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ResourceError, match="cannot be used"):
        Database(tmp_path / "file" / "numbers.db", SCHEMA, 1, durable=False)


def test_in_memory() -> None:
    kept = Database(None, SCHEMA, 1, durable=False)
    assert [kept.use(add), kept.use(add)] == [[1], [1, 2]]
    kept.close()
