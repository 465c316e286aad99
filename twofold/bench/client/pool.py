"""Connections that are open and have no request: the one that was used last is taken first."""

from __future__ import annotations

from twofold.bench.client.connection import Connection


class Pool:
    """Idle connections, in the order in which they became so."""

    def __init__(self) -> None:
        self._idle: dict[int, Connection] = {}

    def __len__(self) -> int:
        return len(self._idle)

    def put(self, connection: Connection) -> None:
        self._idle[connection.file] = connection

    def take(self) -> Connection | None:
        return self._idle.popitem()[1] if self._idle else None

    def drop(self, connection: Connection) -> None:
        """The server ended it, or it is needed no more."""
        self._idle.pop(connection.file, None)
