"""The KV store on disk in simulations: both kinds of replicas agree, and loads take the time that the formula says."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.planner.simulate.support import Kind, linear, ran, setting_with
from tests.planner.simulate.test_agreement import agree
from twofold.bench.load.base import Shared
from twofold.cli.bench.options import LoadOptions
from twofold.cli.simulate import EngineFlags, LeverFlags, ServerOptions, simulate
from twofold.core.errors import ParameterError
from twofold.core.report import StoreCounts
from twofold.engine.kv.segments import SEGMENT_TOKENS, header_bytes
from twofold.planner.count.setting import Setting
from twofold.planner.count.step import SequenceRows
from twofold.planner.machines.known import find_machine
from twofold.planner.predict.request import DIGEST
from twofold.planner.predict.steps import StepSize
from twofold.planner.shapes.known import resolve_shape
from twofold.planner.simulate.exact import ExactReplica
from twofold.planner.simulate.fast.replica import FastReplica
from twofold.planner.simulate.fast.store import segment_names
from twofold.planner.simulate.jobs import JobResult, SimulatedJob
from twofold.planner.simulate.kv_store import SimulatedStore, simulated_store
from twofold.planner.simulate.layerwise import LayerKV
from twofold.planner.simulate.scenario import Scenario, Split
from twofold.planner.simulate.setting import EngineSetting

KINDS: tuple[Kind, ...] = (ExactReplica, FastReplica)
POSITION = 1_000
"""Bytes of a position's keys and values in these tests."""
SEGMENT = SEGMENT_TOKENS * POSITION + header_bytes(1)


def store(byte_s: float = 1e-9, segments: int = 1000, block: int = 16) -> SimulatedStore:
    return SimulatedStore(segments * SEGMENT, (block * POSITION,), byte_s)


def run(kind: Kind, setting: EngineSetting, jobs: list[SimulatedJob]) -> tuple[dict[int, JobResult], StoreCounts]:
    replica = kind(setting, linear)
    found = ran(replica, jobs)
    assert replica.stored is not None
    return found, replica.stored


def random_sessions(rng: random.Random, *, together: bool) -> list[SimulatedJob]:
    """Turns of a few sessions; each turn's prompt is the one before it with its output and more. Turns of a session do
    not overlap; those of different ones do if they run ``together``. Nothing else is shared: even without a store both
    kinds of replicas differ by a few tokens in what they find of a shared piece (docs/simulate.md)."""
    jobs: list[SimulatedJob] = []
    now, known = 0.0, [rng.randint(1, 1_200) for _ in range(rng.randint(1, 8))]
    for number in range(rng.randint(2, 60)):
        session = rng.randrange(len(known))
        now += rng.expovariate(1)
        if not together or any(job.stream == -1 - session for job in jobs[-4:]):
            now += 20
        output = rng.randint(1, 30)
        if known[session] + output < 3_000:
            jobs.append(SimulatedJob(number, now, known[session], output, (), -1 - session))
            known[session] += output + rng.randint(1, 100)
    return jobs


@settings(max_examples=25, deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from([1e-10, 1e-8, 3e-7]),
    st.sampled_from([2, 6, 1000]),
    st.booleans(),
)
def test_both_kinds_of_replicas_agree(seed: int, byte_s: float, segments: int, together: bool) -> None:
    rng = random.Random(seed)
    size = rng.choice([4, 16])
    blocks = rng.choice([3_100, 5_000, 50_000]) // size
    lever = store(byte_s, segments, size)
    setting = setting_with(blocks, sequences=4, rows=256, block_size=size, context=3_000, kv_store=lever)
    jobs = random_sessions(rng, together=together)
    (exact, theirs), (fast, ours) = (run(kind, setting, jobs) for kind in KINDS)
    assert agree(exact, fast)
    assert replace(theirs, load_s=0.0) == replace(ours, load_s=0.0)
    assert theirs.load_s == pytest.approx(ours.load_s)
    assert theirs.bytes <= lever.budget
    assert {number: done.loaded for number, done in exact.items()} == {n: done.loaded for n, done in fast.items()}
    assert all(0 <= done.loaded <= done.cached < done.job.prompt for done in exact.values())


def session(*turns: tuple[float, int, int]) -> list[SimulatedJob]:
    """Turns of session 0: seconds, prompt and output tokens."""
    return [SimulatedJob(number, *turn, (), -1) for number, turn in enumerate(turns)]


def other(number: int, due_s: float, prompt: int, output: int = 2) -> SimulatedJob:
    return SimulatedJob(number, due_s, prompt, output, stream=number)


def forgetful(**changes: object) -> EngineSetting:
    """Room for 2,048 positions: a prompt of 2,040 tokens evicts what was there."""
    return setting_with(128, sequences=4, rows=2_048, context=2_048, **changes)


RETURNS = [*session((0, 1_024, 2), (10, 1_100, 2)), other(2, 20, 2_040)]
"""A session whose second turn finds the first in memory, so its segments are written; then others evict it."""


@pytest.mark.parametrize("kind", KINDS)
def test_the_first_token_of_a_session_that_returns_by_hand(kind: Kind) -> None:
    """1,200 tokens, of which 1,024 were found once, so four segments are on the disk. They are read in their bytes'
    time, and the other 176 are computed in one step. The load is beside nothing, so the request waits for it alone."""
    byte_s = 1e-8
    jobs = [*RETURNS, SimulatedJob(3, 30, 1_200, 2, (), -1)]
    found, counts = run(kind, forgetful(kv_store=store(byte_s)), jobs)
    step = StepSize(176, 1, 1, (sum(range(1_025, 1_201)),), (1_200,), ((1, SequenceRows(176, 1_024)),))
    expected = 30 + 4 * SEGMENT_TOKENS * POSITION * byte_s + linear(step)
    assert found[3].first_s == pytest.approx(expected, abs=1e-9)
    assert (found[3].cached, found[3].loaded, found[1].loaded) == (1_024, 1_024, 0)
    assert (counts.loads, counts.loaded, counts.written, counts.declined) == (1, 1_024, 4, 0)
    assert counts.load_s == pytest.approx(4 * SEGMENT_TOKENS * POSITION * byte_s)
    assert counts.bytes == 4 * SEGMENT


@pytest.mark.parametrize("kind", KINDS)
def test_without_a_store_it_is_computed(kind: Kind) -> None:
    jobs = [*RETURNS, SimulatedJob(3, 30, 1_200, 2, (), -1)]
    replica = kind(forgetful(), linear)
    assert ran(replica, jobs)[3].cached < SEGMENT_TOKENS
    assert replica.stored is None


@pytest.mark.parametrize("kind", KINDS)
def test_a_load_that_did_not_pay_is_declined_the_next_time(kind: Kind) -> None:
    """The engine does not know the disk before it has read from it: at 500 MB/s 1 MB beats computing 1,024 tokens, at
    the 5 MB/s that it measures it does not. A decline moves the rate by 2 % toward 500 MB/s, to 15 MB/s: it is tried
    again."""
    jobs = [*RETURNS]
    for number in range(3, 9, 2):
        jobs += [SimulatedJob(number, 10.0 * number, 1_200, 2, (), -1), other(number + 1, 10.0 * number + 5, 2_040)]
    found, counts = run(kind, forgetful(kv_store=store(2e-7)), jobs)
    assert (counts.loads, counts.declined) == (2, 1)
    assert [found[number].loaded for number in (3, 5, 7)] == [1_024, 0, 1_024]


@pytest.mark.parametrize("kind", KINDS)
def test_others_overtake_a_load_and_are_not_delayed_by_it(kind: Kind) -> None:
    """The returning session waits ten seconds for its load; a request after it runs as if it were alone."""
    lever = store(10 / (4 * SEGMENT_TOKENS * POSITION))
    jobs = [*RETURNS, SimulatedJob(3, 30, 1_200, 2, (), -1), other(4, 31, 100)]
    found, _ = run(kind, forgetful(kv_store=lever), jobs)
    step = StepSize(100, 1, 1, (sum(range(1, 101)),), (100,), ((1, SequenceRows(100, 0)),))
    assert found[4].first_s == pytest.approx(31 + linear(step), abs=1e-9)
    assert found[3].first_s is not None
    assert found[3].first_s > 40


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_store_evicts_what_was_used_least_recently(kind: Kind) -> None:
    """Two sessions of four segments each in a store of five: the second one's evict three of the first's."""
    second = [SimulatedJob(3, 30, 1_024, 2, (), -2), SimulatedJob(4, 40, 1_100, 2, (), -2)]
    _, counts = run(kind, forgetful(kv_store=store(segments=5)), [*RETURNS, *second])
    assert (counts.written, counts.evicted, counts.segments, counts.bytes) == (8, 3, 5, 5 * SEGMENT)


def test_sessions_are_never_mistaken_for_one_another() -> None:
    """Streams −1 and −2, whose hashes are equal in CPython, have no token in common."""
    jobs = [SimulatedJob(0, 0, 600, 2, (), -1), SimulatedJob(1, 20, 600, 2, (), -2)]
    assert [ran(kind(setting_with(), linear), jobs)[1].cached for kind in KINDS] == [0, 0]
    assert not set(segment_names(jobs[0], 2)) & set(segment_names(jobs[1], 2))


def test_a_segment_is_named_by_all_that_lies_before_it() -> None:
    """Prompts share the names of the segments in which they are equal, and no later ones."""
    piece = (Shared(7, 300),)
    one, two = (SimulatedJob(number, 0, 1_000, 24, piece, -1 - number) for number in range(2))
    names = [segment_names(job, 4) for job in (one, two, one._replace(prompt=900, output=124))]
    assert [names[0][place] == names[1][place] for place in range(4)] == [True, False, False, False]
    assert names[0] == names[2]


# -- the setting and the command ---------------------------------------------------------------------------------------


def test_bytes_and_seconds_of_a_store() -> None:
    shape, machine = resolve_shape("llama-3.1-8b"), find_machine("h100")
    found = simulated_store(shape, machine.with_disk(2.0), 1 << 30, Setting(tp=2), block_size=16)
    assert found.block_bytes == (16 * 2 * 32 * 8 * 128 * 2,)
    assert found.byte_s == pytest.approx(1 / 2e9 + 1 / DIGEST)


@pytest.mark.parametrize(
    ("budget", "block_size", "param"), [(1 << 20, 16, "kv-store-bytes"), (1 << 30, 48, "block-size")]
)
def test_stores_that_cannot_be(budget: int, block_size: int, param: str) -> None:
    with pytest.raises(ParameterError) as raised:
        simulated_store(resolve_shape("llama-3.1-8b"), find_machine("h100"), budget, block_size=block_size)
    assert raised.value.param == param


def test_levers_that_are_not_simulated_together() -> None:
    with pytest.raises(ParameterError, match="KV store"):
        setting_with(kv_store=store(), layer_kv=LayerKV(10, 1e-6, 32))
    with pytest.raises(ParameterError, match="prefix cache"):
        setting_with(kv_store=store(), prefix_caching=False)
    shape, machine = resolve_shape("llama-3.1-8b"), find_machine("h100")
    with pytest.raises(ParameterError, match="disaggregation"):
        Scenario(shape=shape, machine=machine, setting=setting_with(kv_store=store()), split=Split(1, 1))


def command(capsys: pytest.CaptureFixture[str], hardware: str, **load: object) -> str:
    """What the command prints for a few sessions that return after two minutes, with room for 16,384 tokens."""
    simulate(
        server=ServerOptions(model="llama-3.1-8b", hardware=hardware),
        engine=EngineFlags(kv_cache_memory_bytes=2 << 30),
        levers=LeverFlags(kv_store_bytes=100 << 30),
        load=LoadOptions(**{"rate": 0.02, "requests": 8, "turns": "8", "think_time": "exp:120", "seed": 1, **load}),  # type: ignore[arg-type]
    )
    return capsys.readouterr().out


def test_the_command_says_what_a_store_gains(capsys: pytest.CaptureFixture[str]) -> None:
    text = command(capsys, "epyc-9654", input_tokens="1500", output_tokens="60")
    assert "KV store " in text
    assert "without  the store " in text
    assert "does not pay" not in text


def test_the_command_says_when_a_store_does_not_pay(capsys: pytest.CaptureFixture[str]) -> None:
    text = command(capsys, "h100", input_tokens="1500", output_tokens="60")
    assert "does not pay: computing was always faster than loading" in text
    text = command(capsys, "h100", input_tokens="40", output_tokens="2", turns="2")
    assert "does not pay: nothing is written" in text
    text = command(capsys, "h100", input_tokens="400", output_tokens="2", requests=2, turns="4")
    assert "does not pay: no prompt came back after" in text
