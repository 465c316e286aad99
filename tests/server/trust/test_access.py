"""Every route except /health and /ready requires a key, however its path is spelled."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final, cast

import pytest

from tests.server.trust.client import Client, chat
from tests.server.trust.keyed import KeyedServer, keyed_server
from tests.support.tiny import TinyModel
from twofold.server.edge.keys import add_key, remove_key
from twofold.server.edge.middleware import ABOUT_PATH
from twofold.server.edge.protocol import OPEN_PATHS
from twofold.server.routes import dialect_of

METHODS: Final = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
WAYS_AROUND: Final = (
    "//v1/models",
    "/v1/models/",
    "/v1//models",
    "/V1/MODELS",
    "/HEALTH",
    "/health/../v1/models",
    "/health/..%2fv1/models",
    "/health%2f..%2f..%2fv1/models",
    "/health;/v1/models",
    "/health%00/v1/models",
    "/./v1/models",
    "/v1/models%3f/health",
    "/%2e%2e/v1/models",
    "http://127.0.0.1/v1/models",
)


@pytest.fixture(scope="module")
def keyed(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    folder = tmp_path_factory.mktemp("access")
    with keyed_server(folder, f"tiny={tiny.path}", "--api-key", "chosen-by-someone") as server:
        yield server


def served_paths(keyed: KeyedServer) -> list[str]:
    """All paths that the server publishes, and some that do not exist."""
    document = asyncio.run(keyed.client("alice").get("/openapi.json"))
    paths = [re.sub(r"\{[^}]*\}", "x", path) for path in document.json["paths"]]
    assert {"/v1/chat/completions", "/v1/messages", "/metrics", "/v1/files/x/content"} <= set(paths)
    return [*paths, "/", "/v1", "/docs", "/favicon.ico", "/openapi.json"]


def test_every_route_and_method_is_closed_without_a_key(keyed: KeyedServer) -> None:
    paths = served_paths(keyed)

    async def responses() -> int:
        count = 0
        wrong = keyed.client().using("tf-wrong")
        for client in (keyed.client(), wrong, keyed.client().using("")):
            for path in paths:
                for method in METHODS:
                    body = chat(max_tokens=1) if method in {"POST", "PUT", "PATCH"} else None
                    reply = await client.ask(method, path, body)
                    if path in OPEN_PATHS or (path == ABOUT_PATH and client is not wrong):
                        assert b'"models"' not in reply.body
                        assert reply.status in {200, 405}
                        continue
                    assert reply.status == 401, (method, path, reply.status)
                    assert reply.headers["www-authenticate"] == "Bearer"
                    assert len(reply.body) < 4096
                    count += 1
        return count

    assert asyncio.run(responses()) > 500


def test_refusals_without_a_key_have_the_format_of_the_path(keyed: KeyedServer) -> None:
    async def responses() -> tuple[Any, Any]:
        client = keyed.client()
        return (await client.get("/v1/models")).json, (await client.ask("POST", "/v1/messages", {})).json

    openai, anthropic = asyncio.run(responses())
    assert openai["error"]["code"] == "invalid_api_key"
    assert anthropic["error"]["type"] == "authentication_error"
    assert dialect_of("/v1/messages").name == "anthropic"


@pytest.mark.parametrize("path", WAYS_AROUND)
def test_no_spelling_of_a_path_avoids_the_key(keyed: KeyedServer, path: str) -> None:
    reply = asyncio.run(keyed.client().get(path))
    assert reply.status in {400, 401, 404}, reply.body
    assert b"tiny" not in reply.body


@pytest.mark.parametrize("path", ["/health/", "/health%2f", "/health?key=x", "/health//"])
def test_a_spelling_of_health_says_no_more_than_health(keyed: KeyedServer, path: str) -> None:
    health, reply = (asyncio.run(keyed.client().get(each)) for each in ("/health", path))
    assert (reply.status, reply.body) in {(200, health.body), (401, reply.body)}
    assert b"tiny" not in reply.body


@pytest.mark.parametrize(
    "header",
    [
        ("Authorization", "Basic {key}"),
        ("Authorization", "Bearer {key}x"),
        ("Authorization", "Bearer {half}"),
        ("Authorization", "Bearer {hash}"),
        ("Authorization", "Bearer"),
        ("X-Api-Key", " "),
        ("X-Api-Key", "{key} {key}"),
        ("X-Api-Key", "x" * 5000),
        ("Cookie", "api_key={key}"),
        ("X-Forwarded-For", "127.0.0.1"),
    ],
    ids=lambda header: f"{header[0]}: {header[1][:16]}",
)
def test_only_the_exact_key_is_accepted(keyed: KeyedServer, header: tuple[str, str]) -> None:
    key = keyed.keys["alice"]
    kept = cast(list[str], re.findall(r"[0-9a-f]{64}", (keyed.folder / "keys.toml").read_text()))
    value = header[1].format(key=key, half=key[: len(key) // 2], hash=kept[0])
    reply = asyncio.run(Client(keyed.live.url, ((header[0], value),)).get("/v1/models"))
    assert reply.status == 401


def test_keys_are_read_from_two_headers_and_not_from_the_query(keyed: KeyedServer) -> None:
    async def responses() -> list[int]:
        key = keyed.keys["alice"]
        clients = (keyed.client("alice"), Client(keyed.live.url, (("x-api-key", key),)), keyed.client())
        replies = [await client.get("/v1/models") for client in clients]
        return [*(reply.status for reply in replies), (await keyed.client().get(f"/v1/models?api_key={key}")).status]

    assert asyncio.run(responses()) == [200, 200, 401, 401]


def test_keys_are_stored_as_hashes_readable_by_the_owner_only(keyed: KeyedServer) -> None:
    file = keyed.folder / "keys.toml"
    assert file.stat().st_mode & 0o077 == 0
    for key in keyed.keys.values():
        assert key not in file.read_text()
        assert key.removeprefix("tf-") not in file.read_text()


def test_a_removed_key_is_refused_within_seconds(keyed: KeyedServer) -> None:
    """The server reads its key file again when it changes."""

    file = keyed.folder / "keys.toml"

    async def change() -> list[int]:
        _, text = add_key(file, "visitor", now=datetime.now(UTC))
        client, found = keyed.client().using(text), list[int]()
        async with asyncio.timeout(60):
            while not found or found[-1] != 200:
                await asyncio.sleep(0.1)
                found.append((await client.get("/v1/models")).status)
            remove_key(file, "visitor")
            while found[-1] != 401:
                await asyncio.sleep(0.1)
                found.append((await client.get("/v1/models")).status)
        return found

    assert set(asyncio.run(change())) == {200, 401}
