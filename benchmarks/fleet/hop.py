"""What a hop to a node costs: a local replica beside a node over TLS on this machine, in turns.

    python -m benchmarks.fleet hop MODEL

A round trip asks the engine for a forecast: a message there and one back. Half of the difference is a hop. Throughput
is that of 8 greedy requests.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, Final

from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.fleet.certificates import create
from twofold.fleet.fleet import Fleet
from twofold.fleet.joining import FleetAddress, NodeListener
from twofold.fleet.link import NodeLink
from twofold.fleet.messages import Hello
from twofold.fleet.reading import read_file
from twofold.fleet.replica import FleetReplica
from twofold.host.paths import CacheFolders

ENGINE: Final[dict[str, Any]] = {"kv_cache_memory_bytes": 1 << 28, "max_model_len": 1024, "threads": 1}
ROUNDS, TRIPS, STREAMS, TOKENS = 4, 250, 8, 64


async def measure(model: Path) -> dict[str, Any]:
    """The figures, in milliseconds and tokens a second, by kind of replica."""
    with tempfile.TemporaryDirectory() as folder:
        create(certificates := Path(folder) / "certificates")
        fleet = Fleet("m", read_file(model, CacheFolders.of().create()), ENGINE, replicas=1)

        async def admit(node: NodeLink, hello: Hello) -> None:  # noqa: ARG001 - it is our own
            fleet.join(node)

        listener = NodeListener(FleetAddress("127.0.0.1", 0, certificates), admit)
        await listener.start()
        join = ("--join", listener.address, "--fleet-certs", str(certificates), "--threads", "1")
        with subprocess.Popen([sys.executable, "-m", "twofold", "node", f"m={model}", *join]) as node:
            try:
                await fleet.start()
                while sum(each.usable for each in fleet.replicas.values()) < 2:
                    await asyncio.sleep(0.1)
                return await _in_turns(fleet)
            finally:
                await fleet.close()
                await listener.close()
                node.terminate()


async def _in_turns(fleet: Fleet) -> dict[str, Any]:
    replicas = {"node" if each.node else "local": each for each in fleet.replicas.values()}
    trips: dict[str, list[float]] = {kind: [] for kind in replicas}
    speeds: dict[str, list[float]] = {kind: [] for kind in replicas}
    for turn in range(ROUNDS):
        for kind, replica in replicas.items():
            for _ in range(TRIPS):
                began = time.perf_counter()
                await replica.forecast(EngineRequest((1, 2, 3), SamplingParams()))
                trips[kind].append((time.perf_counter() - began) * 1e3)
            others = [each for each in replicas.values() if each is not replica]
            speeds[kind].append(await _speed(fleet, others, turn))
    hop = (median(trips["node"]) - median(trips["local"])) / 2
    return {
        "round_trip_ms": {kind: round(median(each), 3) for kind, each in trips.items()},
        "hop_ms": round(hop, 3),
        "tokens_per_s": {kind: [round(speed) for speed in each] for kind, each in speeds.items()},
        "throughput": round(median(speeds["node"]) / median(speeds["local"]), 3),
    }


async def _speed(fleet: Fleet, others: list[FleetReplica], turn: int) -> float:
    """Tokens a second of the replica that is not among ``others``."""
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    for other in others:
        other.state = "silent"

    async def stream(number: int) -> None:
        prompt = tuple(range(100 + 40 * turn + number, 116 + 40 * turn + number))
        async for _ in fleet.run(replace(EngineRequest(prompt, params), request_id=f"{id(others)}-{turn}-{number}")):
            for other in others:
                other.state = "silent"  # its beats say otherwise

    began = time.perf_counter()
    await asyncio.gather(*(stream(number) for number in range(STREAMS)))
    seconds = time.perf_counter() - began
    for other in others:
        other.state = "ready"
    return STREAMS * TOKENS / seconds
