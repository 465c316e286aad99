"""Prefill and decode apart, against replicas that do both, under the same load on this machine.

    python -m benchmarks.fleet handover MODEL

Two replicas of one thread each serve prompts that arrive at random, once as two replicas for both phases and once as
one that prefills and one that decodes. Before each run the mean times are predicted by the step-time model of a replica
(weights after WARM requests): with P seconds for a prompt, and t(n) for a decode step of n sequences,

    both    TPOT = t(n) / (1 − λP/2), TTFT = P / (1 − λP/2) + wait
    apart   TPOT = t(2n),             TTFT = P + wait, prompts of both go to one replica

with the wait of an M/D/1 queue, λ/2 or λ prompts a second.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.engine.scheduler.step_time import StepShape, StepTimeModel
from twofold.fleet.fleet import Fleet
from twofold.fleet.reading import read_file
from twofold.fleet.routing.router import Role
from twofold.fleet.streams import RequestRoute
from twofold.host.paths import CacheFolders

ENGINE: Final = {"threads": 1, "kv_cache_memory_bytes": 1 << 29, "max_model_len": 2048}
WARM: Final = 6
POOLS: Final[dict[str, Sequence[Role]]] = {"both": ("both", "both"), "apart": ("prefill", "decode")}


async def ask(model: Fleet, ids: tuple[int, ...], output: int, name: str) -> tuple[list[float], RequestRoute]:
    """The times of its tokens after its arrival, in seconds, on the hub's clock."""
    times, loop = list[float](), asyncio.get_running_loop()
    params = SamplingParams(temperature=0, max_tokens=output, ignore_eos=True)
    began = loop.time()
    stream = model.run(EngineRequest(ids, params, request_id=name))
    async for delta in stream:
        times += [loop.time() - began] * len(delta.token_ids)
    return times, stream.route


def predict(step: StepTimeModel, rate: float, tokens: int, output: int) -> dict[str, dict[str, float]]:
    """Mean TTFT and TPOT of both pools, by the model of the description."""
    prompt_s = step.predict(StepShape().plus(0, tokens, 1)) or 0.0
    found = {}
    for pool in POOLS:
        own = rate / 2 if pool == "both" else rate
        busy = own * prompt_s
        wait_s = busy * prompt_s / (2 * (1 - busy)) if busy < 1 else float("inf")
        slow = 1 - busy if pool == "both" else 1.0
        tpot_s, context = 0.0, tokens + output // 2
        for _ in range(50):  # sequences = arrivals · seconds, which depend on them
            count = max(1.0, rate * output * tpot_s / (2 if pool == "both" else 1))
            shape = StepShape(*(round(count * each) for each in (1, 1, context, context)))
            tpot_s = (step.predict(shape) or 0.0) / slow
        found[pool] = {"ttft_s": round(prompt_s / slow + wait_s, 3), "tpot_s": round(tpot_s, 4)}
    return found


async def measure(path: Path, pool: str, given: argparse.Namespace) -> dict[str, Any]:
    roles, rng = POOLS[pool], random.Random(7)
    model = Fleet("model", read_file(path, CacheFolders.of().create()), ENGINE, replicas=2, roles=roles)
    await model.start()
    try:
        ids = [tuple(rng.randrange(1000, 40_000) for _ in range(given.tokens)) for _ in range(WARM + given.requests)]
        for number in range(WARM):
            await ask(model, ids[number], 16, f"warm{number}")
        known = next(each.load.step_time for each in model.replicas.values() if each.load and each.load.step_time.ready)
        print(json.dumps({"predicted": predict(known, given.rate, given.tokens, given.output)[pool]}), flush=True)
        tasks = []
        for number in range(given.requests):
            tasks.append(asyncio.create_task(ask(model, ids[WARM + number], given.output, f"r{number}")))
            await asyncio.sleep(rng.expovariate(given.rate))
        found = await asyncio.gather(*tasks)
    finally:
        await model.close()
    gaps = [after - before for times, _ in found for before, after in pairwise(times)]
    ttfts, moved = [times[0] for times, _ in found], [route.handover for _, route in found]
    gains = [each.gain_s for each in moved if each is not None]
    return {
        "pool": pool,
        "ttft_s": {"mean": round(statistics.mean(ttfts), 3), "p90": round(statistics.quantiles(ttfts, n=10)[-1], 3)},
        "tpot_s": round(statistics.mean(gaps), 4),
        "itl_p99_s": round(statistics.quantiles(gaps, n=100)[-1], 4),
        "moved": sum(each is not None and each.replica is not None for each in moved),
        "predicted_gain_s": round(statistics.median(gains), 3) if gains else None,
        "bytes": sum(each.nbytes for each in moved if each is not None),
        "early_bytes": sum(each.early for each in moved if each is not None),
    }
