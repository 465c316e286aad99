"""TTFT of a long shared prefix on a replica that lacks it: fetched from another replica, against computed.

    python -m benchmarks.fleet prefix MODEL

Two replicas of one thread each. Every prompt is run on the first one; then the second one gets it, and computes it or
fetches its blocks. The first prompts teach the router the time of steps and the rate of the link.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Final

from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.engine.outputs import RequestOutput
from twofold.fleet.fleet import Fleet
from twofold.fleet.reading import read_file
from twofold.fleet.routing.router import Choice, Predicted, RoutedReplica, RoutedRequest
from twofold.fleet.streams import RequestRoute
from twofold.host.paths import CacheFolders

PARAMS: Final = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)
WARM: Final = 4
ENGINE: Final = {"threads": 1, "kv_cache_memory_bytes": 1 << 29, "max_model_len": 2048}


class One:
    """The replica ``number``, which may fetch if that is predicted to be sooner."""

    name: ClassVar[str] = "one"
    watches: ClassVar[bool] = True
    predicts: ClassVar[bool] = True

    def __init__(self) -> None:
        self.number, self.fetches = 0, True

    def choose(self, request: RoutedRequest, replicas: Sequence[RoutedReplica]) -> Choice | None:
        cached = request.matched()
        fetch = None if request.fetch is None or not self.fetches else request.fetch(self.number, cached)
        one = RoutedRequest(request.tokens, lambda: [cached[self.number]], None, lambda *_: fetch)
        choice = Predicted().choose(one, [replicas[self.number]])
        return None if choice is None else choice._replace(replica=self.number)


async def ask(model: Fleet, ids: tuple[int, ...]) -> tuple[RequestOutput, RequestRoute]:
    stream = model.run(EngineRequest(ids, PARAMS, request_id=secrets.token_hex(8)))
    output = [delta async for delta in stream][-1]
    assert output.request is not None, "the last delta has the whole output"
    await asyncio.sleep(0.1)  # the names of blocks arrive
    return output.request, stream.route


async def measure(path: Path, tokens: int, prompts: int) -> dict[str, object]:
    router = One()
    model = Fleet("model", read_file(path, CacheFolders.of().create()), ENGINE, replicas=2, router=router)
    await model.start()
    rng, seen = random.Random(7), dict[str, list[float]](computed=[], fetched=[], predicted=[], fetch=[])
    chosen = nbytes = 0
    try:
        for number in range(WARM + 2 * prompts):
            ids = tuple(rng.randrange(1000, 40_000) for _ in range(tokens))
            router.number, router.fetches = 0, False
            computed, _ = await ask(model, ids)
            router.number, router.fetches = 1, number % 2 == 0
            output, route = await ask(model, ids)
            assert output.outputs[0].token_ids == computed.outputs[0].token_ids, "other tokens"
            if number < WARM:
                continue
            ttft_s = output.metrics.ttft_s
            assert ttft_s is not None, "it has tokens"
            if not router.fetches:
                seen["computed"].append(ttft_s)
                continue
            seen["fetched"].append(ttft_s)
            if route.choice is not None and route.choice.prediction is not None:
                seen["predicted"].append(route.choice.prediction.ttft_s)
            if route.fetched is not None:
                chosen, nbytes = chosen + 1, route.fetched.nbytes
                seen["fetch"].append(route.fetched.seconds)
    finally:
        await model.close()
    medians = {f"{name}_s": round(statistics.median(values), 4) for name, values in seen.items() if values}
    return {"tokens": tokens, "prompts": prompts, "fetches": chosen, "bytes": nbytes, **medians}
