"""Clocks that differ between machines, and clocks that jump: nothing of a request depends on them."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import time
from contextlib import AsyncExitStack, ExitStack
from itertools import count
from pathlib import Path
from typing import Any, Final

import pytest

from tests.fleet.conftest import ENGINE, LONG, job_of, until, whole
from tests.fleet.nodes import live_node
from tests.fleet.test_nodes import hub
from twofold.core.request import RequestOptions
from twofold.engine.llm import LLM
from twofold.fleet.reading import ModelReading

AHEAD_S: Final = (1_000_000, -60)
"""How far the clock of each node is ahead of the hub's, as after starts at other times."""
OPTIONS: Final = RequestOptions(deadline_s=120, queue_limit_s=60)
"""An age that is wrong by the offset of a clock ends a request."""


def _clock(ahead_s: int) -> list[str]:
    """The command that runs another one with a monotonic clock that is ahead, and passes SIGTERM on."""
    run = 'trap "kill \\$!" TERM; "$@" & wait; wait'
    return ["unshare", "--time", "--monotonic", str(ahead_s), "sh", "-c", run, "sh"]


def test_clocks_that_differ_and_jump_change_nothing(
    reading: ModelReading, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests move between nodes whose monotonic clocks differ, while the hub's wall clock jumps by days. The nodes
    then disagree about each age unless ages travel instead of times."""
    if shutil.which("unshare") is None:
        pytest.skip("the command unshare is missing")
    tried = subprocess.run([*_clock(AHEAD_S[0]), "true"], capture_output=True, check=False)
    if tried.returncode:
        pytest.skip(f"no time namespace can be made: {tried.stderr.decode().strip()}")
    days, now = count(), time.time
    monkeypatch.setattr(time, "time", lambda: now() + 86_400 * (next(days) % 7 - 3))

    async def serve() -> list[Any]:
        async with hub(reading, None) as (model, port), AsyncExitStack() as stack:
            for number, ahead_s in enumerate(AHEAD_S):
                join = (f"tiny={reading.path}", "--join", f"127.0.0.1:{port}", "--threads", "1")
                node = ExitStack()
                node.enter_context(live_node(tmp_path / f"{number}.log", *join, prefix=_clock(ahead_s)))
                stack.push_async_callback(asyncio.to_thread, node.close)  # it asks the hub to let it leave
            await model.start()
            await until(lambda: sum(each.usable for each in model.replicas.values()) == len(AHEAD_S))
            jobs = [asyncio.create_task(whole(model, job_of(n, LONG, OPTIONS), f"job-{n}")) for n in range(4)]
            await until(lambda: len(model.requests.streams) == len(jobs))
            await until(lambda: min(each.delivered.tokens for each in model.requests.streams.values()) > 5)
            gone = next(each for each in model.replicas.values() if each.requests)
            assert gone.node is not None
            gone.node.kill()
            return await asyncio.gather(*jobs)

    began = time.monotonic()
    outputs = asyncio.run(serve())
    with LLM(reading.path, **ENGINE) as llm:
        for number, output in enumerate(outputs):
            alone = llm.generate([{"prompt_token_ids": list(job_of(number).token_ids)}], LONG)[0]
            assert output.outputs == alone.outputs
    for output in outputs:
        found = output.metrics
        times = [found.arrival, found.first_scheduled, found.first_token, *found.token_times[0], found.finished]
        assert began <= times[0]
        assert times[-1] <= time.monotonic()
        assert 0 <= found.queue_s < 60
