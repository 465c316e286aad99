"""Long work of one request runs outside of the event loop, and in turn with the work of others."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.server.conftest import TINY
from tests.server.live import live_server
from tests.server.trust.client import CHAT, Client, chat
from tests.support.tiny import TinyModel, TinyOptions
from twofold.api.body import encode
from twofold.api.openai.replies import PromptUsage
from twofold.api.openai.vectors import EmbeddingReply, EmbeddingVector
from twofold.core.params import RequestParams, SamplingParams
from twofold.core.request import EngineRequest, PoolingParams, RequestOptions
from twofold.engine.outputs import RequestOutput
from twofold.server.http.endpoints import json_bytes
from twofold.server.pool import WorkPool
from twofold.server.runner import STARTED_AT_ONCE, GenerationRun, RequestRunner

READ = PoolingParams()
HOSTILE = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"


@pytest.fixture(scope="module")
def url(tiny: TinyModel, tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: Any) -> Iterator[str]:
    hostile = tiny_gguf(replace(TINY, chat_template=HOSTILE)).path
    folder: Path = tmp_path_factory.mktemp("turns")
    with live_server(folder, f"tiny={tiny.path}", f"hostile={hostile}", "--threads", "1") as server:
        yield server.url


def test_a_hostile_template_delays_no_other_model(url: str) -> None:
    """A quick request ends before earlier hostile renderings, which run one at a time."""
    client = Client(url)

    async def ask() -> None:
        await client.ask("POST", CHAT, chat() | {"model": "hostile"})
        attack = [asyncio.create_task(client.ask("POST", CHAT, chat() | {"model": "hostile"})) for _ in range(7)]
        await asyncio.sleep(0.1)
        for number in range(3):
            assert (await client.chat("hi", max_tokens=1)).status == 200
            assert sum(task.done() for task in attack) <= 2 * (number + 1)
        replies = await asyncio.gather(*attack)
        assert {reply.status for reply in replies} == {400}
        assert {b"The chat template was stopped" in reply.body for reply in replies} == {True}
        again = await client.ask("POST", CHAT, chat() | {"model": "hostile"})
        assert b"The chat template was stopped" in again.body

    asyncio.run(ask())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"model": "tiny", "prompt": ["a"] * 2048, "max_tokens": 1}),
        ("/v1/embeddings", {"model": "tiny", "input": ["a"] * 2048}),
        ("/rerank", {"model": "tiny", "query": "a", "documents": [f"b{n}" for n in range(1000)]}),
    ],
    ids=["completions", "embeddings", "rerank"],
)
def test_others_are_answered_during_a_request_of_many_prompts(url: str, path: str, body: dict[str, Any]) -> None:
    client = Client(url)

    async def ask() -> None:
        many = asyncio.create_task(client.ask("POST", path, body))
        await asyncio.sleep(0)
        health = [await client.get("/health") for _ in range(5)]
        assert not many.done()
        assert [reply.status for reply in (await many, *health)] == [200] * 6

    asyncio.run(ask())


PORTION = 128


def many_jobs(run: Callable[..., AsyncIterator[Any]], params: RequestParams = READ) -> GenerationRun:
    """A request of 500 prompts to a model that runs each by ``run``."""
    context: Any = SimpleNamespace(record=SimpleNamespace(request_id="r"), last_delta=None, delta_sent=int)
    jobs = [EngineRequest((1,), params, RequestOptions(deadline_s=600.0, queue_limit_s=60.0))] * 500
    model: Any = SimpleNamespace(name="m", facts=None, run=run, portion=PORTION)
    request: Any = SimpleNamespace(model="m", stream=False)
    made = GenerationRun(context, request)
    made.model, made.jobs, made.numbers = model, jobs, count()
    return made


async def outputs_of(run: GenerationRun) -> Sequence[RequestOutput]:
    async for _ in run.deltas():
        pass
    return run.outputs


def test_jobs_of_one_request_start_a_few_in_a_turn() -> None:
    """Between two turns of the event loop no more of them start than ``STARTED_AT_ONCE``."""
    output = SimpleNamespace(embedding=(0.0,), metrics=SimpleNamespace(open_ended=False))
    started, turns = [0], [0]

    async def one(*_: object) -> AsyncIterator[Any]:
        started[0] += 1
        yield SimpleNamespace(request=output, open_ended=False)

    def turn() -> None:
        turns.append(started[0])
        asyncio.get_running_loop().call_soon(turn)

    async def run() -> None:
        turn()
        assert len(await outputs_of(many_jobs(one))) == 500

    asyncio.run(run())
    assert max(after - before for before, after in pairwise(turns)) <= STARTED_AT_ONCE


@pytest.mark.parametrize("n", [1, 3, 16])
def test_a_request_of_many_prompts_gives_engines_a_portion_at_a_time(n: int) -> None:
    """Further ones follow as these end. Only the first has the queue's limit, and all have the request's deadline."""
    output = SimpleNamespace(embedding=(0.0,), metrics=SimpleNamespace(open_ended=False))
    opened, most, limits = set[int](), [0], list[tuple[float | None, float]]()
    portion = max(1, PORTION // n)

    async def one(request: EngineRequest, _: object) -> AsyncIterator[Any]:
        limits.append((request.options.queue_limit_s, request.options.deadline_s or 0.0))
        number = len(limits)
        opened.add(number)
        most[0] = max(most[0], len(opened))
        while len(opened) < portion and len(limits) < 500:  # none ends before all have begun
            await asyncio.sleep(0)
        yield SimpleNamespace(request=output, open_ended=False)
        opened.discard(number)

    run = many_jobs(one, SamplingParams(n=n))
    run._began -= 100.0
    assert len(asyncio.run(outputs_of(run))) == 500
    assert most[0] == portion
    assert limits[0] == (60.0, 600.0)
    assert {limit for limit, _ in limits[1:]} == {None}
    assert all(400.0 < deadline <= 500.0 for _, deadline in limits[1:])


def test_an_internal_error_of_one_job_ends_its_request() -> None:
    async def one(*_: object) -> AsyncIterator[Any]:
        raise RuntimeError("unexpected")
        yield

    with pytest.raises(RuntimeError, match="unexpected"):
        asyncio.run(asyncio.wait_for(outputs_of(many_jobs(one)), 20.0))


@pytest.mark.parametrize("count", [0, 1, 16, 17, 100])
def test_lists_in_json_are_written_as_one(count: int) -> None:
    vectors = [EmbeddingVector(index=index, embedding=[0.1, index]) for index in range(count)]
    body = EmbeddingReply(data=vectors, model="é", usage=PromptUsage(count, count))
    assert json_bytes(body) == encode(body)
    body.twofold = {"id": "x", "prompts": []}
    assert json_bytes(body) == encode(body)


def test_long_replies_are_made_on_a_thread() -> None:
    """Short replies are not, unless the chat template must be rendered to find out how the model thinks."""
    for size, switch, beside in ((1 << 20, None, True), (10, None, False), (10, "enable_thinking", True)):
        assert asyncio.run(_thread_of(size, switch)) is beside


EMBEDDING = SimpleNamespace(embedding=(0.5,) * 576, prompt_logprobs=None, outputs=[])
COMPLETION = SimpleNamespace(token_ids=(1, 2), text="ab", logprobs=None)


@pytest.mark.parametrize(
    "output",
    [EMBEDDING, SimpleNamespace(embedding=None, prompt_logprobs=None, outputs=[COMPLETION])],
    ids=["embeddings", "completions"],
)
def test_replies_of_many_jobs_are_made_on_another_thread(output: SimpleNamespace) -> None:
    """Replies of one job are made on the event loop."""

    async def thread(jobs: int) -> int:
        pool = WorkPool()
        unused: Any = None
        run: Any = SimpleNamespace(
            model=SimpleNamespace(name="m", facts=SimpleNamespace(format=SimpleNamespace(thinking=None))),
            head=None,
            outputs=[output] * jobs,
            context=SimpleNamespace(source="a"),
            request=SimpleNamespace(reply=lambda *_: threading.get_ident()),
        )
        try:
            thread: Any = await RequestRunner(unused, unused, unused, pool).body(run)
            return int(thread)
        finally:
            pool.close()

    assert asyncio.run(thread(1)) == threading.get_ident()
    assert asyncio.run(thread(2048)) != threading.get_ident()


async def _thread_of(size: int, switch: str | None) -> bool:
    """Whether work on a reply runs on another thread."""
    pool = WorkPool()
    unused: Any = None
    thinking = SimpleNamespace(switch=switch)
    run: Any = SimpleNamespace(
        model=SimpleNamespace(name="m", facts=SimpleNamespace(format=SimpleNamespace(thinking=thinking))),
        context=SimpleNamespace(source="a"),
    )
    try:
        thread = await RequestRunner(unused, unused, unused, pool).work_on_reply(run, size, threading.get_ident)
    finally:
        pool.close()
    return thread != threading.get_ident()
