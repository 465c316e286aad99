"""A server that asks for keys: three keys of two tenants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.serve.live import LiveServer, live_server
from tests.serve.trust.client import Client
from twofold.serve.gate.keyfile import add_key

KEYS: Final = {"alice": "north", "anna": "north", "bob": "south"}
"""Tenants by key."""


@dataclass(frozen=True, slots=True)
class KeyedServer:
    """``keys`` are their texts by name; ``folder`` is where the server keeps everything."""

    live: LiveServer
    keys: dict[str, str]
    folder: Path

    def client(self, name: str | None = None) -> Client:
        """A client with this key, or without one."""
        client = Client(self.live.url)
        return client if name is None else client.using(self.keys[name])


@contextmanager
def keyed_server(folder: Path, *arguments: str) -> Iterator[KeyedServer]:
    """Starts it; what it keeps lies in ``folder``."""
    file, keys, now = folder / "keys.toml", {}, datetime.now(UTC)
    for name, tenant in KEYS.items():
        _, keys[name] = add_key(file, name, now=now, tenant=tenant)
    with live_server(folder, "--threads", "1", "--api-keys", str(file), *arguments) as live:
        yield KeyedServer(live, keys, folder)
