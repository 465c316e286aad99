"""Two laws of routing with real replicas: predicted TTFT is what comes, and tenants get equal service.

    python -m benchmarks.fleet ttft MODEL
    python -m benchmarks.fleet tenants MODEL

``ttft``: prompts, a part of which share their beginning, arrive at random at two replicas of one thread. After WARM
requests the prediction of each is compared with its measured TTFT. ``tenants``: two tenants always have requests in the
queue of four replicas, one of them long ones. Their service (prompt and completion tokens with the weights of the
scheduler) is counted where tokens arrive, over SECONDS seconds after WARM_S seconds.
"""

from __future__ import annotations

import asyncio
import random
import statistics
from collections import Counter
from itertools import count
from pathlib import Path
from typing import Any, Final

from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.scheduler.queue import COMPLETION_WEIGHT, PROMPT_WEIGHT
from twofold.fleet.fleet import Fleet
from twofold.fleet.reading import read_file
from twofold.host.paths import CacheFolders

ENGINE: Final = {"threads": 1, "kv_cache_memory_bytes": 1 << 28, "max_model_len": 2048}
WARM: Final = 10
WARM_S: Final = 10.0
IDLE_S: Final = 0.01
"""Seconds of predicted queue below which a replica counts as idle."""
SHARED: Final = 4
"""Beginnings that prompts share."""


def fleet(path: Path, replicas: int, **engine: Any) -> Fleet:
    """A fleet with replicas of one thread each, which has not begun to load."""
    return Fleet("m", read_file(path, CacheFolders.of().create()), {**ENGINE, **engine}, replicas=replicas)


def prompt(chance: random.Random) -> tuple[int, ...]:
    """100 to 500 tokens, of which half of the prompts share 96 with others."""
    begin = random.Random(chance.randrange(SHARED)) if chance.random() < 0.5 else chance
    first = [begin.randrange(1000, 40_000) for _ in range(96)]
    return (*first, *(chance.randrange(1000, 40_000) for _ in range(chance.randrange(4, 404))))


async def ttft(path: Path, rate: float, requests: int, tokens: int) -> dict[str, Any]:
    """Errors of predictions, (predicted − measured) / measured, of the requests after WARM."""
    chance, found = random.Random(3), list[tuple[float, float, float]]()
    model = fleet(path, 2)

    async def ask(number: int, ids: tuple[int, ...]) -> None:
        output = None
        params = SamplingParams(temperature=1.0, seed=number, max_tokens=tokens, ignore_eos=True)
        stream = model.run(EngineRequest(ids, params, request_id=f"r{number}"))
        async for delta in stream:
            output = delta.request or output
        assert output is not None
        assert output.metrics.ttft_s is not None
        route = stream.route
        assert route.choice is not None
        error = route.served(output).error
        if number >= WARM and route.choice.prediction is not None and error is not None:
            found.append((route.choice.prediction.queue_s, error, output.metrics.ttft_s))

    await model.start()
    try:
        tasks = []
        for number in range(WARM + requests):
            tasks.append(asyncio.create_task(ask(number, prompt(chance))))
            await asyncio.sleep(chance.expovariate(rate))
        await asyncio.gather(*tasks)
    finally:
        await model.close()
    parts = {
        "all": [error for _, error, _ in found],
        "idle": [error for queue_s, error, _ in found if queue_s < IDLE_S],
        "busy": [error for queue_s, error, _ in found if queue_s >= IDLE_S],
    }
    seconds = statistics.median(ttft_s for *_, ttft_s in found)
    return {"ttft_s": round(seconds, 3), **{name: summary(errors) for name, errors in parts.items()}}


def summary(errors: list[float]) -> dict[str, float]:
    """The size of the errors, and their median with its sign."""
    if len(errors) < 2:
        return {"count": len(errors)}
    sizes = sorted(map(abs, errors))
    return {
        "count": len(errors),
        "median": round(statistics.median(sizes), 3),
        "p90": round(sizes[int(0.9 * (len(sizes) - 1))], 3),
        "signed": round(statistics.median(errors), 3),
    }


async def tenants(path: Path, seconds: float) -> dict[str, Any]:
    """The service of two tenants that always wait."""
    service, served, numbers = dict.fromkeys(("long", "short"), 0.0), Counter[str](), count()
    sizes = {"long": (100, 40), "short": (20, 10)}
    model, chance, stop = fleet(path, 4, max_num_seqs=4), random.Random(5), asyncio.Event()

    async def client(tenant: str) -> None:
        tokens, output = sizes[tenant]
        while not stop.is_set():
            number, began = next(numbers), False
            ids = tuple(chance.randrange(1000, 40_000) for _ in range(tokens))
            params = SamplingParams(temperature=1.0, seed=number, max_tokens=output, ignore_eos=True)
            request = EngineRequest(ids, params, RequestOptions(tenant=tenant), request_id=f"r{number}")
            async for delta in model.run(request):
                if not stop.is_set():
                    service[tenant] += COMPLETION_WEIGHT * len(delta.token_ids) + (not began) * PROMPT_WEIGHT * tokens
                began = True
            served[tenant] += 1

    await model.start()
    try:
        clients = [asyncio.create_task(client(tenant)) for tenant in sizes for _ in range(40)]
        await asyncio.sleep(WARM_S)
        service |= dict.fromkeys(service, 0.0)
        await asyncio.sleep(seconds)
        stop.set()
        found, waiting = dict(service), model.requests.waiting
        for task in clients:
            task.cancel()
        for ended in await asyncio.gather(*clients, return_exceptions=True):
            if isinstance(ended, Exception):  # and no cancellation
                raise ended
    finally:
        await model.close()
    ratio = found["long"] / found["short"]
    return {
        "seconds": seconds,
        "service": found,
        "ratio": round(ratio, 4),
        "requests": dict(served),
        "waiting": waiting,
    }
