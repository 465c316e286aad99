"""Every limit, from both sides; impossible requests are refused by name, never ignored."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pytest

from tests.server.beats import check_held, watched_server
from tests.server.live import LiveServer, live_server
from tests.server.trust.client import CHAT, MESSAGES, Client, Reply, chat, endless, message
from tests.server.trust.state import processor_s, quiet
from tests.support.tiny import TinyModel, TinyOptions

ERROR_BYTES: Final = 4096
HELD_S: Final = 0.05
"""Processor time that the server may take between two turns of its event loop."""
SLOW: Final = TinyOptions("llama", vocab=300, context=8192, layers=8, hidden=256, heads=4, kv_heads=4, head_dim=64)
"""A model whose long prompts take a while."""
COMPLETIONS: Final = "/v1/completions"
GENERATED: Final = 'vllm:generation_tokens_total{engine="0",model_name="tiny"}'
PAGE_S: Final = 1.1
"""So old may the page of metrics be."""


def _tools(count: int) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": f"f{n}", "parameters": {"type": "object"}}} for n in range(count)]


def _schema(properties: int) -> dict[str, Any]:
    schema = {"type": "object", "properties": {f"property-{n:08}": {"type": "string"} for n in range(properties)}}
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


def _said(count: int) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": ""}] * count, "max_tokens": 1}


LIMITS: Final[tuple[tuple[str, Callable[[int], dict[str, Any]], int, str], ...]] = (
    (CHAT, lambda n: chat(max_tokens=1, n=n), 16, "n"),
    (CHAT, lambda n: chat(max_tokens=1, stop=["x"] * n), 16, "stop"),
    (CHAT, lambda n: chat(max_tokens=1, stop="x" * n), 256, "stop"),
    (CHAT, lambda n: chat(max_tokens=1, logprobs=True, top_logprobs=n), 20, "top_logprobs"),
    (CHAT, lambda n: chat(max_tokens=1, tools=_tools(n), tool_choice="none"), 128, "tools"),
    (CHAT, _said, 4096, "messages"),
    (COMPLETIONS, lambda n: {"model": "tiny", "prompt": "x", "max_tokens": 1, "n": n}, 16, "n"),
    (COMPLETIONS, lambda n: {"model": "tiny", "prompt": "x", "max_tokens": 1, "stop": ["x"] * n}, 16, "stop"),
    (MESSAGES, lambda n: message(stop_sequences=["x"] * n), 16, "stop_sequences"),
    (MESSAGES, lambda n: message(stop_sequences=["x" * n]), 256, "stop_sequences"),
)


@pytest.mark.parametrize(("path", "body", "most", "name"), LIMITS, ids=[f"{limit[0]}-{limit[3]}" for limit in LIMITS])
def test_the_maximum_is_accepted_and_one_more_is_refused_by_name(
    client: Client, path: str, body: Callable[[int], dict[str, Any]], most: int, name: str
) -> None:
    """What the model's context is too short for is refused for that, and not for the limit."""

    async def both() -> tuple[Reply, Reply]:
        return await client.ask("POST", path, body(most)), await client.ask("POST", path, body(most + 1))

    taken, refused = asyncio.run(both())
    assert taken.status == 200 or b"context" in taken.body, taken.body
    assert refused.status == 400
    assert b"context" not in refused.body
    assert name in refused.json["error"]["message"]
    assert len(refused.body) <= ERROR_BYTES


def test_a_schema_is_compiled_in_time_or_refused(tiny: TinyModel, tmp_path: Path) -> None:
    """256 KiB and 250 ms of processor time are the most; the event loop goes on meanwhile."""
    with watched_server(tmp_path, f"tiny={tiny.path}", "--threads", "1") as (server, beats):
        client = Client(server.url)
        for properties in (2_000, 8_000, 40_000):
            body = chat(max_tokens=1, response_format=_schema(properties))
            with beats.watched() as held:
                reply = asyncio.run(client.ask("POST", CHAT, body))
            assert reply.status in {200, 400, 413}
            assert reply.status != 200 or properties < 8_000
            assert len(reply.body) <= ERROR_BYTES
            check_held(held, HELD_S)


async def _raw(client: Client, data: bytes, pause_s: float = 0.0) -> bytes:
    """What the server says to these bytes until it closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    try:
        async with asyncio.timeout(20):
            writer.write(data)
            await asyncio.sleep(pause_s)
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (8 << 20) + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"x: y\r\n" * 300 + b"\r\n", 431),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)), 400),
        (b"GET /health HTTP/3.7\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n"
         b"Content-Type: application/json\r\n\r\n", 413),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n"
         b"Transfer-Encoding: chunked\r\n\r\n", 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
         b"Content-Type: application/json\r\nConnection: close\r\n\r\n" + b"1\r\n{\r\n" * 2000, 400),
        (b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
         b"Content-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}", 400),
    ],
)  # fmt: skip
def test_bytes_that_are_no_request_get_an_error(client: Client, data: bytes, status: int) -> None:
    """A client that still sends 8 MB may find its connection reset before it reads the answer."""
    told = asyncio.run(_raw(client, data))
    assert told.startswith(b"HTTP/1.1 %d" % status) or (not told and len(data) > 1 << 20), told[:200]
    assert len(told) <= ERROR_BYTES + 1024
    assert asyncio.run(client.get("/health")).status == 200


def test_times_and_sizes_that_were_configured_hold(
    tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path: Path
) -> None:
    """An answer is cut when its time is up, one that has not begun by then is an error; a long body is refused.

    What ends is ended by the time alone: nothing else would end any of the four before the context's end, and none is
    refused for a long wait."""
    limit_s = 0.5
    limits = ("--request-timeout", f"{limit_s}", "--max-body-mib", "0.01", "--max-num-seqs", "1")
    arguments = ("--threads", "1", *limits)
    slow = tiny_gguf(SLOW)

    async def ask(client: Client) -> tuple[Reply, list[Reply], Reply]:
        first = asyncio.create_task(client.chat(ignore_eos=True))
        await asyncio.sleep(limit_s / 5)  # it runs
        # Their prompts take longer than what the first one leaves of their time.
        late = await asyncio.gather(*(client.chat(f"{n} word" * 1000, ignore_eos=True) for n in range(3)))
        return await first, late, await client.chat("x" * 20_000)

    with live_server(tmp_path, f"tiny={slow.path}", *arguments) as server:
        first, late, large = asyncio.run(ask(Client(server.url)))
    assert (first.status, first.json["choices"][0]["finish_reason"]) == (200, "length")
    assert [reply.status for reply in late] == [504] * 3
    assert first.json["usage"]["completion_tokens"] < SLOW.context // 2
    assert large.status == 413


def test_a_stream_that_waits_is_kept_alive(tiny: TinyModel, tmp_path: Path) -> None:
    arguments = ("--threads", "1", "--max-num-seqs", "1", "--sse-keep-alive-interval", "0.1")

    async def wait(client: Client) -> tuple[Reply, Reply]:
        running = [await client.send("POST", CHAT, endless()) for _ in range(4)]
        replies = await asyncio.gather(
            client.ask("POST", CHAT, endless(max_tokens=2)), client.ask("POST", MESSAGES, message(stream=True))
        )
        for stream in running:
            stream.leave()
        return replies[0], replies[1]

    with live_server(tmp_path, f"tiny={tiny.path}", *arguments) as server:
        openai, anthropic = asyncio.run(wait(Client(server.url)))
    assert openai.events[-1] == "[DONE]"
    assert b"\n: " in b"\n" + openai.body
    assert b"event: ping" in anthropic.body


def test_a_client_that_does_not_read_delays_no_other(server: LiveServer) -> None:
    """It asks for 1.6 MiB and reads none of it. The engine does not work for it meanwhile: another request takes
    about as much of the worker's processor time as it takes alone."""
    client = Client(server.url)
    (worker,) = server.worker_pids()

    async def other() -> float:
        before = processor_s(worker)
        assert (await client.chat(max_tokens=20, ignore_eos=True)).status == 200
        return processor_s(worker) - before

    async def stall() -> tuple[float, float, dict[str, float]]:
        alone = min([await other() for _ in range(5)])
        exchange = await client.send("POST", CHAT, endless(n=16, logprobs=True, top_logprobs=20))
        await exchange.head()
        await _until_paused(client)
        beside = min([await other() for _ in range(5)])
        exchange.leave()
        return alone, beside, await quiet(client)

    alone, beside, held = asyncio.run(stall())
    assert beside <= 3 * alone + 0.005, (alone, beside)
    assert not any(held.values())


async def _until_paused(client: Client) -> None:
    """Until the engine generates nothing any more: two pages of metrics in a row say the same."""
    found = [-1.0]
    async with asyncio.timeout(60):
        while found[-1:] != found[-2:-1]:
            await asyncio.sleep(PAGE_S)
            found.append((await client.metrics()).get(GENERATED, 0.0))


UNKNOWN: Final[tuple[tuple[str, dict[str, Any], str], ...]] = (
    (CHAT, {"temprature": 1}, "temperature"),
    (CHAT, {"audio": {"voice": "x"}}, "audio"),
    (CHAT, {"web_search_options": {}}, "web_search_options"),
    (MESSAGES, {"container": "x"}, "container"),
    (MESSAGES, {"mcp_servers": [{"type": "url"}]}, "mcp_servers"),
    (COMPLETIONS, {"suffix": "x"}, "suffix"),
)


@pytest.mark.parametrize(("path", "more", "named"), UNKNOWN, ids=[each[2] for each in UNKNOWN])
def test_unsupported_fields_are_refused_by_name(client: Client, path: str, more: dict[str, Any], named: str) -> None:
    plain = {COMPLETIONS: {"model": "tiny", "prompt": "x"}, CHAT: chat(), MESSAGES: message()}[path]
    reply = asyncio.run(client.ask("POST", path, plain | more))
    assert reply.status == 400
    assert named in reply.json["error"]["message"]
