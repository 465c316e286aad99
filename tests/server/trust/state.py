"""The resources that a server's processes hold, observed from outside."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Final

from tests.server.trust.client import Client

HELD: Final = (
    "vllm:num_requests_running",
    "vllm:num_requests_waiting",
    "vllm:kv_cache_usage_perc",
    "twofold:kv_blocks{",
)


async def quiet(client: Client, seconds: float = 60.0) -> dict[str, float]:
    """Waits until the engines hold nothing. Returns what they still hold after that time."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    while any((held := await _held(client)).values()) and loop.time() < until:
        await asyncio.sleep(0.1)
    return held


async def _held(client: Client) -> dict[str, float]:
    metrics = (await client.metrics()).items()
    return {name: value for name, value in metrics if name.startswith(HELD) and not _free(name)}


def _free(name: str) -> bool:
    """Whether the name is that of free or cached blocks."""
    return 'state="free"' in name or 'state="cached"' in name


def memory_of(pids: list[int]) -> int:
    """Bytes of anonymous memory of these processes, swapped out or not."""
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "VmSwap")))
    return total * 1024


def processor_s(pid: int) -> float:
    """Processor time that a process, with all its threads, has taken (the clock of clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)
