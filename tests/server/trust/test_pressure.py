"""Ten times the possible load: the server refuses at once, with a delay for retries, and loses no throughput."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import pytest

from tests.server.live import LiveServer, live_server
from tests.server.trust.client import MESSAGES, Client, Reply, message, watched
from tests.server.trust.overload import ARGUMENTS, ASKED, QUEUED, SEQUENCES, SLOW
from tests.support.tiny import TinyModel, TinyOptions
from twofold.server.edge.keys import add_key
from twofold.server.edge.quotas import Quota

LONGEST_RETRY_S: Final = 120


@pytest.fixture(scope="module")
def full(tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A server that is soon full, with a slow model."""
    with live_server(tmp_path_factory.mktemp("full"), f"tiny={tiny_gguf(SLOW).path}", *ARGUMENTS) as server:
        yield Client(server.url)


def test_a_crowd_is_refused_at_once(full: Client) -> None:
    """Ten times as many as have room: at least as many as may wait are served, the others refused before the last of
    these is served. How many wait is counted from above: requests that start to run count until the next step."""
    room, statuses = SEQUENCES + QUEUED, []

    async def ask(number: int) -> Reply:
        reply = await full.ask("POST", *ASKED[number % 2][:2])
        statuses.append(reply.status)
        return reply

    async def crowd() -> list[Reply]:
        async with watched(full):
            return await asyncio.gather(*(ask(number) for number in range(10 * room)))

    refused = [reply for reply in asyncio.run(crowd()) if reply.status != 200]
    assert set(statuses) == {200, 503, 529}
    assert QUEUED <= statuses.count(200) < len(refused)
    assert statuses[-SEQUENCES:] == [200] * SEQUENCES
    for reply in refused:
        error = reply.json["error"]
        assert error["type"] == ("overloaded_error" if reply.status == 529 else "server_error"), error
        assert 1 <= int(reply.headers["retry-after"]) <= LONGEST_RETRY_S
        assert len(reply.body) < 4096


def test_quotas_of_keys_are_separate(tiny: TinyModel, tmp_path: Path) -> None:
    """A key beyond its quota gets 429 in its API protocol; the other key is not affected."""
    file, now = tmp_path / "keys.toml", datetime.now(UTC)
    quotas = {"small": Quota(requests_per_minute=3), "large": Quota()}
    keys = {name: add_key(file, name, now=now, quota=quota)[1] for name, quota in quotas.items()}

    async def use(server: LiveServer) -> tuple[list[Reply], Reply, list[Reply]]:
        client = Client(server.url)
        small, large = client.using(keys["small"]), client.using(keys["large"])
        used = [await small.chat(max_tokens=1) for _ in range(5)]
        anthropic = await small.ask("POST", MESSAGES, message())
        return used, anthropic, [await large.chat(max_tokens=1) for _ in range(5)]

    with live_server(tmp_path, f"tiny={tiny.path}", "--threads", "1", "--api-keys", str(file)) as server:
        small, anthropic, large = asyncio.run(use(server))
    assert [reply.status for reply in small] == [200, 200, 200, 429, 429]
    assert (anthropic.status, anthropic.json["error"]["type"]) == (429, "rate_limit_error")
    assert [reply.status for reply in large] == [200] * 5
    for reply in (*small[3:], anthropic):
        assert 1 <= int(reply.headers["retry-after"]) <= LONGEST_RETRY_S
    assert small[0].headers["x-ratelimit-limit-requests"] == "3"
