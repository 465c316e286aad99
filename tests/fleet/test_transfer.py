"""Blocks that one worker process fetches from another: their bits, their bytes, and what happens when a fetch fails."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from dataclasses import replace
from operator import mul
from typing import Any

import pytest

from tests.fleet.conftest import ENGINE, QUICK, named, until
from tests.support.tiny import TinyModel, TinyOptions
from twofold.backends.base import ModelRunner
from twofold.core.params import SamplingParams
from twofold.core.record import WaitReason
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.kv.names import BlockKeys
from twofold.engine.llm import LLM
from twofold.engine.loop import EngineThread
from twofold.engine.outputs import RequestOutput
from twofold.fleet.fleet import Fleet
from twofold.fleet.messages import BlockData, BlocksFetched, FromWorker, Ping, PrefetchBlocks, PullBlocks, SendBlocks
from twofold.fleet.reading import ModelReading, read_file
from twofold.fleet.relay import FIRST_RATE, FIXED_S, LinkRates
from twofold.fleet.replica import RestartPolicy
from twofold.fleet.routing.router import Choice, RoundRobin, RoutedReplica, RoutedRequest
from twofold.fleet.streams import RequestRoute
from twofold.fleet.transfer import BlockTransfers
from twofold.host.paths import CacheFolders

TOKENS = 200
BLOCK = 16
BLOCKS = TOKENS // BLOCK
WINDOWS = TinyOptions("gemma3", layers=6, head_dim=64, window=64)
"""The row after the blocks of a prompt reads 64 tokens in five of six layers: FIRST is the first of their blocks."""
FIRST = 8
SEEDED = SamplingParams(seed=5, temperature=1.0, max_tokens=12, ignore_eos=True, logprobs=3)
Change = Callable[[BlockData], BlockData]


class InTurn(RoundRobin):
    """Replicas in turn, which fetch whatever another one has."""

    def choose(self, request: RoutedRequest, replicas: Sequence[RoutedReplica]) -> Choice | None:
        choice = super().choose(request, replicas)
        if choice is None or request.fetch is None:
            return choice
        return choice._replace(fetch=request.fetch(choice.replica, request.matched()))


@asynccontextmanager
async def pair(reading: ModelReading, policy: RestartPolicy = QUICK, **options: Any) -> AsyncIterator[Fleet]:
    model = Fleet("tiny", reading, {**ENGINE, **options}, policy=policy, replicas=2, router=InTurn())
    await model.start()
    try:
        yield model
        await idle(model)
    finally:
        await model.close()


async def idle(model: Fleet) -> None:
    """No worker holds a block, and no transfer is under way."""
    model.requests.check_idle()

    def free() -> bool:
        for replica in model.replicas.values():
            replica.send(Ping())
        snapshots = [replica.snapshot for replica in model.replicas.values()]
        return not len(model.relay) and all(each is not None and not each.blocks.held for each in snapshots)

    await until(free)


async def run(model: Fleet, request: EngineRequest, request_id: str) -> tuple[RequestOutput, RequestRoute]:
    stream = model.run(named(request, request_id))
    output = [delta async for delta in stream][-1].request
    assert output is not None
    return output, stream.route


def prompt(salt: str = "", own: Sequence[int] = (), tokens: int = TOKENS) -> EngineRequest:
    """The first ``tokens`` of a text, and its ``own``."""
    ids = tuple((31 + i * i * 7) % 250 for i in range(tokens))
    return EngineRequest((*ids, *own), SEEDED, RequestOptions(cache_salt=salt))


def bits(output: RequestOutput) -> object:
    return [(each.token_ids, each.text, each.logprobs) for each in output.outputs]


@pytest.fixture(scope="session")
def sliding(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> ModelReading:
    return read_file(tiny_gguf(WINDOWS).path, CacheFolders.of().create())


def sizes(model: Fleet) -> list[int]:
    """Bytes of a block of each group."""
    return [group.block_bytes for group in model.ready.engine.groups]


@pytest.mark.parametrize("options", [TinyOptions(head_dim=64), WINDOWS], ids=["all", "windows"])
@pytest.mark.parametrize("kv", ["f16", "q8", "k8v4"])
def test_fetched_blocks_have_the_bits_of_computed_ones(
    tiny_gguf: Callable[[TinyOptions], TinyModel], kv: str, options: TinyOptions
) -> None:
    reading = read_file(tiny_gguf(options).path, CacheFolders.of().create())

    async def fetch() -> None:
        async with pair(reading, kv_cache_dtype=kv) as model:
            computed, first = await run(model, prompt(), "a")
            fetched, second = await run(model, prompt(), "b")
            assert first.choice is not None
            assert second.choice is not None
            assert (first.choice.replica, second.choice.replica) == (0, 1)
            assert first.fetched is None
            assert second.fetched is not None
            assert (second.fetched.source, second.fetched.blocks) == (0, BLOCKS)
            counts = (BLOCKS, BLOCKS - FIRST)
            assert second.fetched.nbytes == sum(map(mul, counts, sizes(model)))
            assert len(sizes(model)) == (1 if options.window is None else 2)
            assert fetched.metrics.cached_tokens == BLOCKS * BLOCK
            assert fetched.metrics.record.stalls[WaitReason.FETCHING] > 0
            assert WaitReason.FETCHING not in computed.metrics.record.stalls
            assert bits(fetched) == bits(computed)
            assert second.served(fetched).fetched == second.fetched
            for number in range(2):  # another tenant, on both replicas
                output, route = await run(model, prompt("another"), f"another{number}")
                assert (route.fetched is None) == (number == 0)
                assert output.metrics.cached_tokens == number * BLOCKS * BLOCK

    asyncio.run(fetch())


class CountedMemory:
    """A runner's blocks, and the bytes of each copy of them."""

    def __init__(self, runner: ModelRunner) -> None:
        self._runner = runner
        self.block_nbytes = runner.block_nbytes
        self.copied: list[tuple[str, int]] = []

    def read_blocks(self, group: int, blocks: Sequence[int], into: memoryview) -> None:
        self.copied.append(("read", into.nbytes))
        self._runner.read_blocks(group, blocks, into)

    def write_blocks(self, group: int, blocks: Sequence[int], content: memoryview) -> None:
        self.copied.append(("write", content.nbytes))
        self._runner.write_blocks(group, blocks, content)


def test_each_side_of_a_transfer_copies_a_block_once(reading: ModelReading) -> None:
    ends, ids, keys = list[BlockTransfers](), prompt().token_ids, BlockKeys(bytes(32), bytes(32))
    fetched: Future[BlocksFetched] = Future()

    def post(message: FromWorker) -> None:
        if isinstance(message, BlocksFetched):
            fetched.set_result(message)
        else:
            ends[not isinstance(message, PullBlocks)].handle(message)  # type: ignore[arg-type]

    with LLM(reading.path, **ENGINE) as source, LLM(reading.path, **ENGINE) as target:
        source.generate({"prompt_token_ids": list(ids)}, SamplingParams(max_tokens=1))
        memories = [CountedMemory(llm.loaded.runner) for llm in (source, target)]
        threads = [EngineThread(llm.engine, lambda: None) for llm in (source, target)]
        for thread, memory in zip(threads, memories, strict=True):
            ends.append(BlockTransfers(thread, keys, memory, post, lambda *_: None, lambda: None))
        ends[0].handle(SendBlocks(1, "", ids, BLOCKS))
        ends[1].handle(PrefetchBlocks(1, "", ids, BLOCKS))
        assert fetched.result(60).blocks == BLOCKS
        for end, thread in zip(ends, threads, strict=True):
            end.close()
            thread.close()
        size = memories[0].block_nbytes(0)
        assert [each.copied for each in memories] == [[(kind, size)] * BLOCKS for kind in ("read", "write")]


DAMAGE: tuple[Change, ...] = (
    lambda data: BlockData(data.number, data.place, data.digest, bytes(len(data.payload))),
    lambda data: BlockData(data.number, data.place, data.digest, data.payload[:-1]),
    lambda data: BlockData(data.number, data.place, bytes(32), data.payload),
    lambda data: BlockData(data.number, data.place + 1, data.digest, data.payload),
    lambda data: BlockData(data.number, data.place, b"", b""),
)


def test_a_damaged_block_is_computed(reading: ModelReading) -> None:
    async def fetch() -> None:
        async with pair(reading) as model:
            heard, changes = model.on_message, iter(DAMAGE)

            def hear(replica: Any, message: Any) -> None:
                if isinstance(message, BlockData) and message.place == 5:
                    message = next(changes)(message)
                heard(replica, message)

            model.on_message = hear  # type: ignore[method-assign]
            for number in range(len(DAMAGE)):
                computed, _ = await run(model, prompt(str(number)), f"a{number}")
                output, _ = await run(model, prompt(str(number)), f"b{number}")
                assert output.metrics.cached_tokens == 5 * BLOCK
                assert bits(output) == bits(computed)
            assert not list(changes)

    asyncio.run(fetch())


def test_of_a_window_only_those_blocks_are_fetched_that_are_read_and_absent(sliding: ModelReading) -> None:
    async def fetch() -> None:
        async with pair(sliding) as model:
            assert len(sizes(model)) == 2
            base = prompt()
            cases = [  # a prompt, and the blocks of each group that replica 1 fetches of it
                (base, 12, 12 - FIRST),
                (prompt(own=range(64)), 4, 4),  # 16 blocks: its row reads four
                (prompt(tokens=96, own=[7] * 20), 7, 7),  # the row after block 7 reads all, which replica 1 never had
                (prompt(tokens=168, own=[9] * 40), 2, 2),  # it has blocks 8 and 9 of those that the row reads
            ]
            for number, (request, *counts) in enumerate(cases):
                computed, _ = await run(model, request, f"a{number}")
                output, route = await run(model, request, f"b{number}")
                assert bits(output) == bits(computed)
                assert output.metrics.cached_tokens == (len(request.token_ids) - 1) // BLOCK * BLOCK
                assert route.fetched is not None
                assert (route.fetched.blocks, route.fetched.nbytes) == (
                    counts[0],
                    sum(map(mul, counts, sizes(model))),
                ), number

    asyncio.run(fetch())


@pytest.mark.parametrize("place", [3, 10])
def test_a_window_without_its_last_blocks_is_computed(sliding: ModelReading, place: int) -> None:
    async def fetch() -> None:
        async with pair(sliding) as model:
            computed, _ = await run(model, prompt(), "a")
            heard = model.on_message

            def hear(replica: Any, message: Any) -> None:
                if isinstance(message, BlockData) and message.place == place:
                    message = DAMAGE[0](message)
                heard(replica, message)

            model.on_message = hear  # type: ignore[method-assign]
            output, route = await run(model, prompt(), "b")
            assert route.fetched is not None
            assert route.fetched.blocks == place
            assert output.metrics.cached_tokens == 0
            assert bits(output) == bits(computed)

    asyncio.run(fetch())


@pytest.mark.parametrize(("place", "end"), [(0, signal.SIGKILL), (6, signal.SIGKILL), (6, signal.SIGSTOP)])
def test_a_source_that_ends_leaves_the_rest_to_be_computed(reading: ModelReading, place: int, end: int) -> None:
    async def fetch() -> None:
        policy = replace(QUICK, silent_s=1.5) if end == signal.SIGSTOP else QUICK
        async with pair(reading, policy) as model:
            computed, _ = await run(model, prompt(), "a")
            heard, source = model.on_message, model.replicas[0].pid
            assert source is not None

            def hear(replica: Any, message: Any) -> None:
                if isinstance(message, BlockData) and message.place >= place:
                    if message.place == place:
                        os.kill(source, end)
                    return
                heard(replica, message)

            model.on_message = hear  # type: ignore[method-assign]
            output, route = await run(model, prompt(), "b")
            assert route.retries == 0
            assert output.metrics.cached_tokens == place * BLOCK
            assert bits(output) == bits(computed)
            if end == signal.SIGSTOP:
                os.kill(source, signal.SIGCONT)
            await until(lambda: all(each.state == "ready" for each in model.replicas.values()))

    asyncio.run(fetch())


def test_an_aborted_request_leaves_its_blocks_in_the_cache(reading: ModelReading) -> None:
    async def fetch() -> None:
        async with pair(reading) as model:
            await run(model, prompt(), "a")
            heard = model.on_message
            began, rest = asyncio.Event(), list[tuple[Any, Any]]()

            def hear(replica: Any, message: Any) -> None:
                if isinstance(message, BlockData):
                    began.set()
                    rest.append((replica, message))
                else:
                    heard(replica, message)

            model.on_message = hear  # type: ignore[method-assign]
            asked = asyncio.create_task(run(model, prompt(), "b"))
            await began.wait()
            asked.cancel()
            await asyncio.wait([asked])
            model.on_message = heard  # type: ignore[method-assign]
            for each in rest:
                heard(*each)
            await until(lambda: not len(model.relay))
            await run(model, prompt(), "c")
            again, _ = await run(model, prompt(), "d")
            assert again.metrics.cached_tokens == BLOCKS * BLOCK

    asyncio.run(fetch())


def test_a_source_without_the_blocks_any_more_says_so(reading: ModelReading) -> None:
    async def fetch() -> None:
        async with pair(reading) as model:
            computed, _ = await run(model, prompt(), "a")
            send = model.replicas[0].send

            def shorten(message: Any) -> None:
                ids = getattr(message, "token_ids", None)
                if ids is not None and hasattr(message, "salt"):
                    message.token_ids = (*ids[:48], *(1 for _ in ids[48:]))
                send(message)

            model.replicas[0].send = shorten  # type: ignore[method-assign]
            output, route = await run(model, prompt(), "b")
            assert route.fetched is not None
            assert route.fetched.blocks == 3
            assert bits(output) == bits(computed)

    asyncio.run(fetch())


def test_rates_are_learned_for_each_pair_and_forgotten_with_a_replica() -> None:
    rates = LinkRates()
    assert rates.seconds(0, 1, 10**6) == pytest.approx(FIXED_S + 10**6 / FIRST_RATE)
    rates.learn(0, 1, 10**6, 0.1)
    assert rates.seconds(0, 1, 10**6) == pytest.approx(FIXED_S + 0.1)
    assert rates.seconds(1, 0, 10**6) == pytest.approx(FIXED_S + 10**6 / FIRST_RATE)
    rates.learn(0, 1, 10**6, 0.01)
    assert FIXED_S + 0.01 < rates.seconds(0, 1, 10**6) < FIXED_S + 0.1
    rates.forget(1)
    assert rates.seconds(0, 1, 10**6) == pytest.approx(FIXED_S + 10**6 / FIRST_RATE)
