"""Nodes over TCP: they join with certificates, serve like other replicas, and nobody else is heard."""

from __future__ import annotations

import asyncio
import math
import os
import random
import signal
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks.fleet.faults import worker_pids
from tests.fleet.conftest import ENGINE, LONG, QUICK, SHORT, job_of, until, whole
from twofold.core.errors import ParameterError, WorkerError
from twofold.engine.config import EngineOptions
from twofold.engine.llm import LLM
from twofold.fleet.certificates import HOST, context, create
from twofold.fleet.dispatch import Dispatch
from twofold.fleet.fleet import Fleet
from twofold.fleet.joining import FleetAddress, NodeListener, check_node, check_ready
from twofold.fleet.link import NodeLink
from twofold.fleet.messages import LENGTH, Codec, FromHub, Hello, LoadModel
from twofold.fleet.node import NodeSettings, serve_hubs
from twofold.fleet.reading import ModelReading
from twofold.formats.identity import file_digest
from twofold.host.versions import NUMERICS, twofold_version


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fleet") / "certificates"
    create(folder)
    return folder


@asynccontextmanager
async def hub(reading: ModelReading, folder: Path | None, replicas: int = 0) -> AsyncIterator[tuple[Fleet, int]]:
    """A model that nodes may join, and the port for them."""
    model = Fleet("tiny", reading, ENGINE, policy=QUICK, replicas=replicas)
    digest = file_digest(reading.parts)

    async def admit(node: NodeLink, hello: Hello) -> None:
        check_node(hello, digest)
        model.join(node)

    listener = NodeListener(FleetAddress("127.0.0.1", 0, folder), admit)
    await listener.start()
    try:
        yield model, listener.port
    finally:
        await model.close()
        await listener.close()


def node_of(reading: ModelReading, port: int, folder: Path | None, **more: Any) -> NodeSettings:
    tls = None if folder is None else context(folder, "node")
    return NodeSettings(
        hubs=[FleetAddress("127.0.0.1", port, folder)],
        model="tiny",
        path=reading.path,
        name="here",
        context=tls,
        options={"threads": 1},
        **more,
    )


async def ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


@pytest.mark.parametrize("encrypted", [True, False])
def test_requests_go_on_when_a_node_leaves(reading: ModelReading, certificates: Path, *, encrypted: bool) -> None:
    """Two nodes without a local replica; the connections of both end, one after the other, and they join again."""
    folder = certificates if encrypted else None

    async def serve() -> list[Any]:
        async with hub(reading, folder) as (model, port):
            nodes = asyncio.create_task(serve_hubs(node_of(reading, port, folder, replicas=2)))
            await model.start()
            await until(lambda: sum(each.usable for each in model.replicas.values()) == 2)
            running = [asyncio.create_task(whole(model, job_of(n, LONG), f"job-{n}")) for n in range(4)]
            await until(lambda: model.under_way == len(running))
            for _ in range(2):
                await until(lambda: min(each.delivered.tokens for each in model.requests.streams.values()) > 5)
                usable = [each for each in model.replicas.values() if each.usable and each.requests]
                assert usable[0].node is not None
                usable[0].node.kill()
                await until(lambda gone=usable[0]: gone.number not in model.replicas)  # type: ignore[misc]
            outputs = await asyncio.gather(*running)
            outputs.append(await whole(model, job_of(9), "after"))
            assert all(output.metrics.queue_s >= 0 for output in outputs)
            assert all(0 <= output.metrics.arrival - outputs[0].metrics.arrival < 60 for output in outputs)
            await ended(nodes)
            return outputs

    outputs = asyncio.run(serve())
    with LLM(reading.path, **ENGINE) as llm:
        for number, output in zip((0, 1, 2, 3, 9), outputs, strict=True):
            ids = list(job_of(number).token_ids)
            alone = llm.generate([{"prompt_token_ids": ids}], SHORT if number == 9 else LONG)[0]
            assert output.outputs == alone.outputs


@pytest.mark.parametrize(("number", "blamed"), [(signal.SIGABRT, "signal 6"), (signal.SIGKILL, None)])
def test_a_crash_of_a_node_is_told_apart_from_a_kill(
    reading: ModelReading, number: int, blamed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub blames a request for the first, not for the second, and goes on in both cases."""
    lost: list[object] = []
    lose = Dispatch.lose

    def note(self: Any, replica: Any, cause: Any, error: Any = None) -> None:
        lost.append(error)
        lose(self, replica, cause, error)

    monkeypatch.setattr(Dispatch, "lose", note)

    async def serve() -> Any:
        async with hub(reading, None) as (model, port):
            nodes = asyncio.create_task(serve_hubs(node_of(reading, port, None)))
            await model.start()
            running = asyncio.create_task(whole(model, job_of(1, LONG), "one"))
            await until(lambda: any(each.delivered.tokens > 5 for each in model.requests.streams.values()))
            (pid,) = worker_pids(os.getpid())
            os.kill(pid, number)
            output = await running
            found = list(lost)
            await ended(nodes)
            return output, found

    output, found = asyncio.run(serve())
    (error,) = found
    assert error is None if blamed is None else blamed in str(error)
    with LLM(reading.path, **ENGINE) as llm:
        alone = llm.generate([{"prompt_token_ids": list(job_of(1).token_ids)}], LONG)[0]
    assert output.outputs == alone.outputs


async def _answer(port: int, data: bytes, tls: ssl.SSLContext | None = None) -> bytes:
    """What the hub says to these bytes before it closes the connection."""
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=tls, server_hostname=None if tls is None else HOST
    )
    try:
        writer.write(data)
        async with asyncio.timeout(60):
            return await reader.read()
    finally:
        writer.transport.abort()


def test_a_peer_without_a_certificate_is_not_heard(
    reading: ModelReading, certificates: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage, silence, a hello in plain text, no certificate, one of another authority, and one of a hub."""
    heard: list[bytes] = []
    monkeypatch.setattr(NodeLink, "data_received", lambda _, data: heard.append(data))
    create(tmp_path / "other")
    hello = bytes(Codec(Hello).frame(Hello(twofold_version(), NUMERICS, "n", "tiny", "d")))
    plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    plain.load_verify_locations(certificates / "ca.pem")
    stranger = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    stranger.load_verify_locations(certificates / "ca.pem")
    stranger.load_cert_chain(tmp_path / "other" / "node.pem")
    wrong_role = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    wrong_role.load_verify_locations(certificates / "ca.pem")
    wrong_role.load_cert_chain(certificates / "hub.pem")

    async def attack() -> None:
        async with hub(reading, certificates) as (model, port):
            for data in (b"\x00" * 4096, b"GET / HTTP/1.1\r\n\r\n", hello, b""):
                with suppress(ConnectionError):
                    await _answer(port, data)
            for tls in (plain, stranger, wrong_role):
                with suppress(ssl.SSLError, ConnectionError):
                    assert await _answer(port, hello, tls) == b""
            assert model.replicas == {}

    asyncio.run(attack())
    assert heard == []


def test_the_first_frame_of_a_node_is_short(reading: ModelReading) -> None:
    """What is not a hello, or longer than one, ends the connection."""

    async def attack() -> None:
        async with hub(reading, None) as (model, port):
            for data in (b"\xff\xff\xff\x3f", b"\x01\x20\x00\x00" + b"x" * 100, b"\x01\x00\x00\x00\xc1"):
                with suppress(ConnectionError):
                    assert await _answer(port, data) == b""
            assert model.replicas == {}

    asyncio.run(attack())


@pytest.mark.parametrize("framed", [True, False])
def test_garbage_of_a_certified_peer_harms_nobody(reading: ModelReading, certificates: Path, *, framed: bool) -> None:
    """Peers with a node's certificate and hello send random bytes, or random frames, while a replica generates."""
    chance = random.Random(5)
    made = Hello(twofold_version(), NUMERICS, "garbage", "tiny", file_digest(reading.parts))

    async def attack(port: int, tls: ssl.SSLContext | None) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=tls, server_hostname=HOST)
        try:
            writer.write(Codec(Hello).frame(made))
            (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
            assert isinstance(Codec(FromHub).message(await reader.readexactly(length)), LoadModel)
            data = chance.randbytes(chance.randrange(64, 4096))
            writer.write(LENGTH.pack(len(data)) + data if framed else b"\xff" + data)
            async with asyncio.timeout(60):
                with suppress(ConnectionError):
                    await reader.read()
        finally:
            writer.transport.abort()

    async def serve() -> list[Any]:
        async with hub(reading, certificates, replicas=1) as (model, port):
            await model.start()
            running = [asyncio.create_task(whole(model, job_of(n, LONG), f"job-{n}")) for n in range(4)]
            await until(lambda: model.under_way == len(running))
            tls = node_of(reading, port, certificates).context
            for number in range(8):
                await attack(port, tls)
                assert number or model.under_way, "the garbage held its connection until the answers ended"
            await until(lambda: len(model.replicas) == 1)
            return [*await asyncio.gather(*running), await whole(model, job_of(9, LONG), "after")]

    outputs = asyncio.run(serve())
    with LLM(reading.path, **ENGINE) as llm:
        for number, output in zip((0, 1, 2, 3, 9), outputs, strict=True):
            assert (
                output.outputs == llm.generate([{"prompt_token_ids": list(job_of(number).token_ids)}], LONG)[0].outputs
            )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": "0.0.1"}, "runs Twofold 0.0.1"),
        ({"numerics": NUMERICS + 1}, f"numerics {NUMERICS + 1}"),
        ({"digest": "another"}, "another one than the hub"),
    ],
)
def test_a_node_that_differs_is_refused(
    reading: ModelReading, certificates: Path, change: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Hello(twofold_version(), NUMERICS, "here", "tiny", file_digest(reading.parts))
    values = {name: getattr(made, name) for name in made.__struct_fields__} | change
    monkeypatch.setattr("twofold.fleet.node.Hello", lambda *_: Hello(**values))

    async def join() -> None:
        async with hub(reading, certificates) as (_, port):
            await serve_hubs(node_of(reading, port, certificates))

    with pytest.raises(ParameterError, match=message):
        asyncio.run(join())


def test_a_node_trusts_no_other_hub(reading: ModelReading, certificates: Path, tmp_path: Path) -> None:
    create(tmp_path / "other")

    async def join() -> None:
        async with hub(reading, tmp_path / "other") as (_, port):
            settings = node_of(reading, port, certificates)
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection("127.0.0.1", port, ssl=settings.context, server_hostname=HOST)

    asyncio.run(join())


def test_a_node_with_less_context_is_not_used(reading: ModelReading) -> None:
    async def join() -> None:
        async with hub(reading, None, replicas=1) as (model, port):
            await model.start()
            settings = node_of(reading, port, None)
            small = replace(settings, options={"threads": 1, "max_model_len": 128})
            with pytest.raises(ParameterError, match="those of the hub's replicas"):
                await serve_hubs(small)
            await until(lambda: len(model.replicas) == 1)
            assert (await whole(model, job_of(1), "one")).finished

    asyncio.run(join())


def test_a_node_that_lies_about_its_size_is_not_used(reading: ModelReading, worker: Fleet) -> None:
    honest, options, context_length = worker.ready, EngineOptions(**ENGINE), reading.spec.context_length
    check_ready(honest, options, context_length)
    facts = honest.engine
    (group,) = facts.groups
    assert honest.machine is not None
    for engine in (
        replace(facts, groups=(replace(group, blocks=3),)),
        replace(facts, groups=(replace(group, block_bytes=0),)),
        replace(facts, groups=()),
        replace(facts, groups=(group, replace(group, window=64, blocks=-1))),
        replace(facts, slots=-1),
        replace(facts, rows=0),
        replace(facts, attention_chunk=0),
        replace(facts, attention_chunk=1 << 40),
    ):
        with pytest.raises(ParameterError, match="impossible sizes"):
            check_ready(msgspec.structs.replace(honest, engine=engine), options, context_length)
    for machine in (replace(honest.machine, reads=()), replace(honest.machine, int8_macs_per_s=math.nan)):
        with pytest.raises(ParameterError, match="impossible sizes"):
            check_ready(msgspec.structs.replace(honest, machine=machine), options, context_length)
    for change in ({"context": 1 << 40}, {"kv_type": "q8"}):
        with pytest.raises(ParameterError, match="KV type and block size"):
            check_ready(msgspec.structs.replace(honest, **change), options, context_length)


def test_requests_without_a_replica_get_one_error(reading: ModelReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only node leaves: what it had fails after a while, later requests at once, until a node joins again."""
    monkeypatch.setattr("twofold.fleet.fleet.ABSENT_S", 0.2)

    async def serve() -> None:
        async with hub(reading, None) as (model, port):
            nodes = asyncio.create_task(serve_hubs(node_of(reading, port, None)))
            await model.start()
            running = asyncio.create_task(whole(model, job_of(1, LONG), "one"))
            await until(lambda: model.under_way)
            await ended(nodes)
            for waiting in (running, whole(model, job_of(2), "two")):
                with pytest.raises(WorkerError, match="no node has joined"):
                    await waiting
            model.requests.check_idle()
            nodes = asyncio.create_task(serve_hubs(node_of(reading, port, None)))
            await until(lambda: model.state == "ready")
            assert list(model.replicas) == [0], "a node that joins again has its number again"
            assert (await whole(model, job_of(2), "three")).finished
            await ended(nodes)

    asyncio.run(serve())


def test_a_model_without_a_node_does_not_load(reading: ModelReading) -> None:
    async def load() -> None:
        async with hub(reading, None) as (model, _):
            with pytest.raises(WorkerError, match="no node has joined"):
                await model.start(0.05)

    asyncio.run(load())


def test_strangers_take_a_bounded_number_of_connections(reading: ModelReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """Silent peers wait in the system's queue; when those before them are gone, they are served, and a node, too."""
    monkeypatch.setattr("twofold.fleet.joining.MAX_UNKNOWN", 2)
    monkeypatch.setattr("twofold.fleet.link.HELLO_S", 0.3)
    made: list[NodeLink] = []
    begin = NodeLink.connection_made

    def count(link: NodeLink, transport: asyncio.BaseTransport) -> None:
        made.append(link)
        assert sum(not each.greeted.is_set() for each in made) <= 2
        begin(link, transport)

    monkeypatch.setattr(NodeLink, "connection_made", count)

    async def attack() -> None:
        async with hub(reading, None) as (model, port):
            silent = [asyncio.create_task(_answer(port, b"")) for _ in range(7)]
            await until(lambda: len(made) == 2)
            nodes = asyncio.create_task(serve_hubs(node_of(reading, port, None)))
            assert await asyncio.gather(*silent) == [b""] * 7
            await until(lambda: model.state == "ready")
            await ended(nodes)

    asyncio.run(attack())


def test_certificates_are_private_and_never_overwritten(certificates: Path) -> None:
    files = {path.name: path.stat().st_mode & 0o777 for path in certificates.iterdir()}
    assert files == dict.fromkeys(("ca.pem", "ca-key.pem", "hub.pem", "node.pem"), 0o600)
    with pytest.raises(ParameterError, match="already"):
        create(certificates)
    with pytest.raises(ParameterError, match="cannot be used"):
        context(certificates.parent, "hub")


@pytest.mark.parametrize(
    ("text", "certified", "message"),
    [
        ("0.0.0.0:7000", False, "needs certificates"),
        ("example.org:7000", False, "needs certificates"),
        ("7000", False, "HOST:PORT"),
        ("127.0.0.1:70000", False, "HOST:PORT"),
        ("127.0.0.1:x", True, "HOST:PORT"),
    ],
)
def test_addresses_are_checked(text: str, message: str, tmp_path: Path, *, certified: bool) -> None:
    with pytest.raises(ParameterError, match=message):
        FleetAddress.of(text, tmp_path if certified else None, "join")


def test_addresses_on_this_machine_need_no_certificates() -> None:
    assert FleetAddress.of("[::1]:7000", None, "join") == FleetAddress("::1", 7000)
    assert FleetAddress.of("localhost:7000", None, "join").port == 7000
