"""Where requests wait at the hub, and which replica they go to, on a virtual clock."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

import pytest

from benchmarks.fleet.simulation import Hub, World
from tests.fleet.routing.replicas import model
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.kv.names import BlockKeys
from twofold.engine.outputs import OutputDelta
from twofold.engine.scheduler.forecast import WorkAhead
from twofold.engine.scheduler.queue import COMPLETION_WEIGHT, PROMPT_WEIGHT
from twofold.engine.scheduler.step_time import StepShape
from twofold.fleet.line import WaitingLine, WaitingRequest
from twofold.fleet.routing.index import PrefixIndex
from twofold.fleet.routing.router import Predicted, Role, RoundRobin
from twofold.fleet.streams import RequestStream

BLOCK = 16


@dataclass
class Standing:
    """A replica that takes so many more requests."""

    number: int
    room: int = 0
    requests: int = 0
    usable: bool = True
    role: Role = "both"
    pending: StepShape = field(default_factory=StepShape)

    def takes(self, tenant: str) -> bool:
        assert tenant is not None
        return self.room > 0

    def ahead(self, now: float) -> WorkAhead:
        assert now >= 0
        return WorkAhead(StepShape(), self.pending, 256, model())


class Scene:
    """A line before replicas, at a time that the test sets."""

    def __init__(self, *replicas: Standing, router: Predicted | RoundRobin | None = None) -> None:
        self.now = 0.0
        self.replicas = {replica.number: replica for replica in replicas}
        self.prefixes = PrefixIndex(BlockKeys(b"s" * 32, b"i"), BLOCK)
        for number in self.replicas:
            self.prefixes.join(number, 1000)
            self.prefixes.report_all(number, 0, [])
        self.line = WaitingLine(self.replicas, router or Predicted(), lambda: self.now, self.prefixes)
        self.count = 0

    def add(self, tokens: int = 100, **options: Any) -> WaitingRequest:
        self.count += 1
        ids = tuple((self.count * 7919 + i) % 997 for i in range(tokens))
        return self.add_prompt(ids, **options)

    def add_prompt(self, ids: tuple[int, ...], **options: Any) -> WaitingRequest:
        entry = self.entry_of(ids, **options)
        self.line.add(entry)
        return entry

    def entry_of(self, ids: tuple[int, ...], **options: Any) -> WaitingRequest:
        self.count += 1
        asked = RequestOptions(**options)
        return self.line.entry(
            EngineRequest(ids, SamplingParams(), asked, request_id=f"{self.count}", arrival=self.now)
        )

    def take(self) -> list[tuple[WaitingRequest, int]]:
        taken = []
        for entry, replica in self.line.take():
            replica.room -= 1
            taken.append((entry, replica.number))
        return taken


def test_requests_wait_until_their_replica_takes_them() -> None:
    scene = Scene(Standing(0), Standing(1))
    entries = [scene.add() for _ in range(6)]
    assert scene.take() == []
    assert len(scene.line.requests) == 6
    scene.replicas[0].room = scene.replicas[1].room = 2
    taken = scene.take()
    assert {entry.sequence_id for entry, _ in taken} == {entry.sequence_id for entry in entries[:4]}
    assert Counter(number for _, number in taken) == {0: 2, 1: 2}


def test_what_waits_for_a_replica_counts_as_its_work() -> None:
    """Long and short prompts are spread by their rows, not by their number."""
    scene = Scene(Standing(0), Standing(1))
    scene.add(4000)
    for _ in range(8):
        scene.add(250)
    scene.take()
    places = Counter(entry.choice.replica for entry in scene.line.requests.values() if entry.choice)
    assert sorted(places.values()) == [1, 8]


def test_the_next_request_of_a_session_waits_for_the_replica_with_its_prefix() -> None:
    scene = Scene(Standing(0), Standing(1, pending=StepShape().plus(0, 200, 1)))
    ids = tuple(range(900))
    names = [name for _, name, _ in BlockKeys(b"s" * 32, b"i").names("", _bytes(ids), 4 * BLOCK)]
    scene.prefixes.report(1, 1, names, [])
    entry = scene.add_prompt(ids)
    assert scene.take() == []
    assert entry.choice is not None
    assert (entry.choice.replica, entry.choice.cached) == (1, 896)
    scene.replicas[1].room = 1
    assert scene.take() == [(entry, 1)]


def test_blocks_of_a_prompt_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scene, ids, named = Scene(Standing(0), Standing(1)), tuple(range(900)), 0
    names = [name for _, name, _ in BlockKeys(b"s" * 32, b"i").names("", _bytes(ids), 4 * BLOCK)]
    scene.prefixes.report(1, 1, names, [])
    name = BlockKeys.name

    def counted(keys: BlockKeys, parent: bytes, tokens: bytes) -> bytes:
        nonlocal named
        named += 1
        return name(keys, parent, tokens)

    monkeypatch.setattr(BlockKeys, "name", counted)
    entry = scene.add_prompt(ids)
    scene.take()
    assert [scene.line.cached(entry.request, [0, 1]) for _ in range(3)] == [[0, 896]] * 3
    assert named == len(names) == 56
    scene.line.forget(entry.request.request_id)
    assert scene.line.cached(entry.request, [0, 1]) == [0, 896]
    assert named == 2 * len(names)


def _bytes(ids: tuple[int, ...]) -> bytes:
    return b"".join(token.to_bytes(4, "little") for token in ids)


def test_an_empty_replica_helps_the_longest_queue() -> None:
    scene = Scene(Standing(0), Standing(1), router=RoundRobin())
    first = [scene.add(2000), scene.add(20), scene.add(2000), scene.add(20), scene.add(2000)]
    scene.take()
    scene.replicas[1].room = 3
    taken = scene.take()
    assert [number for _, number in taken] == [1, 1, 1]
    assert [entry.sequence_id for entry, _ in taken] == [
        first[1].sequence_id,
        first[3].sequence_id,
        first[0].sequence_id,
    ]
    assert taken[2][0].choice is not None
    assert "sooner" in taken[2][0].choice.reason


def test_a_tenant_that_received_less_gets_the_turn_of_another_queue() -> None:
    scene = Scene(Standing(0), Standing(1), router=RoundRobin())
    much, little, _, late = (scene.add(tenant=each) for each in ("much", "little", "much", "little"))
    assert scene.take() == []
    scene.line.account(much).service = 500.0
    scene.replicas[0].room = 1
    assert scene.take() == [(little, 0)]
    assert little.choice is not None
    assert "received less" in little.choice.reason
    scene.line.account(little).service = 450.0
    scene.replicas[0].room = 1
    assert scene.take() == [(much, 0)], "with the other request little would have more"
    scene.replicas[1].room = 1
    assert scene.take() == [(late, 1)]


def test_a_replica_does_not_help_where_the_prefix_makes_waiting_shorter() -> None:
    scene = Scene(Standing(0), Standing(1))
    ids = tuple(range(3200))
    names = [name for _, name, _ in BlockKeys(b"s" * 32, b"i").names("", _bytes(ids), 4 * BLOCK)]
    scene.prefixes.report(0, 1, names, [])
    for _ in range(3):
        scene.add_prompt(ids)
    scene.replicas[1].room = 3
    assert scene.take() == []


def test_a_forecast_counts_what_waits_for_the_replica_and_is_as_urgent() -> None:
    scene = Scene(Standing(0), Standing(1), router=RoundRobin())
    for _ in range(4):
        scene.add(400)
    scene.add(900, priority=1)
    scene.take()
    asked = scene.entry_of((1,) * 100).request
    seconds = [scene.line.before(asked, number) for number in (0, 1)]
    assert [ahead for ahead, _ in seconds] == [2, 2]
    assert seconds[0][1] == pytest.approx(seconds[1][1])
    assert seconds[0][1] > 0
    batch = scene.entry_of((1,) * 100, priority=1).request
    assert [scene.line.before(batch, number)[0] for number in (0, 1)] == [3, 2]
    assert Scene(Standing(0)).line.before(asked, 0) == (0, 0.0)


def test_requests_that_ask_for_their_progress_have_places() -> None:
    scene, entries = Scene(Standing(0), Standing(1), router=RoundRobin()), list[WaitingRequest]()
    for number in range(6):
        scene.now += 1.0
        entries.append(scene.add(progress=number > 1))
        scene.take()
    found = {entry.sequence_id: (replica.number, ahead) for entry, replica, ahead in scene.line.places()}
    places = ((0, 1), (1, 1), (0, 2), (1, 2))
    assert found == {entry.sequence_id: place for entry, place in zip(entries[2:], places, strict=True)}


def test_requests_of_a_lost_replica_are_placed_again() -> None:
    scene = Scene(Standing(0), Standing(1))
    entries = [scene.add() for _ in range(6)]
    scene.take()
    scene.replicas[0].usable = False
    scene.line.lose(0)
    scene.replicas[1].room = 10
    assert sorted(entry.sequence_id for entry, _ in scene.take()) == [entry.sequence_id for entry in entries]
    scene.replicas[1].usable = False
    scene.line.lose(1)
    late = scene.add()
    assert scene.take() == []
    scene.replicas[0].usable, scene.replicas[0].room = True, 1
    assert scene.take() == [(late, 0)]
    assert not scene.line.requests


def test_urgent_classes_go_first() -> None:
    scene = Scene(Standing(0))
    batch, default, priority = (scene.add(priority=each) for each in (1, 0, -1))
    scene.replicas[0].room = 3
    assert [entry for entry, _ in scene.take()] == [priority, default, batch]


@pytest.mark.parametrize("name", ["queue_limit_s", "deadline_s"])
def test_a_request_whose_time_is_up_goes_to_an_engine_which_ends_it(name: str) -> None:
    scene = Scene(Standing(0))
    entry, other = scene.add(100, **{name: 2.0}), scene.add()
    scene.now = 1.9
    assert scene.take() == []
    scene.now = 2.0
    assert scene.take() == [(entry, 0)]
    assert list(scene.line.requests) == [other.request.request_id]


def test_a_request_that_left_is_not_sent() -> None:
    scene = Scene(Standing(0))
    first, second = scene.add(), scene.add(deadline_s=1.0)
    scene.take()
    assert scene.line.remove(first.request.request_id) is first
    assert scene.line.remove(second.request.request_id) is second
    assert scene.line.remove("unknown") is None
    scene.replicas[0].room, scene.now = 5, 9.0
    assert scene.take() == []


@pytest.mark.parametrize("router", ["predicted", "round-robin"])
def test_tenants_with_backlog_get_equal_service_from_four_replicas(
    router: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One tenant has long prompts and answers, the other short ones; their service is counted where tokens arrive."""
    service: defaultdict[str, float] = defaultdict(float)
    hear = RequestStream.hear

    def counted(stream: RequestStream, delta: OutputDelta, now: float) -> None:
        tenant = stream.request.options.tenant
        if not stream.began:
            service[tenant] += PROMPT_WEIGHT * len(stream.request.token_ids)
        service[tenant] += COMPLETION_WEIGHT * len(delta.token_ids)
        hear(stream, delta, now)

    monkeypatch.setattr(RequestStream, "hear", counted)

    async def run() -> None:
        chance = random.Random(0)
        world = World(chance)
        hub = Hub(world, 4, slots=4, router=router)
        for number in range(2_000):
            tenant, tokens, most = (("long", 60, 40), ("short", 5, 6))[number % 9 > 0]
            hub.requests.open(
                EngineRequest(
                    (1,) * tokens,
                    SamplingParams(seed=number, max_tokens=most),
                    RequestOptions(tenant=tenant),
                    request_id=f"r{number}",
                    arrival=0.0,
                )
            )
        world.run(30.0)
        waiting = Counter(entry.options.tenant for entry in hub.requests.line.requests.values())
        assert min(waiting["long"], waiting["short"]) > 10, "a tenant had no backlog"
        for replica in hub.replicas.values():
            assert replica.process is not None
            assert len(replica.process.jobs) <= 4 + 2 + 1

    asyncio.run(run())
    assert sum(service.values()) > 5_000
    assert service["long"] / service["short"] == pytest.approx(1.0, abs=0.05)
