"""The engine's process is killed: streams go on with the next one, waiting requests complete, the server survives."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Final

from tests.server.live import LiveServer, live_server
from tests.server.trust.client import CHAT, MESSAGES, Client, Reply, endless, message
from tests.server.trust.state import processor_s
from tests.support.tiny import TinyModel

STARTS: Final = 2
"""By this factor may the next worker take more processor time until it is ready than the first one did."""
SEQUENCES: Final = 4
WAITING: Final = 6


def test_a_worker_that_is_killed_while_it_streams(tiny: TinyModel, tmp_path: Path) -> None:
    async def crash(server: LiveServer) -> tuple[list[Reply], list[Reply], list[float], int]:
        client = Client(server.url)
        (worker,) = server.worker_pids()
        took = [processor_s(worker)]
        streams = [await client.send("POST", CHAT, endless()) for _ in range(SEQUENCES // 2)]
        streams += [
            await client.send("POST", MESSAGES, message(max_tokens=480, stream=True)) for _ in range(SEQUENCES // 2)
        ]
        for stream in streams:
            await stream.head()
            async for chunk in stream.chunks():
                if b"text_delta" in chunk or b'"content":"' in chunk.replace(b'"content":""', b""):
                    break
        waiting = [asyncio.create_task(client.chat(f"{n}", max_tokens=4)) for n in range(WAITING)]
        await asyncio.sleep(0.01)
        os.kill(worker, signal.SIGKILL)
        while worker in (following := server.worker_pids()) or not following:
            await asyncio.sleep(0.01)
        while (await client.get("/ready")).status != 200:
            await asyncio.sleep(0.01)
        took.append(processor_s(*following))
        ends = await asyncio.gather(*(stream.rest() for stream in streams))
        answers = await asyncio.gather(*waiting)
        names = [answer.headers["x-request-id"] for answer in answers]
        records = [(await client.get(f"/v1/twofold/requests/{name}")).json for name in names]
        return list(ends), answers, took, max(record["retries"] for record in records)

    with live_server(tmp_path, f"tiny={tiny.path}", "--threads", "1", "--max-num-seqs", f"{SEQUENCES}") as server:
        ends, answers, took, retries = asyncio.run(crash(server))
        page = server.get("/metrics").text
    assert took[1] <= STARTS * took[0]
    assert all(b'"error"' not in reply.body for reply in ends)
    assert all(b'"length"' in reply.body or b"max_tokens" in reply.body for reply in ends)
    assert [answer.status for answer in answers] == [200] * WAITING
    assert retries in {0, 1}
    assert "the process of the model tiny exited (signal 9); it is restarted" in server.log.read_text()
    assert 'twofold:engine_restarts_total{engine="0",model_name="tiny"} 1.0' in page
