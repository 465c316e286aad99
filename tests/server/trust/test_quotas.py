"""Quotas apply to everything that costs, and /metrics names no other tenant."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from tests.server.trust.client import Client, Reply, chat
from tests.server.trust.keyed import QUOTAS, KeyedServer, keyed_server
from tests.support.tiny import TinyModel
from twofold.server.edge.keys import add_key, remove_key


@pytest.fixture(scope="module")
def keyed(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    with keyed_server(tmp_path_factory.mktemp("quotas"), f"tiny={tiny.path}") as server:
        yield server


async def uploaded(client: Client, content: bytes) -> Reply:
    form = (
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n%s\r\n--x--\r\n'
    ) % content
    return await client.ask("POST", "/v1/files", form, Content_Type="multipart/form-data; boundary=x")


POSTS: dict[str, Any] = {
    "/tokenize": {"prompt": "a b c"},
    "/detokenize": {"tokens": [1, 2]},
    "/v1/messages/count_tokens": {"model": "tiny", "messages": [{"role": "user", "content": "x"}]},
    "/v1/responses/input_tokens": {"model": "tiny", "input": "x"},
    "/v1/responses": {"model": "tiny", "input": "x", "max_output_tokens": 16},
    "/v1/embeddings": {"model": "tiny", "input": "x"},
    "/v1/batches": {"input_file_id": "file-none", "endpoint": "/v1/completions", "completion_window": "24h"},
}


def test_every_post_counts_as_a_request(keyed: KeyedServer) -> None:
    async def ask() -> list[int]:
        client, loop = keyed.client("some"), asyncio.get_running_loop()
        began = loop.time()
        replies = [await client.ask("POST", path, body) for path, body in POSTS.items()]
        replies.append(await uploaded(client, b"{}"))
        for _ in range(3):
            assert (await client.get("/v1/batches")).status == 200
        left = [int(reply.headers["x-ratelimit-remaining-requests"]) for reply in replies]
        limit = QUOTAS["some"].requests_per_minute or 0
        tried = [(await client.ask("POST", "/tokenize", POSTS["/tokenize"])).status for _ in range(limit)]
        back = (loop.time() - began) * limit / 60
        assert tried.count(200) <= limit - len(replies) + back + 1, "some have come back meanwhile"
        assert tried[-1] == 429
        return left

    left = asyncio.run(ask())
    assert all(later < earlier for earlier, later in zip(left[::2], left[2::2], strict=False)), left


def test_bodies_count_by_their_bytes(keyed: KeyedServer) -> None:
    async def ask() -> None:
        client = keyed.client("posts")
        assert (await uploaded(client, b" " * 6000)).status == 200, "more than a minute's worth goes through once"
        for path in ("/tokenize", "/v1/embeddings"):
            refused = await client.ask("POST", path, POSTS[path])
            assert refused.status == 429
            assert "4,000 bytes a minute" in refused.json["error"]["message"]

    asyncio.run(ask())


async def batch_of(client: Client, count: int, max_tokens: int) -> str:
    """Creates a batch with this number of lines of ``max_tokens`` tokens; returns its id."""
    body = {"model": "tiny", "prompt": "a", "max_tokens": max_tokens, "ignore_eos": True}
    line = {"method": "POST", "url": "/v1/completions", "body": body}
    lines = b"".join(json.dumps({"custom_id": str(n), **line}).encode() + b"\n" for n in range(count))
    file = await uploaded(client, lines)
    about = {"input_file_id": file.json["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return str((await client.ask("POST", "/v1/batches", about)).json["id"])


async def batch_with(client: Client, id: str, answered: int) -> dict[str, Any]:
    """The batch once this number of its lines has a result, errors included."""
    while True:
        batch: dict[str, Any] = (await client.get(f"/v1/batches/{id}")).json
        if batch["request_counts"]["completed"] + batch["request_counts"]["failed"] >= answered:
            return batch
        await asyncio.sleep(0.05)


def test_lines_of_a_batch_count(keyed: KeyedServer) -> None:
    """Three lines of 100 tokens fit into 300 a minute; the others wait, and other tenants do not notice."""

    async def ask() -> tuple[dict[str, int], dict[str, int], float]:
        slow, bob, loop = keyed.client("lines"), keyed.client("bob"), asyncio.get_running_loop()
        began = loop.time()
        async with asyncio.timeout(300):
            limited = await batch_of(slow, 60, 95)
            await batch_with(slow, limited, 2)
            other = await batch_with(bob, await batch_of(bob, 60, 95), 60)
        return (
            (await slow.get(f"/v1/batches/{limited}")).json["request_counts"],
            other["request_counts"],
            loop.time() - began,
        )

    limited, other, seconds = asyncio.run(ask())
    assert (other["completed"], limited["failed"]) == (60, 0)
    assert limited["completed"] <= 1 + (300 + seconds * 300 / 60) / 95, (
        "what the quota had, and what it was refilled by"
    )


def test_the_batch_of_a_removed_key_ends(keyed: KeyedServer) -> None:
    """Its lines without a result fail with the error of requests with that key."""
    file = keyed.folder / "keys.toml"

    async def ask() -> tuple[dict[str, Any], Reply]:
        _, text = add_key(file, "leaving", now=datetime.now(UTC), tenant="south")
        leaving, bob = keyed.client().using(text), keyed.client("bob")
        async with asyncio.timeout(300):
            while (await leaving.get("/v1/models")).status != 200:
                await asyncio.sleep(0.05)
            id = await batch_of(leaving, 400, 480)
            await batch_with(leaving, id, 1)
            remove_key(file, "leaving")
            while (batch := await batch_with(bob, id, 400))["status"] != "completed":
                await asyncio.sleep(0.05)
        return batch, await bob.get(f"/v1/files/{batch['error_file_id']}/content")

    batch, errors = asyncio.run(ask())
    assert batch["request_counts"]["completed"] < 400
    responses = [json.loads(line)["response"] for line in errors.body.splitlines()]
    assert len(responses) == batch["request_counts"]["failed"]
    assert {response["status_code"] for response in responses} == {401}
    assert {response["body"]["error"]["code"] for response in responses} == {"invalid_api_key"}
    assert "was removed" in responses[0]["body"]["error"]["message"]


def test_metrics_name_no_other_tenant(keyed: KeyedServer) -> None:
    async def look() -> dict[str, set[str]]:
        for name in ("alice", "bob"):
            await keyed.client(name).ask("POST", "/v1/chat/completions", chat(max_tokens=1))
        seen = {}
        for name in ("alice", "bob", "operator"):
            for accept in ("text/plain", "application/openmetrics-text"):
                page = await keyed.client(name).get("/metrics", accept=accept)
                assert page.status == 200
                told = page.body.decode()
                assert "vllm:prompt_tokens_total" in told
                seen[f"{name} {accept}"] = set(re.findall(r'tenant="([^"]*)"', told))
                assert name != "bob" or not re.search(r"north|alice|anna", told)
        return seen

    for name, tenants in asyncio.run(look()).items():
        own = {"alice": {"north"}, "bob": {"south"}}.get(name.split()[0])
        assert tenants == own if own else tenants >= {"north", "south"}, name
