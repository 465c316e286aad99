"""Models are unloaded by hand or for being idle, never under a running request, and loaded again when asked for."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from tests.server.models.conftest import ONE_MODEL, TWO_MODELS, settings
from tests.server.models.test_registry import answered, opened, states
from tests.server.workers.conftest import SHORT, job_of, until, whole
from twofold.core.errors import ModelNotFoundError
from twofold.server.models.named_models import NamedModel


def test_an_idle_model_is_unloaded_at_once_and_loaded_by_the_next_request(offers: tuple[NamedModel, ...]) -> None:
    async def unload() -> None:
        async with opened(offers, settings(TWO_MODELS)) as hub:
            assert (await hub.load("second")).state == "ready"
            assert states(hub) == ["ready", "ready"]
            model = await hub.unload("alias")
            assert (model.names[0], model.state, model.idle_s) == ("first", "unloaded", None)
            assert states(hub) == ["unloaded", "ready"]
            assert (await hub.unload("first")).state == "unloaded"
            assert await answered(hub, "first")
            assert states(hub) == ["ready", "ready"]
            for ask in (hub.load, hub.unload):
                with pytest.raises(ModelNotFoundError):
                    await ask("thrid")

    asyncio.run(unload())


def test_a_model_in_use_is_unloaded_when_its_last_request_has_ended(offers: tuple[NamedModel, ...]) -> None:
    async def unload() -> None:
        async with opened(offers, settings(ONE_MODEL)) as hub:
            async with hub.lease("first") as model:
                first = await hub.unload("first")
                assert (first.state, first.idle_s) == ("ready", None)
                assert (await whole(model, job_of(1, SHORT), "r")).outputs[0].text
                assert await answered(hub, "first", "another")
                assert states(hub)[0] == "ready"
            assert states(hub)[0] == "unloaded"
            assert await answered(hub, "first")
            assert states(hub)[0] == "ready"

    asyncio.run(unload())


def test_a_model_that_is_idle_for_long_is_unloaded(offers: tuple[NamedModel, ...]) -> None:
    async def wait() -> None:
        async with opened(offers, replace(settings(TWO_MODELS), idle_unload_s=0.3)) as hub:
            async with hub.lease("first"):
                await hub.load("second")
                await until(lambda: states(hub) == ["ready", "unloaded"])
                assert hub.models[0].unloads_in_s is None
            left = hub.models[0].unloads_in_s
            assert left is not None
            assert 0 <= left <= 0.3
            await until(lambda: states(hub) == ["unloaded", "unloaded"])
            assert await answered(hub, "first")

    asyncio.run(wait())


def test_a_model_whose_requests_left_while_it_was_loading_is_unloaded(offers: tuple[NamedModel, ...]) -> None:
    async def leave() -> None:
        async with opened(offers, replace(settings(TWO_MODELS), idle_unload_s=0.1), start=False) as hub:
            requests = [asyncio.create_task(answered(hub, name)) for name in ("first", "second")]
            await until(lambda: states(hub) == ["loading", "loading"])
            for request in requests:
                request.cancel()
            await asyncio.gather(*requests, return_exceptions=True)
            assert (await hub.unload("second")).state == "loading"
            await until(lambda: states(hub) == ["unloaded", "unloaded"])
            assert all(model.kv_bytes for model in hub.models)  # both were loaded before
            assert await answered(hub, "second")

    asyncio.run(leave())


def test_who_asks_while_a_model_ends_waits_for_a_new_one(offers: tuple[NamedModel, ...]) -> None:
    async def race() -> None:
        async with opened(offers, settings(ONE_MODEL)) as hub:
            unloading = asyncio.create_task(hub.unload("first"))
            await asyncio.sleep(0)
            texts = await asyncio.gather(*(answered(hub, "first", f"r{i}") for i in range(3)))
            await unloading
            assert len(set(texts)) == 1
            assert states(hub)[0] == "ready"
            unloading = asyncio.create_task(hub.unload("first"))
            await asyncio.sleep(0)
            assert await answered(hub, "second")  # there is room for one: it waits for the other's end
            await unloading

    asyncio.run(race())


def test_the_last_user_says_how_long_a_model_stays(offers: tuple[NamedModel, ...]) -> None:
    async def keep() -> None:
        async with opened(offers, replace(settings(TWO_MODELS), idle_unload_s=1000)) as hub:
            for asked, left in ((None, 1000), (50, 50), (-1, None), (1e300, 1e7)):
                async with hub.lease("first", keep_s=asked):
                    pass
                assert hub.models[0].unloads_in_s == (None if left is None else pytest.approx(left, abs=20))
            async with hub.lease("first", keep_s=0):
                pass
            await until(lambda: states(hub)[0] == "unloaded")

    asyncio.run(keep())
