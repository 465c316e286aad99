"""Requests that one replica prefills and another one continues: their bits, their blocks, and when they stay."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from operator import mul
from typing import Any

import pytest

from tests.fleet.conftest import ENGINE, QUICK, named, until
from tests.fleet.test_transfer import bits, idle
from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.outputs import RequestOutput
from twofold.fleet import handover
from twofold.fleet.fleet import Fleet
from twofold.fleet.messages import BlockData
from twofold.fleet.reading import ModelReading, read_file
from twofold.fleet.routing.router import Role
from twofold.fleet.streams import RequestRoute
from twofold.host.paths import CacheFolders

TOKENS = 200
LONG = 1500
CHUNK = {"max_num_batched_tokens": 16, "kv_cache_memory_bytes": 1 << 25}
BLOCK = 16
PARAMS = SamplingParams(seed=5, temperature=1.0, max_tokens=300, ignore_eos=True, logprobs=3, presence_penalty=0.4)


@asynccontextmanager
async def fleet(reading: ModelReading, *roles: Role, **options: Any) -> AsyncIterator[Fleet]:
    model = Fleet("tiny", reading, {**ENGINE, **options}, policy=QUICK, replicas=len(roles), roles=roles)
    await model.start()
    try:
        yield model
        await idle(model)
    finally:
        await model.close()


def prompt(
    number: int = 0, params: SamplingParams = PARAMS, *, stream: bool = True, tokens: int = TOKENS
) -> EngineRequest:
    ids = tuple((31 + number + i * i * 7) % 250 for i in range(tokens))
    return EngineRequest(ids, params, RequestOptions(), stream=stream)


async def run(model: Fleet, request: EngineRequest, name: str) -> tuple[RequestOutput, RequestRoute]:
    stream = model.run(named(request, name))
    deltas = [delta async for delta in stream]
    output = deltas[-1].request
    assert output is not None
    if request.stream:
        for each in output.outputs:
            delivered = [token for delta in deltas if delta.index == each.index for token in delta.token_ids]
            assert tuple(delivered) == each.token_ids
    return output, stream.route


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every move gains."""
    monkeypatch.setattr(handover, "MIN_GAIN", -1e9)


@pytest.fixture(scope="session")
def roomy(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> ModelReading:
    """A model whose context has room for LONG prompts, and whose steps take so long that blocks arrive between them."""
    return read_file(tiny_gguf(TinyOptions(context=2048, layers=16)).path, CacheFolders.of().create())


@pytest.fixture(scope="session")
def sliding(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> ModelReading:
    """Such a model whose layers have windows, except for two. The row after the whole blocks of a LONG prompt reads
    blocks 76 … 92 of them."""
    options = TinyOptions("gemma3", context=2048, layers=12, window=256)
    return read_file(tiny_gguf(options).path, CacheFolders.of().create())


@pytest.fixture(params=["all", "windows"])
def long(request: pytest.FixtureRequest) -> ModelReading:
    """Both of them."""
    found: ModelReading = request.getfixturevalue("roomy" if request.param == "all" else "sliding")
    return found


@pytest.fixture
def often(always: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001 - it is used
    """Every move gains, and is considered after each step."""
    monkeypatch.setattr(handover, "REVIEW_S", 0.0)


def long_prompt(number: int = 0) -> EngineRequest:
    return prompt(number, tokens=LONG)


def watch_blocks(model: Fleet, call: Callable[[int], object]) -> None:
    """Calls with the place of each block that arrives at the hub, before it is relayed."""
    heard = model.on_message

    def hear(replica: Any, message: Any) -> None:
        if isinstance(message, BlockData):
            call(message.place)
        heard(replica, message)

    model.on_message = hear  # type: ignore[method-assign]


CASES = {
    "stream": prompt(),
    "whole": prompt(1, stream=False),
    "several": prompt(2, replace(PARAMS, n=3)),
    "greedy": prompt(3, replace(PARAMS, temperature=0.0, repetition_penalty=1.2)),
}


@pytest.mark.usefixtures("always")
def test_a_request_continues_at_a_replica_that_decodes_with_the_same_bits(reading: ModelReading) -> None:
    async def part() -> None:
        async with fleet(reading, "both") as alone:
            plain = {name: (await run(alone, request, name))[0] for name, request in CASES.items()}
        async with fleet(reading, "prefill", "decode") as model:
            size = model.ready.engine.groups[0].block_bytes
            for name, request in CASES.items():
                output, route = await run(model, request, name)
                assert bits(output) == bits(plain[name]), name
                assert route.choice is not None
                assert route.choice.replica == 0
                assert route.retries == 0
                moved = route.handover
                if moved is None:  # its tokens are reported four times a second
                    assert name == "whole"
                    continue
                assert moved.replica == 1
                assert moved.nbytes == TOKENS // BLOCK * size
                assert 0 < moved.tokens < output.metrics.output_tokens
                assert route.served(output).handover == moved
            both = await asyncio.gather(*(run(model, prompt(10 + i), f"many{i}") for i in range(6)))
            assert sum(route.handover is not None and route.handover.replica == 1 for _, route in both) >= 4

    asyncio.run(part())


def test_a_request_stays_where_moving_gains_nothing(reading: ModelReading) -> None:
    async def part() -> None:
        async with fleet(reading, "prefill", "decode") as model:
            for number in range(3):
                _, route = await run(model, prompt(number), f"{number}")
            assert route.handover is not None
            assert route.handover.replica is None
            assert route.handover.nbytes == 0

    asyncio.run(part())


@pytest.mark.usefixtures("often")
def test_no_block_moves_where_moving_gains_too_little(roomy: ModelReading, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "MIN_GAIN", 1e9)

    async def part() -> None:
        async with fleet(roomy, "prefill", "decode", **CHUNK) as model:
            places = list[int]()
            watch_blocks(model, places.append)
            _, route = await run(model, long_prompt(), "a")
            assert route.handover is not None
            assert (route.handover.replica, route.handover.nbytes, places) == (None, 0, [])

    asyncio.run(part())


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("number", [0, 1])
def test_a_transfer_that_breaks_leaves_the_request_where_it_is(reading: ModelReading, number: int) -> None:
    async def part() -> None:
        async with fleet(reading, "both") as alone:
            plain, _ = await run(alone, prompt(), "a")
        async with fleet(reading, "prefill", "decode") as model:
            pid = model.replicas[number].pid
            assert pid is not None
            watch_blocks(model, lambda place: os.kill(pid, signal.SIGKILL) if place == 5 else None)
            output, _ = await run(model, prompt(), "a")
            assert bits(output) == bits(plain)
            await until(lambda: all(each.state == "ready" for each in model.replicas.values()))

    asyncio.run(part())


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("targets", [1, 2])
def test_blocks_arrive_while_the_prompt_is_computed(long: ModelReading, targets: int) -> None:
    async def part() -> None:
        async with fleet(long, "both", **CHUNK) as alone:
            plain = [(await run(alone, long_prompt(number), f"{number}"))[0] for number in range(3)]
        decode: Sequence[Role] = ["decode"] * targets
        async with fleet(long, "prefill", *decode, **CHUNK) as model:
            sizes = [group.block_bytes for group in model.ready.engine.groups]
            places, shares = list[int](), list[float]()
            watch_blocks(model, places.append)
            for number, expected in enumerate(plain):
                places.clear()
                output, route = await run(model, long_prompt(number), f"{number}")
                assert bits(output) == bits(expected)
                moved = route.handover
                assert moved is not None
                assert moved.replica in range(1, targets + 1)
                assert places == list(range(LONG // BLOCK)), "each block is transferred once"
                assert moved.nbytes == sum(map(mul, (93, 93 - 76), sizes))
                shares.append(moved.early / moved.nbytes)
            assert 0.5 < max(shares) <= 1.0, "on a busy machine the hub may hear of all steps at once"

    asyncio.run(part())


@pytest.mark.usefixtures("often")
def test_a_request_that_ends_during_its_prompt_holds_nothing(roomy: ModelReading) -> None:
    async def part() -> None:
        async with fleet(roomy, "prefill", "decode", **CHUNK) as model:
            began = asyncio.Event()
            watch_blocks(model, lambda place: began.set() if place == 9 else None)
            asked = asyncio.create_task(run(model, long_prompt(), "a"))
            await began.wait()
            asked.cancel()
            await asyncio.wait([asked])
            await until(lambda: not model.requests.leaving)
            await idle(model)
            first, route = await run(model, long_prompt(), "b")
            assert first.metrics.cached_tokens >= 9 * BLOCK
            assert route.handover is not None
            assert route.handover.nbytes < LONG // BLOCK * model.ready.engine.groups[0].block_bytes

    asyncio.run(part())


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize("number", [0, 1])
def test_a_replica_that_ends_during_a_prompt_changes_no_bits(long: ModelReading, number: int) -> None:
    async def part() -> None:
        async with fleet(long, "both", **CHUNK) as alone:
            plain, _ = await run(alone, long_prompt(), "a")
        async with fleet(long, "prefill", "decode", **CHUNK) as model:
            pid, ends = model.replicas[number].pid, list[bool]()
            assert pid is not None

            def end(place: int) -> None:
                if place == 20 and not ends:
                    ends.append(True)
                    os.kill(pid, signal.SIGKILL)

            watch_blocks(model, end)
            output, route = await run(model, long_prompt(), "a")
            assert bits(output) == bits(plain)
            assert ends, "block 20 arrived"
            assert route.retries == (number == 0)
            await until(lambda: all(each.state == "ready" for each in model.replicas.values()))

    asyncio.run(part())


def test_prompts_go_to_replicas_that_decode_only_while_no_other_is_usable(reading: ModelReading) -> None:
    async def part() -> None:
        async with fleet(reading, "prefill", "decode") as model:
            first = [await run(model, prompt(number), f"{number}") for number in range(3)]
            assert {route.choice.replica for _, route in first if route.choice} == {0}
            await model.lifecycle.drain(0)
            _, route = await run(model, prompt(9), "later")
            assert route.choice is not None
            assert route.choice.replica == 1

    asyncio.run(part())


@pytest.mark.parametrize(("roles", "moves"), [(("both", "both"), False), (("both", "decode"), True)])
@pytest.mark.usefixtures("always")
def test_replicas_without_a_role_keep_their_requests(reading: ModelReading, roles: Sequence[Role], moves: bool) -> None:
    async def part() -> None:
        async with fleet(reading, *roles) as model:
            _, route = await run(model, prompt(), "a")
            assert (route.handover is not None) == moves

    asyncio.run(part())
