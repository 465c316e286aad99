"""Texts of callers and models, keys and paths do not leak: canaries of each are searched everywhere else.

Errors name the fault of a request, and an unknown field; they do not quote the prompt.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.server.trust.client import CHAT, MESSAGES, Client, Reply, chat, endless, message
from tests.server.trust.keyed import KeyedServer, keyed_server
from tests.support.tiny import TinyModel

PROMPT: Final = "canaryprompt"
OUTPUT: Final = "canaryoutputoutput"
"""No request holds it in one piece."""
FORCED: Final = {"regex": "canary(output){2}"}
FOLDER: Final = "canaryfolder"
FAULTY: Final[tuple[tuple[str, Any], ...]] = (
    (CHAT, chat(PROMPT, temperature=-1)),
    (CHAT, chat(PROMPT, unknown_field=PROMPT[:4])),
    (CHAT, chat(PROMPT, max_tokens=PROMPT.count("a") * -1)),
    (CHAT, chat(PROMPT * 100)),
    (CHAT, chat(PROMPT) | {"model": "another"}),
    (CHAT, {"model": "tiny", "messages": [{"role": "user", "content": {"text": PROMPT}}]}),
    (CHAT, {"model": "tiny", "messages": [{"role": "user", "content": [{"type": "image_url", "text": PROMPT}]}]}),
    (CHAT, {"model": "tiny", "messages": PROMPT}),
    (CHAT, {"model": "tiny", "messages": [PROMPT]}),
    (CHAT, chat(PROMPT, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": 3}}})),
    (CHAT, f'{{"model": "tiny", "messages": [{{"role": "user", "content": "{PROMPT}'.encode()),
    (CHAT, f'{{"model": "tiny", "x": "{PROMPT}", {PROMPT}}}'.encode()),
    (CHAT, b'{"model": "tiny", "messages": "\xff' + PROMPT.encode() + b'"}'),
    (CHAT, f'"{PROMPT}"'.encode()),
    (MESSAGES, message(PROMPT, temperature=9)),
    (MESSAGES, message(PROMPT) | {"system": {"text": PROMPT}}),
    (MESSAGES, message(PROMPT) | {"messages": [{"role": "user", "content": [{"type": "image", "source": PROMPT}]}]}),
    ("/v1/completions", {"model": "tiny", "prompt": {"text": PROMPT}}),
    ("/v1/completions", {"model": "tiny", "prompt": [PROMPT, 3]}),
    ("/v1/embeddings", {"model": "tiny", "input": {"text": PROMPT}}),
    ("/v1/responses", {"model": "tiny", "input": {"text": PROMPT}}),
    ("/v1/responses", {"model": "tiny", "input": [{"type": "item_of_no_kind", "text": PROMPT}]}),
    ("/tokenize", {"model": "tiny", "prompt": [PROMPT]}),
    ("/detokenize", {"model": "tiny", "tokens": PROMPT}),
)


@pytest.fixture(scope="module")
def keyed(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedServer]:
    folder = tmp_path_factory.mktemp(FOLDER)
    model = folder / "model.gguf"
    model.symlink_to(tiny.path)
    with keyed_server(folder, f"tiny={model}", "--log-level", "debug", "--log-format", "json") as server:
        yield server


def test_no_error_quotes_a_prompt_or_a_path(keyed: KeyedServer) -> None:
    async def fail() -> list[Reply]:
        client = keyed.client("alice")
        return [await client.ask("POST", path, body) for path, body in FAULTY]

    for (_, body), reply in zip(FAULTY, asyncio.run(fail()), strict=True):
        assert 400 <= reply.status < 500, (body, reply.status, reply.body)
        assert len(reply.body) <= 4096
        _check(reply.body.decode(), keyed, str(body)[:80])


def _check(text: str, keyed: KeyedServer, where: str) -> None:
    canaries = (PROMPT, OUTPUT, FOLDER, str(keyed.folder), *keyed.keys.values(), *_bare(keyed))
    found = [canary for canary in canaries if canary in text]
    assert not found, (found, where)


def _bare(keyed: KeyedServer) -> list[str]:
    return [key.removeprefix("tf-") for key in keyed.keys.values()]


async def _live_and_let_die(keyed: KeyedServer) -> tuple[str, dict[str, Any]]:
    """Requests of all kinds and ends; what was answered to one, and its record."""
    client = keyed.client("alice")
    answer = await client.chat(PROMPT, structured_outputs=FORCED, max_tokens=40, user=PROMPT)
    record = await client.get(f"/v1/twofold/requests/{answer.headers['x-request-id']}")
    await client.ask("POST", MESSAGES, message(PROMPT, stream=True))
    await client.ask("POST", "/v1/completions", {"model": "tiny", "prompt": PROMPT, "echo": True, "max_tokens": 2})
    await client.ask("POST", "/v1/embeddings", {"model": "tiny", "input": PROMPT})
    await client.get(f"/v1/{PROMPT}")
    await client.get(f"/v1/files/{PROMPT}")
    left = await client.send("POST", CHAT, endless() | chat(PROMPT, stream=True))
    await left.head()
    left.leave()
    await _crash(keyed, client)
    return answer.json["choices"][0]["message"]["content"], record.json


async def _crash(keyed: KeyedServer, client: Client) -> None:
    """The worker dies while it answers."""
    stream = await client.send("POST", CHAT, endless() | chat(PROMPT, stream=True))
    await stream.head()
    os.kill(keyed.live.worker_pids()[0], signal.SIGKILL)
    end = await stream.rest()
    _check(end.events[-1], keyed, "the error of a crash")
    assert (await client.chat(max_tokens=1)).status == 200


def test_content_is_not_written_to_shared_places(keyed: KeyedServer) -> None:
    answered, record = asyncio.run(_live_and_let_die(keyed))
    assert answered == OUTPUT
    assert record["tokens"]["output"] > 0
    _check(json.dumps(record), keyed, "a record")

    async def read() -> list[Reply]:
        client = keyed.client("bob")
        paths = ("/metrics", "/v1/twofold/usage", "/v1/models", "/version", "/openapi.json")
        return [await client.get(path) for path in paths]

    for reply in asyncio.run(read()):
        assert reply.status == 200
        _check(reply.body.decode(), keyed, "a page")
    log = keyed.live.log.read_text()
    assert record["id"] in log
    _check(log.replace(f"/v1/{PROMPT}", ""), keyed, "the log")
    _check((keyed.folder / "data" / "usage.sqlite").read_bytes().decode("latin-1"), keyed, "the sums")


def test_stored_data_is_readable_by_its_owner_only(keyed: KeyedServer) -> None:
    """Responses and files hold what people wrote: nobody else on the machine reads them."""
    data = keyed.folder / "data"
    assert len(list(data.rglob("*"))) > 4
    assert [path for path in (data, *data.rglob("*")) if open_to_others(path)] == []


def open_to_others(path: Path) -> bool:
    return bool(path.stat().st_mode & 0o077) and not any(parent.stat().st_mode & 0o077 == 0 for parent in path.parents)
