"""No tenant can see, reuse or change the objects of another: caches, files, batches, responses, records, sums."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.trust.client import Client, chat
from tests.server.trust.keyed import KeyedServer, keyed_server
from tests.support.tiny import TinyModel

LONG_PROMPT = "A prompt of several blocks, so that a prefix of it can be found again. " * 3


@pytest.fixture(scope="module")
def keyed(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    folder = tmp_path_factory.mktemp("tenants")
    with keyed_server(folder, f"tiny={tiny.path}", "--response-cache", "4") as server:
        yield server


def cached(reply: Any) -> int:
    tokens: int = reply.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return tokens


def test_a_cached_prefix_is_found_only_by_its_key(keyed: KeyedServer) -> None:
    async def ask() -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for name in ("alice", "alice", "bob", "anna", "bob"):
            reply = await keyed.client(name).chat(LONG_PROMPT, max_tokens=2, temperature=1)
            found.setdefault(name, []).append(cached(reply))
        return found

    found = asyncio.run(ask())
    assert found["alice"][0] == found["bob"][0] == found["anna"][0] == 0
    assert found["alice"][1] > 64
    assert found["bob"][1] > 64


def test_the_live_view_shows_others_without_ids_and_sizes(keyed: KeyedServer) -> None:
    def told(name: str) -> list[Any]:
        """What a key sees of the lane of a new request of alice."""
        headers = {"authorization": f"Bearer {keyed.keys[name]}"}
        with keyed.live.client(headers=headers) as client, client.stream("GET", "/v1/twofold/live") as stream:
            data = (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))
            before = {row[0] for row in next(data)["lanes"]}
            asyncio.run(keyed.client("alice").chat("Watched by others", max_tokens=3, temperature=1))
            lanes: list[Any] = []
            while not any(row[1] == "." for row in lanes):
                lanes += [row for row in next(data).get("lanes", ()) if row[0] not in before]
            return lanes

    assert [row[3].keys() for row in told("anna") if row[1] == "+"] == [{"prompt", "id", "tier"}]
    others = told("bob")
    assert [row[3] for row in others if row[1] == "+"] == [{"tier": "default"}]
    assert {row[1] for row in others} == {"+", "a", "f", "."}
    assert max(map(len, others)) == 4


def test_a_callers_salt_gives_access_to_no_other_cache(keyed: KeyedServer) -> None:
    """Whatever field of a request goes into the salt, the key goes in first."""

    async def ask() -> list[int]:
        found = []
        for name, more in (
            ("alice", {"cache_salt": "shared"}),
            ("bob", {"cache_salt": "shared"}),
            ("bob", {"cache_salt": "key:alice\n"}),
            ("bob", {"prompt_cache_key": "shared"}),
        ):
            reply = await keyed.client(name).chat(f"Salted. {LONG_PROMPT}", max_tokens=2, **more)
            assert reply.status == 200, reply.body
            found.append(cached(reply))
        return found

    assert max(asyncio.run(ask())) < 8  # of what the template begins with


def test_cached_completions_are_found_only_by_their_key(keyed: KeyedServer) -> None:
    async def ask() -> list[str | None]:
        marks = []
        for name in ("alice", "alice", "anna", "bob"):
            reply = await keyed.client(name).chat("kept", temperature=0, max_tokens=3)
            marks.append(reply.headers.get("x-twofold-cache"))
            await asyncio.sleep(0.5)  # it is written when it was answered
        return marks

    assert asyncio.run(ask()) == [None, "hit", None, None]


async def _things_of(client: Client) -> list[tuple[str, str]]:
    """Creates one object of each stored kind; returns the methods and paths to access them."""
    line = {"custom_id": "1", "method": "POST", "url": "/v1/chat/completions", "body": chat(max_tokens=1)}
    form = (
        b'--x\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.jsonl"\r\n\r\n%s\r\n--x--\r\n'
    ) % json.dumps(line).encode()
    file = await client.ask("POST", "/v1/files", form, Content_Type="multipart/form-data; boundary=x")
    assert file.status == 200, file.body
    about = {"input_file_id": file.json["id"], "endpoint": "/v1/chat/completions", "completion_window": "24h"}
    batch = await client.ask("POST", "/v1/batches", about)
    assert batch.status == 200, batch.body
    response = await client.ask("POST", "/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 16})
    assert response.status == 200, response.body
    chatted = await client.ask("POST", "/v1/chat/completions", chat(max_tokens=1), x_request_id="the-same-name")
    assert chatted.status == 200
    file_path, batch_path = f"/v1/files/{file.json['id']}", f"/v1/batches/{batch.json['id']}"
    response_path = f"/v1/responses/{response.json['id']}"
    return [
        ("GET", file_path),
        ("GET", f"{file_path}/content"),
        ("GET", batch_path),
        ("GET", response_path),
        ("GET", f"{response_path}/input_items"),
        ("GET", "/v1/twofold/requests/the-same-name"),
        ("POST", f"{batch_path}/cancel"),
        ("DELETE", response_path),
        ("DELETE", file_path),
    ]


def test_stored_objects_do_not_exist_for_another_tenant(keyed: KeyedServer) -> None:
    async def look() -> None:
        alice, anna, bob = (keyed.client(name) for name in ("alice", "anna", "bob"))
        things = await _things_of(alice)
        for method, path in things:
            refused = await bob.ask(method, path)
            nothing = await bob.ask(method, _other_name(path))
            assert refused.status == nothing.status == 404, (path, refused.status, nothing.status)
            assert _shape(refused.json) == _shape(nothing.json), "whether it exists shows"
        for path in ("/v1/files", "/v1/batches"):
            assert (await bob.get(path)).json["data"] == []
        used = {"input_file_id": things[0][1].rpartition("/")[2], "completion_window": "24h"}
        taken = await bob.ask("POST", "/v1/batches", used | {"endpoint": "/v1/chat/completions"})
        assert taken.status in {400, 404}
        gone_on = {"model": "tiny", "input": "and", "previous_response_id": things[3][1].rpartition("/")[2]}
        assert (await bob.ask("POST", "/v1/responses", gone_on)).status in {400, 404}
        for method, path in things:
            assert (await anna.ask(method, path)).status in {200, 409}, path

    asyncio.run(look())


def _other_name(path: str) -> str:
    """The path of an object that does not exist."""
    parts = path.split("/")
    place = 4 if parts[2] == "twofold" else 3
    kind, _, name = parts[place].rpartition("-" if "-" in parts[place] else "_")
    parts[place] = f"{kind}{parts[place][len(kind) : len(kind) + 1]}{name[::-1]}"
    return "/".join(parts)


def _shape(body: dict[str, Any]) -> tuple[object, ...]:
    error = body["error"]
    return (error["type"], error["code"], error["param"])


def test_a_record_is_not_replaced_by_another_tenant_s_of_the_same_name(keyed: KeyedServer) -> None:
    async def collide() -> tuple[int, int]:
        path, name = "/v1/twofold/requests/twice", {"x_request_id": "twice"}
        await keyed.client("alice").ask("POST", "/v1/chat/completions", chat(max_tokens=3), **name)
        await keyed.client("bob").ask("POST", "/v1/chat/completions", chat(max_tokens=5), **name)
        records = [(await keyed.client(key).get(path)).json for key in ("alice", "bob")]
        return records[0]["tokens"]["output"], records[1]["tokens"]["output"]

    assert asyncio.run(collide()) == (3, 5)


def test_a_stored_response_is_not_replaced_by_one_of_the_same_request_id(keyed: KeyedServer) -> None:
    """The server makes the ids of stored objects: request ids of callers are only echoed."""

    async def collide() -> None:
        alice, anna, name = keyed.client("alice"), keyed.client("anna"), {"x_request_id": "same"}

        async def respond(client: Client, text: str, **more: Any) -> Any:
            body = {"model": "tiny", "input": text, "max_output_tokens": 16, **more}
            reply = await client.ask("POST", "/v1/responses", body, **name)
            assert reply.headers["x-request-id"] == "same"
            return reply

        first = (await respond(alice, "first")).json["id"]
        second = (await respond(anna, "second")).json["id"]
        assert first != second
        items = (await alice.get(f"/v1/responses/{first}/input_items")).json["data"]
        assert items[0]["content"][0]["text"] == "first"
        third = await respond(alice, "third", previous_response_id=first)
        assert third.status == 200
        fourth = await respond(alice, "fourth", previous_response_id=third.json["id"])
        assert fourth.status == 200, fourth.body
        items = (await alice.get(f"/v1/responses/{fourth.json['id']}/input_items")).json["data"]
        told = [item["content"][0]["text"] for item in items if item.get("role") == "user"]
        assert told == ["fourth", "third", "first"]

    asyncio.run(collide())


def test_sums_are_the_tenant_s_own(keyed: KeyedServer) -> None:
    async def use() -> tuple[int, int]:
        before = [await _output(keyed.client(name)) for name in ("anna", "bob")]
        await keyed.client("alice").chat("sums", max_tokens=7, ignore_eos=True)
        after = [await _output(keyed.client(name)) for name in ("anna", "bob")]
        return after[0] - before[0], after[1] - before[1]

    assert asyncio.run(use()) == (7, 0)


async def _output(client: Client) -> int:
    sums = (await client.get("/v1/twofold/usage")).json["data"]
    return sum(entry["output"] for entry in sums)
