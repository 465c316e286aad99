"""``python -m benchmarks.soak``: a long mixed load on a server, where a fifth of the clients disconnect early.

16 concurrent clients send 10,000 requests in both dialects, streamed or not, to a tiny synthetic model: the subject is
the server around it. The memory of its processes is sampled once a second. A separate process requests /health 50 times
a second, since the busy clients could not time it. Requirements: no resource held at the end, at most 1 KiB of growth
per request, a /health P99 of at most 50 ms, and status 200 for every client that stays. The exit status is 1 if one is
not met; the last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tests.server.live import LiveServer, live_server
from tests.server.trust.client import CHAT, MESSAGES, Client, chat, endless, message, percentile, watched
from tests.server.trust.state import memory_of, quiet
from tests.support.tiny import TinyOptions, write_tiny

CLIENTS: Final = 16
LOOK_S: Final = 1.0
WARM: Final = 0.3
"""Share of the requests after which memory must be stable: until then caches and the request history fill."""
MAX_GROWTH: Final = 1024.0
MAX_HEALTH_S: Final = 0.05
TOOL: Final = {"name": "look", "description": "Looks.", "parameters": {"type": "object", "properties": {}}}
KINDS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    (CHAT, chat(max_tokens=20)),
    (CHAT, endless(max_tokens=60)),
    (CHAT, endless(max_tokens=20, n=3)),
    (CHAT, chat("again and again the same words " * 4, max_tokens=8, temperature=0)),
    (CHAT, chat(max_tokens=30, stream=True, logprobs=True, top_logprobs=3)),
    (CHAT, chat(max_tokens=30, response_format={"type": "json_object"})),
    (CHAT, chat(max_tokens=80, tools=[{"type": "function", "function": TOOL}], tool_choice="required")),
    (MESSAGES, message(max_tokens=40, stream=True)),
    (MESSAGES, message(max_tokens=20)),
    ("/v1/completions", {"model": "tiny", "prompt": ["a", "b"], "max_tokens": 20, "stream": True}),
    ("/v1/responses", {"model": "tiny", "input": "hello", "max_output_tokens": 20, "stream": True}),
    ("/v1/embeddings", {"model": "tiny", "input": ["a", "b", "c"]}),
)


@dataclass(slots=True)
class Soak:
    """Results. ``memory`` holds pairs of requests so far and bytes; ``ends`` counts statuses and disconnections."""

    ends: Counter[str] = field(default_factory=Counter)
    memory: list[tuple[int, int]] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    seconds: float = 0.0
    held: dict[str, float] = field(default_factory=dict)

    @property
    def requests(self) -> int:
        return sum(self.ends.values())

    @property
    def growth(self) -> float:
        """Bytes per request, by least squares over the samples after the warm-up."""
        settled = [pair for pair in self.memory if pair[0] >= WARM * self.requests]
        counts, sizes = zip(*settled, strict=True)
        return float(np.polyfit(counts, sizes, 1)[0]) if len(settled) > 2 else 0.0

    def broken(self) -> list[str]:
        """The requirements that are not met."""
        met = {
            "answers": set(self.ends) <= {"200", "left"},
            "nothing held": not any(self.held.values()),
            "growth": self.growth <= MAX_GROWTH,
            "health": percentile(self.health, 0.99) <= MAX_HEALTH_S,
        }
        return [name for name, holds in met.items() if not holds]

    def report(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "requests_per_s": round(self.requests / self.seconds, 1),
            "ends": dict(self.ends),
            "health_ms": {f"p{share}": round(1e3 * percentile(self.health, share / 100), 2) for share in (50, 99, 100)},
            "growth_bytes_per_request": round(self.growth, 1),
            "memory_mib": [round(size / 2**20, 1) for _, size in (self.memory[0], self.memory[-1])],
            "held": {name: value for name, value in self.held.items() if value},
            "broken": self.broken(),
        }


async def soak(server: LiveServer, requests: int, leaving: float, seed: int = 0) -> Soak:
    """Sends ``requests`` requests; a share ``leaving`` of the clients disconnects at a random moment."""
    client, seen, rng = Client(server.url), Soak(), random.Random(seed)
    plans = iter([(*rng.choice(KINDS), rng.random() < leaving, rng.random()) for _ in range(requests)])

    async def work() -> None:
        for path, body, leaves, moment in plans:
            end = await (_leave(client, path, body, moment) if leaves else _stay(client, path, body))
            seen.ends[end] += 1

    async def look() -> None:
        while True:
            seen.memory.append((seen.requests, memory_of([server.process.pid, *server.worker_pids()])))
            await asyncio.sleep(LOOK_S)

    began = time.monotonic()
    looking = asyncio.create_task(look())
    with _watching(server.url) as seen.health:
        await asyncio.gather(*(work() for _ in range(CLIENTS)))
    seen.seconds = time.monotonic() - began
    looking.cancel()
    seen.held = await quiet(client)
    seen.memory.append((seen.requests, memory_of([server.process.pid, *server.worker_pids()])))
    return seen


@contextmanager
def _watching(url: str) -> Iterator[list[float]]:
    """Seconds of each /health request during the block; the list is filled when the block ends."""
    took: list[float] = []
    command = [sys.executable, "-m", "benchmarks.soak", "--watch", url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield took
        output, _ = process.communicate()  # closes its input, which stops it
    took += json.loads(output)


async def _watch(url: str) -> None:
    """Requests /health until standard input closes, then prints the seconds of each response as JSON."""
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    async with watched(Client(url)) as took:
        await ended
    print(json.dumps(took))


async def _stay(client: Client, path: str, body: Any) -> str:
    reply = await client.ask("POST", path, body)
    return str(reply.status)


async def _leave(client: Client, path: str, body: Any, moment: float) -> str:
    """Disconnects within 40 ms, or after up to 20 chunks of the response."""
    exchange = await client.send("POST", path, body)
    if moment < 0.5:
        await asyncio.sleep(moment * 0.08)
    else:
        await exchange.head()
        left = round((moment - 0.5) * 40)
        async for _ in exchange.chunks():
            left -= 1
            if left <= 0:
                break
    exchange.leave()
    return "left"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.soak", description=__doc__.split("\n", 1)[0])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument(
        "--leaving", type=float, default=0.2, help="share of clients that disconnect early (default: %(default)s)"
    )
    parser.add_argument("--watch", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.watch:
        asyncio.run(_watch(options.watch))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        model = write_tiny(Path(folder) / "tiny.gguf", TinyOptions(context=2048))
        queue = ("--max-num-queued-reqs", "1024", "--access-log", "errors")
        with live_server(Path(folder), f"tiny={model.path}", "--threads", "1", *queue) as server:
            seen = asyncio.run(soak(server, options.requests, options.leaving))
            status = server.end()
    report = {**seen.report(), "exit_status": status}
    for name, value in report.items():
        print(f"{name:26} {value}")
    print(json.dumps(report))
    return 1 if seen.broken() or status else 0


if __name__ == "__main__":
    sys.exit(main())
