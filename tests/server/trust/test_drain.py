"""Shutdown: running requests may finish, new ones are refused, and a second signal ends all with an error event."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.server.live import LiveServer, live_server
from tests.server.trust.client import CHAT, MESSAGES, Client, Exchange, Reply, endless, message
from tests.support.tiny import TinyModel

STREAMS: Final = 32
TOKENS: Final = 300
FORCED_EXIT_S: Final = 60.0
"""Less than streams or the patience of a first signal take."""


async def begun(client: Client, count: int, body: object, path: str = CHAT) -> list[Exchange]:
    """Streams of which the first has begun."""
    streams = [await client.send("POST", path, body) for _ in range(count)]
    await streams[0].head()
    return streams


async def ends_of(streams: Sequence[Exchange]) -> list[Reply]:
    """The bytes that each stream received, to its end."""
    for stream in streams[1:]:
        await stream.head()
    return list(await asyncio.gather(*(stream.rest() for stream in streams)))


async def refused(client: Client) -> bool:
    """Whether nothing new is taken."""
    try:
        return (await client.chat(max_tokens=1)).status == 503
    except (OSError, asyncio.IncompleteReadError):
        return True


def test_running_requests_finish_and_new_ones_are_refused(tiny: TinyModel, tmp_path: Path) -> None:
    async def drain(live: LiveServer) -> tuple[list[Reply], Reply, list[bool], float]:
        client = Client(live.url)
        whole = asyncio.create_task(client.chat(max_tokens=TOKENS, ignore_eos=True))
        streams = await begun(client, STREAMS, endless(max_tokens=TOKENS, logprobs=True))
        await asyncio.gather(*(stream.head() for stream in streams[1:]))
        await asyncio.sleep(0.05)
        live.process.send_signal(signal.SIGTERM)
        told = time.monotonic()
        late = [await refused(client)]
        while not late[-1]:  # until the signal has arrived
            late.append(await refused(client))
        late = [await refused(client) for _ in range(3)]
        ends = await asyncio.gather(*(stream.rest() for stream in streams))
        status = await asyncio.to_thread(live.process.wait, 120)
        assert status == 0
        return list(ends), await whole, late, time.monotonic() - told

    with live_server(tmp_path, f"tiny={tiny.path}", "--threads", "1", "--shutdown-timeout", "120") as live:
        ends, whole, late, seconds = asyncio.run(drain(live))
    for end in ends:
        assert end.events[-1] == "[DONE]"
        choices = [json.loads(event)["choices"][0] for event in end.events[:-1]]
        assert sum(len(choice["logprobs"]["content"]) for choice in choices if choice.get("logprobs")) == TOKENS
        assert choices[-1]["finish_reason"] == "length"
    assert whole.status == 200
    assert all(late)
    assert seconds <= 120


@pytest.mark.parametrize("second_signal", [True, False])
@pytest.mark.parametrize(("path", "body"), [(CHAT, endless()), (MESSAGES, message(max_tokens=490, stream=True))])
def test_a_second_signal_or_the_end_of_the_time_ends_every_stream_with_an_error(
    tiny: TinyModel, tmp_path: Path, second_signal: bool, path: str, body: object
) -> None:
    """Streams that have begun get an event, waiting requests a status."""
    patience = 120.0 if second_signal else 0.2

    async def end(live: LiveServer) -> tuple[list[Reply], float]:
        streams = await begun(Client(live.url), STREAMS, body, path)
        live.process.send_signal(signal.SIGTERM)
        if second_signal:
            await asyncio.sleep(0.02)
            live.process.send_signal(signal.SIGINT)
        told = time.monotonic()
        ends = await ends_of(streams)
        assert await asyncio.to_thread(live.process.wait, 120) == 0
        return ends, time.monotonic() - told

    slow = ("--threads", "1", "--max-num-seqs", "2", "--shutdown-timeout", f"{patience}")
    with live_server(tmp_path, f"tiny={tiny.path}", *slow) as live:
        ends, seconds = asyncio.run(end(live))
    assert seconds <= FORCED_EXIT_S + (0 if second_signal else patience)
    cut = [reply for reply in ends if b"shutting down" in reply.body]
    assert len(cut) > STREAMS / 2
    for reply in ends:
        whole = b"[DONE]" in reply.body or b"message_stop" in reply.body
        assert whole or reply in cut
        assert reply.status == 200 or (reply.status in {503, 529} and "retry-after" in reply.headers)
    assert any(reply.status == 200 for reply in cut)
