"""A server that requires keys, with keys of several tenants."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from tests.server.live import LiveServer, live_server
from tests.server.trust.client import Client
from twofold.server.edge.keys import add_key
from twofold.server.edge.quotas import Quota

KEYS: Final = {"alice": "north", "anna": "north", "bob": "south", "some": "small", "posts": "small", "lines": "small"}
"""Tenants by key; ``operator`` is one more, which sees the metrics of all."""


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


QUOTAS: Final = {
    "some": Quota(requests_per_minute=20),
    "posts": Quota(bytes_per_minute=4000),
    "lines": Quota(tokens_per_minute=300),
}


@contextmanager
def keyed_server(folder: Path, *arguments: str) -> Iterator[KeyedServer]:
    """Starts it; what it keeps lies in ``folder``."""
    file, keys, now = folder / "keys.toml", {}, datetime.now(UTC)
    for name, tenant in KEYS.items():
        _, keys[name] = add_key(file, name, now=now, tenant=tenant, quota=QUOTAS.get(name, Quota()))
    _, keys["operator"] = add_key(file, "operator", now=now, metrics="all")
    with live_server(folder, "--threads", "1", "--api-keys", str(file), *arguments) as live:
        yield KeyedServer(live, keys, folder)
