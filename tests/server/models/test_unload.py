"""Models are unloaded by request or when idle, never during a request, and loaded again on demand."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.fleet.conftest import SHORT, job_of, until, whole
from tests.server.models.conftest import ONE_MODEL, TWO_MODELS, settings
from tests.server.models.test_registry import answered, opened, states
from twofold.core.errors import ModelNotFoundError
from twofold.server.models.named_models import NamedModel


def test_an_idle_model_is_unloaded_at_once_and_loaded_by_the_next_request(offers: tuple[NamedModel, ...]) -> None:
    async def unload() -> None:
        async with opened(offers, settings(TWO_MODELS)) as registry:
            assert (await registry.load("second")).state == "ready"
            assert states(registry) == ["ready", "ready"]
            model = await registry.unload("alias")
            assert (model.names[0], model.state, model.idle_s) == ("first", "unloaded", None)
            assert states(registry) == ["unloaded", "ready"]
            assert (await registry.unload("first")).state == "unloaded"
            assert await answered(registry, "first")
            assert states(registry) == ["ready", "ready"]
            for ask in (registry.load, registry.unload):
                with pytest.raises(ModelNotFoundError):
                    await ask("thrid")

    asyncio.run(unload())


def test_a_model_in_use_is_unloaded_when_its_last_request_has_ended(offers: tuple[NamedModel, ...]) -> None:
    async def unload() -> None:
        async with opened(offers, settings(ONE_MODEL)) as registry:
            async with registry.lease("first") as model:
                first = await registry.unload("first")
                assert (first.state, first.idle_s) == ("ready", None)
                assert (await whole(model, job_of(1, SHORT), "r")).outputs[0].text
                assert await answered(registry, "first", "another")
                assert states(registry)[0] == "ready"
            assert states(registry)[0] == "unloaded"
            assert await answered(registry, "first")
            assert states(registry)[0] == "ready"

    asyncio.run(unload())


def test_a_model_that_is_idle_for_long_is_unloaded(offers: tuple[NamedModel, ...]) -> None:
    async def wait() -> None:
        async with opened(offers, replace(settings(TWO_MODELS), idle_unload_s=0.3)) as registry:
            async with registry.lease("first"):
                await registry.load("second")
                await until(lambda: states(registry) == ["ready", "unloaded"])
                assert registry.models[0].unloads_in_s is None
            left = registry.models[0].unloads_in_s
            assert left is not None
            assert 0 <= left <= 0.3
            await until(lambda: states(registry) == ["unloaded", "unloaded"])
            assert await answered(registry, "first")

    asyncio.run(wait())


def test_a_model_whose_requests_left_while_it_was_loading_is_unloaded(offers: tuple[NamedModel, ...]) -> None:
    async def leave() -> None:
        async with opened(offers, replace(settings(TWO_MODELS), idle_unload_s=0.1), start=False) as registry:
            requests = [asyncio.create_task(answered(registry, name)) for name in ("first", "second")]
            await until(lambda: all(model.holds for model in registry.models))
            assert states(registry) == ["loading", "loading"]
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)
            assert (await registry.unload("second")).state == "loading"
            await until(lambda: states(registry) == ["unloaded", "unloaded"], 30)
            assert all(model.kv_bytes for model in registry.models)  # both were loaded before
            assert await answered(registry, "second")

    asyncio.run(leave())


def test_requests_during_an_unload_wait_for_the_next_load(offers: tuple[NamedModel, ...]) -> None:
    async def race() -> None:
        async with opened(offers, settings(ONE_MODEL)) as registry:
            unloading = asyncio.create_task(registry.unload("first"))
            await asyncio.sleep(0)
            texts = await asyncio.gather(*(answered(registry, "first", f"r{i}") for i in range(3)))
            await unloading
            assert len(set(texts)) == 1
            assert states(registry)[0] == "ready"
            unloading = asyncio.create_task(registry.unload("first"))
            await asyncio.sleep(0)
            assert await answered(registry, "second")  # there is room for one: it waits for the other's end
            await unloading

    asyncio.run(race())


def test_the_last_request_sets_how_long_a_model_stays_loaded(offers: tuple[NamedModel, ...]) -> None:
    async def keep() -> None:
        async with opened(offers, replace(settings(TWO_MODELS), idle_unload_s=1000)) as registry:
            for asked, left in ((None, 1000), (50, 50), (-1, None), (1e300, 1e7)):
                async with registry.lease("first", keep_s=asked):
                    pass
                assert registry.models[0].unloads_in_s == (None if left is None else pytest.approx(left, abs=20))
            async with registry.lease("first", keep_s=0):
                pass
            await until(lambda: states(registry)[0] == "unloaded")

    asyncio.run(keep())
