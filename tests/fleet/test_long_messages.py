"""Long messages of nodes: how long each kind may be, and that decoding them leaves the event loop to others."""

from __future__ import annotations

import asyncio
import struct
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fleet.conftest import ENGINE, job_of, until, whole
from tests.fleet.liar import Liar, hub
from tests.fleet.test_messages import ANSWERS, an_output
from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.engine.config import EngineOptions
from twofold.engine.outputs import Logprob, OutputDelta
from twofold.fleet import parts
from twofold.fleet.checks import PeerError, check_numbers, output_bytes
from twofold.fleet.fleet import Fleet
from twofold.fleet.joining import check_ready
from twofold.fleet.link import NodeLink
from twofold.fleet.messages import (
    LENGTH,
    MAX_NAMES,
    SHORT_BYTES,
    Beat,
    Blocks,
    Codec,
    Failed,
    FromWorker,
    Hello,
    LoadModel,
    Ready,
    StepOutputs,
    Unframer,
    tag_of,
)
from twofold.fleet.parts import PART_BYTES
from twofold.fleet.reading import ModelReading


def payload_of(message: Any) -> bytes:
    return bytes(Codec(FromWorker).frame(message))[LENGTH.size :]


def in_parts(codec: Codec, payload: bytes) -> tuple[Any, int]:
    """The message, and the number of pauses."""
    reading, pauses = codec.in_parts(payload), 0
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


@pytest.mark.parametrize("message", ANSWERS, ids=lambda message: type(message).__name__)
@pytest.mark.parametrize("part", [1, 40, PART_BYTES])
def test_messages_decoded_in_parts_are_the_same(message: Any, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PART_BYTES", part)
    found, _ = in_parts(Codec(FromWorker), payload_of(message))
    assert found == message


def a_long_step(positions: int) -> StepOutputs:
    prompt = tuple({n: Logprob(-1.0, 1, "text"), n + 1: Logprob(-2.0, 2, "more")} for n in range(positions))
    output = replace(an_output(), prompt_logprobs=(None, *prompt))
    return StepOutputs([OutputDelta("r", 0, "x", (5,)), OutputDelta("r", 0, "", (), request=output)], [], None)


def test_no_part_of_a_long_message_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted in bytes that are decoded into objects at a time."""
    message, decoded = a_long_step(40_000), list[int]()
    payload = payload_of(message)
    decode = parts.PartReader._decode

    def counted(self: Any, kind: Any, data: Any, name: str) -> Any:
        decoded.append(len(data))
        return decode(self, kind, data, name)

    monkeypatch.setattr(parts.PartReader, "_decode", counted)
    found, pauses = in_parts(Codec(FromWorker), payload)
    assert found == message
    assert len(payload) > 20 * PART_BYTES
    assert max(decoded) <= 2 * PART_BYTES + 5
    assert pauses >= len(payload) // PART_BYTES


def test_every_part_is_checked() -> None:
    message = a_long_step(4000)
    position: Any = message.deltas[1].request.prompt_logprobs[3999]  # type: ignore[union-attr, index]
    position[3998] = Logprob(float("nan"), 1, "x")
    with pytest.raises(PeerError, match="logprob"):
        in_parts(Codec(FromWorker, check_numbers), payload_of(message))


def test_what_cannot_be_split_has_a_limit() -> None:
    payload = msgspec.msgpack.encode(["pong", {"pins": {n: [0, 0, 0, 0] for n in range(400_000)}}])
    with pytest.raises((ValueError, msgspec.MsgspecError)):
        in_parts(Codec(FromWorker), payload)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400), st.sampled_from(ANSWERS))
def test_damaged_long_messages_are_errors(noise: bytes, message: Any) -> None:
    good = payload_of(message)
    for payload in (good[: len(good) // 2] + noise, good[:8] + noise, noise):
        with pytest.raises((ValueError, KeyError, TypeError, msgspec.MsgspecError)):
            in_parts(Codec(FromWorker), payload + b"\xc1")


def test_a_long_frame_is_refused_as_soon_as_its_kind_is_there() -> None:
    limits = {b"blocks": 1 << 20}
    unframer = Unframer(1 << 28, lambda tag: limits.get(tag, 0))
    head = payload_of(Blocks(1, [b"x" * 16] * MAX_NAMES))[:40]
    assert tag_of(head) == b"blocks"
    assert list(unframer.feed(LENGTH.pack(1 << 20) + head)) == []
    for tagged in (head, payload_of(Failed("r", ParameterError("x" * 99, param="p")))[:40], b"\0" * 40):
        with pytest.raises(ValueError, match="a message of"):
            list(Unframer(1 << 28, lambda tag: limits.get(tag, 0)).feed(LENGTH.pack((1 << 20) + 1) + tagged))


def test_frames_that_arrive_while_one_is_decoded_are_found() -> None:
    frames = [LENGTH.pack(size) + bytes([number]) * size for number, size in enumerate((SHORT_BYTES + 1, 3, 70_000, 0))]
    unframer, found = Unframer(), []
    for payload in unframer.feed(frames[0] + frames[1][:5]):
        found.append(payload)
        if len(found) == 1:
            unframer.add(frames[1][5:] + frames[2])
        elif len(found) == 3:
            unframer.add(frames[3])
    assert [(len(each), each[:1]) for each in found] == [
        (SHORT_BYTES + 1, b"\0"),
        (3, b"\1"),
        (70_000, b"\2"),
        (0, b""),
    ]


def test_nodes_that_are_not_ready_hold_little(worker: Fleet) -> None:
    """Before Ready a node sends short messages only; afterwards as much as its blocks and its requests need."""

    class Transport:
        aborted = False

        def abort(self) -> None:
            self.aborted = True

        def is_closing(self) -> bool:
            return self.aborted

        def pause_reading(self) -> None: ...

        def resume_reading(self) -> None: ...

        def write(self, _: bytes) -> None: ...

    def held(link: NodeLink, nbytes: int) -> bool:
        """Whether a frame of so many bytes of outputs may arrive."""
        link.data_received(
            LENGTH.pack(nbytes) + payload_of(StepOutputs([OutputDelta("r", 0, "", ())] * 9, [], None))[:64]
        )
        return not link._transport.aborted  # type: ignore[union-attr]

    async def join(*, ready: bool, asked: EngineRequest | None = None) -> NodeLink:
        link, codec = NodeLink(), Codec(Hello)
        link.connection_made(Transport())  # type: ignore[arg-type]
        link.data_received(bytes(codec.frame(Hello("v", 1, "n", "m", "d"))))
        await link.open(lambda _: None)
        link.send(LoadModel("", {}))
        if ready:
            link.data_received(bytes(codec.frame(worker.ready)))
        if asked is not None:
            link.send(replace(asked, request_id="r", arrival=0.0))
        return link

    async def count() -> None:
        scored = EngineRequest((1,) * 4000, SamplingParams(prompt_logprobs=20, max_tokens=5))
        assert output_bytes(scored) > 4 << 20
        for nbytes in (SHORT_BYTES + 1, 256 << 20, (1 << 32) - 1):
            assert not held(await join(ready=False), nbytes)
        assert held(await join(ready=True), 2 << 20)
        assert not held(await join(ready=True), 4 << 20)
        assert held(await join(ready=True, asked=scored), 4 << 20)
        link = await join(ready=True, asked=scored)
        link.data_received(bytes(Codec(Hello).frame(Failed("r", ParameterError("No.", param="n")))))
        assert not held(link, 4 << 20), "the request has ended"

    asyncio.run(count())


@pytest.mark.parametrize("change", ["blocks", "slots", "rows", "bytes"])
def test_claims_beyond_any_machine_are_refused(change: str, reading: ModelReading, worker: Fleet) -> None:
    honest, facts = worker.ready, worker.ready.engine
    (group,) = facts.groups
    claims: dict[str, Ready] = {
        "blocks": msgspec.structs.replace(honest, engine=replace(facts, groups=(replace(group, blocks=2**40),))),
        "slots": msgspec.structs.replace(honest, engine=replace(facts, slots=2**40)),
        "rows": msgspec.structs.replace(honest, engine=replace(facts, rows=2**40)),
        "bytes": msgspec.structs.replace(honest, bytes=2**52),
    }
    with pytest.raises(ParameterError, match="impossible sizes"):
        check_ready(claims[change], EngineOptions(**ENGINE), reading.spec.context_length)


def test_names_arrive_in_parts(reading: ModelReading, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub asks for all names of a worker, which sends a few at a time."""
    heard: list[Blocks] = []
    on_message = Fleet.on_message

    def note(self: Fleet, replica: Any, message: Any) -> None:
        if isinstance(message, Blocks):
            heard.append(message)
        on_message(self, replica, message)

    monkeypatch.setattr(Fleet, "on_message", note)

    async def serve() -> None:
        async with hub(reading) as (model, port):
            liar = Liar(reading)
            async with liar.joined(port, model.ready):
                await until(lambda: sum(each.usable for each in model.replicas.values()) == 2)
                names = [struct.pack("<QQ", n, n) for n in range(2 * MAX_NAMES + 5)]
                starts = range(0, len(names), MAX_NAMES)
                said = [Blocks(1, names[n : n + MAX_NAMES], n, n + MAX_NAMES < len(names)) for n in starts]
                liar.say(*said)
                await until(lambda: len(heard) == 3)
                index, number = model.requests.line.prefixes, max(model.replicas)
                assert index is not None
                pool = sum(group.blocks for group in model.ready.engine.groups)
                assert len(index) <= pool, "more names than the node has blocks are not kept"
                liar.say(*(Blocks(2, names[n : n + 4], n, n < 8) for n in (0, 4, 8)))
                await until(lambda: len(heard) == 6)
                assert len(index) == 12
                assert not model.replicas[number].listing
                liar.say(Blocks(3, [b"x" * (1 << 20)]))
                await until(lambda: len(model.replicas) == 1)
                assert (await whole(model, job_of(1, SamplingParams(max_tokens=3)), "r")).finished

    asyncio.run(serve())


def test_a_flood_of_names_ends_the_connection_before_it_is_held(reading: ModelReading) -> None:
    """51 MB in one message; others are served meanwhile."""

    async def serve() -> None:
        async with hub(reading) as (model, port):
            liar = Liar(reading)
            async with liar.joined(port, model.ready):
                await until(lambda: sum(each.usable for each in model.replicas.values()) == 2)
                liar.say(Blocks(1, [struct.pack("<QQ", n, n) for n in range(200_000)]), Beat())
                await until(lambda: len(model.replicas) == 1)
                assert (await whole(model, job_of(1, SamplingParams(max_tokens=3)), "r")).finished

    asyncio.run(serve())
