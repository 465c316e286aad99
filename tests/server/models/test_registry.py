"""Several models in one server: loaded on demand, together or in turn, and again after a failure."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fleet.conftest import SHORT, Listener, job_of, until, whole
from tests.server.models.conftest import ONE_MODEL, TWO_MODELS, settings
from twofold.core.errors import BusyError, FormatError, ModelNotFoundError, ResourceError, WorkerError
from twofold.core.request import RequestOptions
from twofold.server.models import registry as registry_module
from twofold.server.models.named_models import NamedModel, read_named_models
from twofold.server.models.registry import ModelRegistry, RegistrySettings


@asynccontextmanager
async def opened(
    offers: Sequence[NamedModel], chosen: RegistrySettings, observers: Sequence[Listener] = (), *, start: bool = True
) -> AsyncIterator[ModelRegistry]:
    registry = ModelRegistry(offers, chosen, observers)
    try:
        if start:
            await registry.start()
        yield registry
    finally:
        await registry.close()


def states(registry: ModelRegistry) -> list[str]:
    return [model.state for model in registry.models]


async def answered(registry: ModelRegistry, name: str | None, request_id: str = "r", tenant: str = "") -> str:
    async with registry.lease(name, RequestOptions(tenant=tenant)) as model:
        return (await whole(model, job_of(1, SHORT), request_id)).outputs[0].text


def test_models_take_turns_where_memory_holds_one(offers: tuple[NamedModel, ...]) -> None:
    async def take_turns() -> None:
        async with opened(offers, settings(ONE_MODEL)) as registry:
            assert states(registry) == ["ready", "unloaded"]
            first, second = registry.models
            assert first.names == ("first", "alias")
            assert (first.context, second.context) == (512, None)
            assert second.created > 0
            assert second.bytes < 1 << 20 < first.bytes <= ONE_MODEL
            async with registry.lease("alias") as model:
                assert model.name == "first"
                with pytest.raises(BusyError, match="waited for memory") as caught:
                    async with registry.lease("second", RequestOptions(queue_limit_s=0.3)):
                        pass
                assert caught.value.retry_after_s >= 1
            assert await answered(registry, "second") != await answered(registry, "first")
            assert states(registry) == ["ready", "unloaded"]

    asyncio.run(take_turns())


def test_requests_for_a_loading_model_wait_for_the_same_load(offers: tuple[NamedModel, ...]) -> None:
    listener = Listener()

    async def crowd() -> list[str]:
        async with opened(offers, settings(TWO_MODELS), [listener], start=False) as registry:
            asked = [
                asyncio.create_task(answered(registry, n, f"r{i}")) for i, n in enumerate([None, "alias", "second"] * 3)
            ]
            await until(lambda: states(registry) == ["loading", "loading"])
            asked.pop(0).cancel()
            texts = await asyncio.gather(*asked)
            assert states(registry) == ["ready", "ready"]
            return texts

    texts = asyncio.run(crowd())
    assert len(set(texts)) == 2
    assert listener.steps


def test_an_unknown_name_is_an_error_or_the_first_model(offers: tuple[NamedModel, ...]) -> None:
    async def ask() -> None:
        async with opened(offers, settings(ONE_MODEL), start=False) as registry:
            with pytest.raises(ModelNotFoundError) as caught:
                await answered(registry, "secnd")
            assert caught.value.hint == "Did you mean 'second'?"
        async with opened(offers, settings(ONE_MODEL, accept_any=True), start=False) as registry:
            assert await answered(registry, "gpt-4o") == await answered(registry, "first")

    asyncio.run(ask())


def test_a_load_that_failed_is_an_error_until_it_is_tried_again(
    offers: tuple[NamedModel, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, good = tmp_path / "model.gguf", Path(offers[1].source).read_bytes()
    path.write_bytes(good[:4000])

    async def load() -> None:
        async with opened(read_named_models([str(path)]), settings(ONE_MODEL), start=False) as registry:
            with pytest.raises(FormatError):
                await registry.start()
            assert states(registry) == ["failed"]
            path.write_bytes(good)
            with pytest.raises(FormatError):
                await answered(registry, "model")
            monkeypatch.setattr(registry_module, "RETRY_S", 0.0)
            assert await answered(registry, "model")
            assert states(registry) == ["ready"]

    asyncio.run(load())


def test_a_model_that_never_fits_is_an_error(offers: tuple[NamedModel, ...]) -> None:
    async def load() -> None:
        async with opened(offers, settings(1 << 20), start=False) as registry:
            with pytest.raises(ResourceError, match="may be used") as caught:
                await registry.start()
            assert not isinstance(caught.value, BusyError)

    asyncio.run(load())


def test_a_leased_model_is_restarted_after_a_crash(offers: tuple[NamedModel, ...]) -> None:
    async def crash() -> None:
        async with opened(offers, settings(ONE_MODEL)) as registry, registry.lease("first") as model:
            assert model.replicas[0].pid is not None
            os.kill(model.replicas[0].pid, signal.SIGKILL)
            await until(lambda: states(registry) == ["loading", "unloaded"])
            assert await answered(registry, "first")
            assert states(registry) == ["ready", "unloaded"]

    asyncio.run(crash())


@pytest.mark.parametrize("budget", [ONE_MODEL, TWO_MODELS])
def test_a_restart_starts_another_replica_first_where_memory_allows(
    offers: tuple[NamedModel, ...], budget: int
) -> None:
    async def restarted() -> None:
        async with opened(offers[:1], settings(budget)) as registry:
            (model,) = registry.models
            before, number = model.reserved, registry.fleet("first").lifecycle.own[0].number
            assert await registry.restart("first") == (budget == TWO_MODELS)
            (replica,) = registry.fleet("first").lifecycle.own
            assert (replica.state, model.reserved) == ("ready", before)
            assert (replica.number != number) == (budget == TWO_MODELS)

    asyncio.run(restarted())


def test_a_drained_replica_gives_its_memory_back(offers: tuple[NamedModel, ...]) -> None:
    """The budget has room for two. Changes at the same time are made one after the other."""

    async def drained() -> None:
        async with opened(offers[:1], settings(TWO_MODELS)) as registry:
            (model,) = registry.models
            one, cache = model.reserved, model.kv_bytes
            assert cache is not None
            await registry.scale("first", 2)
            assert (model.reserved, model.kv_bytes) == (2 * one, 2 * cache)
            await registry.drain("first", registry.fleet("first").lifecycle.own[0].number)
            assert (model.reserved, model.kv_bytes) == (one, cache)
            room, fleet = await asyncio.gather(registry.restart("first"), registry.scale("first", 2))
            assert (room, len(fleet.lifecycle.own), model.reserved, model.kv_bytes) == (True, 2, 2 * one, 2 * cache)
            with pytest.raises(ResourceError, match="bytes of memory"):
                await registry.scale("first", 3)
            assert model.reserved == 2 * one

    asyncio.run(drained())


def test_a_closed_registry_refuses_requests(offers: tuple[NamedModel, ...]) -> None:
    async def close() -> None:
        async with opened(offers, settings(ONE_MODEL), start=False) as registry:
            asked = asyncio.create_task(answered(registry, "first"))
            await until(lambda: states(registry)[0] == "loading")
            await registry.close()
            with pytest.raises((ResourceError, WorkerError)):
                await asked
            with pytest.raises(ResourceError, match="closing"):
                await answered(registry, "first")
            assert states(registry) == ["unloaded", "unloaded"]

    asyncio.run(close())
