"""Streams that their clients do not read: other requests run in their slots, and nothing is lost."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import ExitStack
from http.client import HTTPResponse
from pathlib import Path
from typing import Any, Final

from tests.server.live import live_server
from tests.server.trust.client import CHAT, Client, endless
from tests.server.trust.state import quiet
from tests.support.tiny import TinyModel
from twofold.server.edge.protocol import UNSENT_BYTES

UNREAD: Final = 4
MOST: Final = 200
"""Tokens, of about 1,500 bytes each."""
BODY: Final = endless(logprobs=True, top_logprobs=20, speculation=False, max_tokens=MOST)
WAITING: Final = 'vllm:num_requests_waiting{engine="0",model_name="tiny"}'


def test_unread_streams_give_their_slots_to_others_and_lose_nothing(tiny: TinyModel, tmp_path: Path) -> None:
    """The kernel's buffers would take all of such a stream, so that it kept its slot to its end."""

    async def ask(client: Client, streams: list[socket.socket]) -> None:
        await _all_wait(client)
        assert (await client.chat(max_tokens=4)).status == 200
        await _all_wait(client)
        expected = (await client.ask("POST", CHAT, BODY)).body
        assert len(expected) > 8 * UNSENT_BYTES
        for body in await asyncio.gather(*(asyncio.to_thread(_read, stream) for stream in streams)):
            assert _choices(body) == _choices(expected)
        assert not any((await quiet(client)).values())

    slots = ("--threads", "1", "--max-num-seqs", "2")
    with live_server(tmp_path, f"tiny={tiny.path}", *slots) as live, ExitStack() as stack:
        client = Client(live.url)
        streams = [stack.enter_context(_unread(client)) for _ in range(UNREAD)]
        asyncio.run(ask(client, streams))


async def _all_wait(client: Client) -> None:
    waiting = 0.0
    for _ in range(100):
        waiting = (await client.metrics()).get(WAITING, 0.0)
        if waiting == UNREAD:
            return
        await asyncio.sleep(0.2)
    raise AssertionError(f"{waiting:.0f} of {UNREAD} requests wait")


def _unread(client: Client) -> socket.socket:
    """A request whose answer stays in buffers."""
    stream = socket.socket()
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    stream.settimeout(60)
    stream.connect(("127.0.0.1", client.port))
    stream.sendall(client.bytes("POST", CHAT, BODY))
    return stream


def _read(stream: socket.socket) -> bytes:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
    response = HTTPResponse(stream)
    response.begin()
    return response.read()


def _choices(body: bytes) -> list[Any]:
    lines = (line[6:] for line in body.splitlines() if line.startswith(b"data: {"))
    return [json.loads(line)["choices"] for line in lines]
