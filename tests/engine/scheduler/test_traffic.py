"""The scheduler's laws under random traffic, with the real block manager and blocks whose contents are checked."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.engine.scheduler.lane_reader import LaneReader
from tests.engine.scheduler.memory import BlockMemory
from tests.engine.scheduler.mock import END, answer_plan, make_manager, make_scheduler, make_sequence
from tests.support.basis import BASIS
from twofold.core.request import CachePin, RequestOptions
from twofold.core.step import SAMPLED_TOKEN, Pooling, StepPlan, TokenEvent
from twofold.engine.scheduler.budget import LiveBudget, StepLimits
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.sequence import Sequence, SequenceState
from twofold.engine.scheduler.step_time import StepTimeModel

BLOCK = 4
WATCHED_FROM = 5
"""The turn after which lanes are watched."""


class Traffic:
    """A scheduler, its requests and its events; every turn is checked."""

    def __init__(self, limits: StepLimits, blocks: int, host: int, window: int | None, *, states: bool = False) -> None:
        self.limits = limits
        self.most = blocks * BLOCK
        model = StepTimeModel(BASIS)
        self.scheduler: Scheduler = make_scheduler(
            limits.sequences,
            limits.rows,
            limits.logit_rows,
            manager=make_manager(blocks, host=host, window=window, states=limits.sequences * states),
            model=model,
            budget=LiveBudget(model, 0.02),
            ageing_s=1.0,
        )
        self.memory = BlockMemory((None,) if window is None else (None, window), BLOCK, states=states)
        self.sequences: dict[int, Sequence] = {}
        self.told: dict[int, list[int]] = {}
        self.scored: dict[int, int] = {}
        self.pooled: dict[int, float] = {}
        self.lanes = LaneReader()
        self.now = 0.0
        self.turns = 0

    def add(self, sequence: Sequence) -> None:
        self._note(sequence)
        self.scheduler.add(sequence, self.now)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        self._note(child)
        self.scheduler.fork(parent.sequence_id, child, self.now)

    def cancel(self, number: int) -> None:
        live = number in self.sequences and self.sequences[number].state is not SequenceState.FINISHED
        assert self.scheduler.end(number, self.now) is live

    def step(self, token: int, lost: int = -1) -> None:
        """One turn; sequence ``lost`` is cancelled while the step is under way."""
        self._hear(self.scheduler.expire(self.now))
        generating = [s for s in self.sequences.values() if s.state is SequenceState.RUNNING and s.pending == 1]
        plan = self.scheduler.plan(self.now)
        planned = {step.sequence_id for step in plan.steps}
        assert all(s.sequence_id in planned for s in generating if s.state is SequenceState.RUNNING), (
            "the plan skips a sequence"
        )
        resting = [s for s in self.sequences.values() if s.resting and s.state is not SequenceState.FINISHED]
        assert bool(plan) or len(resting) == self.scheduler.running + self.scheduler.waiting
        self._check(plan)
        self.memory.run(plan, self.sequences)
        if self.turns % 3:
            self.scheduler.plan_ahead(plan)
        if lost in self.sequences:
            self.cancel(lost)
        seconds = 0.001 * (1 + plan.rows)
        outcome = answer_plan(plan, lambda _: token, seconds=seconds, moves_s=1e-5 * len(plan.moves))
        self.now += seconds
        self.turns += 1
        if self.turns == WATCHED_FROM:
            assert not self.scheduler.lanes.take(), "events without a watcher"
            self.scheduler.watch(self.now)
        self._hear(self.scheduler.commit(plan, outcome, self.now))

    def settle(self) -> None:
        """Turns until all is done; beams that rest are given up."""
        for _ in range(3000):
            if not self.scheduler.has_work:
                break
            self.step(1)
            for sequence in self.sequences.values():
                if sequence.resting and sequence.state is not SequenceState.FINISHED:
                    self.cancel(sequence.sequence_id)
        assert not self.scheduler.has_work
        self.scheduler.check_idle()
        self.lanes.take(self.scheduler.lanes.take())
        self.lanes.check(self.scheduler, self.sequences)
        for number, sequence in self.sequences.items():
            self._check_told(number, sequence)

    def check(self) -> None:
        self.scheduler.check_idle()
        states = [sequence.state for sequence in self.sequences.values()]
        assert states.count(SequenceState.RUNNING) == self.scheduler.running <= self.limits.sequences
        assert states.count(SequenceState.WAITING) + states.count(SequenceState.SWAPPED) == self.scheduler.waiting
        self.lanes.take(self.scheduler.lanes.take())
        self.lanes.check(self.scheduler, self.sequences)
        picture = self.scheduler.picture()
        for group, pool in enumerate(picture.groups):
            held = sum(count for _, count in pool.held) + pool.shared + pool.store
            assert held == self.scheduler.manager.held[group]
            assert pool.free + pool.cached + pool.pinned + held == pool.blocks
            assert pool.store == 0
        for sequence in self.sequences.values():
            assert 0 <= sequence.cached <= sequence.computed <= sequence.known <= sequence.limit
            assert (sequence.finish_reason is not None) is (sequence.state is SequenceState.FINISHED)
            assert (sequence.tables is not None) is (sequence.state is SequenceState.RUNNING)
            assert (sequence.swapped is not None) is (sequence.state is SequenceState.SWAPPED)

    def _note(self, sequence: Sequence) -> None:
        self.sequences[sequence.sequence_id] = sequence
        self.told[sequence.sequence_id] = []

    def _hear(self, events: list[TokenEvent]) -> None:
        for event in events:
            number = event.sequence_id
            assert self.sequences[number].finish_reason == event.finish
            self.told[number] += event.tokens
            self.scored[number] = self.scored.get(number, 0) + len(event.prompt_logprobs)
            if event.hidden is not None:
                self.pooled[number] = self.pooled.get(number, 0.0) + event.hidden[0]

    def _check(self, plan: StepPlan) -> None:
        logit_rows = sum(step.logit_rows for step in plan.steps)
        assert plan.rows <= self.limits.rows
        assert logit_rows <= self.limits.logit_rows
        assert len(plan.steps) <= self.limits.sequences
        assert len({step.sequence_id for step in plan.steps}) == len(plan.steps)
        for step in plan.steps:
            sequence = self.sequences[step.sequence_id]
            end = step.start + len(step.tokens)
            assert step.start == sequence.computed
            assert step.tokens in (sequence.tokens[step.start : end], SAMPLED_TOKEN)
            assert step.tokens != SAMPLED_TOKEN or (step.start >= sequence.prompt_length and end == sequence.known)
            assert step.samples == (end == sequence.known and sequence.samples_next)

    def _check_told(self, number: int, sequence: Sequence) -> None:
        """All was told once: tokens, scores and hidden states, however often it was preempted."""
        if not sequence.candidates:
            assert self.told[number] == list(sequence.tokens[sequence.prompt_length :])
        if sequence.finish_reason not in {"stop", "length"}:
            return
        if sequence.params.prompt_logprobs is not None:
            assert self.scored[number] == sequence.prompt_length - 1
        if sequence.pooling is not None:
            assert self.pooled[number] == (sequence.prompt_length if sequence.pooling == "mean" else 1)


class TrafficMachine(RuleBasedStateMachine):
    """Every kind of request, in any order, on few blocks."""

    @initialize(
        sequences=st.integers(1, 5),
        rows=st.integers(5, 24),
        logit_rows=st.integers(5, 6),
        blocks=st.integers(10, 24),
        host=st.sampled_from([0, 4, 30]),
        window=st.sampled_from([None, None, 6]),
        states=st.booleans(),
    )
    def start(
        self, sequences: int, rows: int, logit_rows: int, blocks: int, host: int, window: int | None, states: bool
    ) -> None:
        self.traffic = Traffic(StepLimits(sequences, rows, logit_rows), blocks, host, window, states=states)

    @rule(
        common=st.integers(0, 24),
        own=st.integers(1, 12),
        answer=st.integers(1, 12),
        kind=st.sampled_from(["plain", "plain", "plain", "scores", "scores only", "mean", "last", "beam", "sibling"]),
        priority=st.integers(-1, 2),
        tenant=st.sampled_from("abc"),
        deadline=st.sampled_from([None, None, None, 0.05, 1.0]),
        pin=st.sampled_from([0, 0, 4, 17]),
        data=st.data(),
    )
    def add(
        self,
        common: int,
        own: int,
        answer: int,
        kind: str,
        priority: int,
        tenant: str,
        deadline: float | None,
        pin: int,
        data: st.DataObject,
    ) -> None:
        number = len(self.traffic.sequences)
        pins = (CachePin(tokens=pin),) if pin else ()
        options = RequestOptions(priority=priority, tenant=tenant, deadline_s=deadline, cache_pins=pins)
        prompt, parent = [1] * common + [100 + number % 3] * own, None
        if kind == "sibling" and self.traffic.sequences:
            parent = self.traffic.sequences[data.draw(st.sampled_from(sorted(self.traffic.sequences)))]
            prompt = list(parent.tokens[: parent.prompt_length])
        scores = kind in {"scores", "scores only"}
        samples = kind not in {"scores only", "mean", "last"}
        self.traffic.add(
            make_sequence(
                number,
                prompt,
                min(answer, self.traffic.most - len(prompt)) if samples else 0,
                options=options,
                arrival=self.traffic.now,
                parent=parent,
                reports_prompt=scores,
                prompt_logprobs=1 if scores else None,
                samples=samples,
                pooling="mean" if kind == "mean" else "last" if kind == "last" else None,
                candidates=2 if kind == "beam" else 0,
            )
        )

    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        if self.traffic.sequences:
            self.traffic.cancel(data.draw(st.sampled_from(sorted(self.traffic.sequences))))

    @rule(token=st.sampled_from([1, 1, 1, END]), lost=st.integers(-10, 20), turns=st.integers(1, 4))
    def step(self, token: int, lost: int, turns: int) -> None:
        for _ in range(turns):
            self.traffic.step(token, lost)

    @rule(branches=st.integers(1, 3))
    def choose(self, branches: int) -> None:
        """Beams that rest go on, branch or end."""
        for sequence in list(self.traffic.sequences.values()):
            if not sequence.resting or sequence.state is SequenceState.FINISHED:
                continue
            if sequence.known + 1 >= sequence.limit:
                self.traffic.cancel(sequence.sequence_id)
                continue
            for branch in range(branches - 1):
                child = make_sequence(
                    len(self.traffic.sequences),
                    [*sequence.tokens, 50 + branch],
                    sequence.limit - sequence.known - 1,
                    options=sequence.options,
                    arrival=self.traffic.now,
                    candidates=2,
                )
                self.traffic.fork(sequence, child)
            sequence.extend(1)

    @rule(seconds=st.sampled_from([0.001, 0.1, 400.0]))
    def wait(self, seconds: float) -> None:
        self.traffic.now += seconds

    @invariant()
    def laws(self) -> None:
        if hasattr(self, "traffic"):
            self.traffic.check()

    def teardown(self) -> None:
        if hasattr(self, "traffic"):
            self.traffic.settle()


TrafficMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
TestTrafficMachine = TrafficMachine.TestCase


def _random_options(rng: random.Random) -> RequestOptions:
    pins = (CachePin(tokens=rng.choice([4, 9, 17])),) if rng.random() < 0.2 else ()
    return RequestOptions(
        priority=rng.choice([0, 0, 0, 1, 2]),
        tenant=rng.choice("abc"),
        deadline_s=rng.choice([None] * 9 + [0.1]),
        queue_limit_s=rng.choice([None, None, None, 0.05]),
        cache_pins=pins,
        cache_salt=rng.choice(["", "", "s"]),
    )


def _random_sequence(rng: random.Random, traffic: Traffic) -> Sequence:
    number = len(traffic.sequences)
    kind = rng.choice(["plain"] * 6 + ["scores", "mean", "last", "beam", "sibling", "sibling"])
    options = _random_options(rng)
    prompt, parent = [1] * rng.randrange(20) + [100 + number % 5] * rng.randint(1, 20), None
    if kind == "sibling" and number:
        parent = traffic.sequences[rng.randrange(max(number - 3, 0), number)]
        prompt, options = list(parent.tokens[: parent.prompt_length]), parent.options
    pooling: Pooling | None = "mean" if kind == "mean" else "last" if kind == "last" else None
    return make_sequence(
        number,
        prompt,
        0 if pooling else rng.randint(1, 24),
        options=options,
        arrival=traffic.now,
        parent=parent,
        reports_prompt=kind == "scores",
        prompt_logprobs=1 if kind == "scores" else None,
        samples=pooling is None,
        pooling=pooling,
        candidates=2 if kind == "beam" else 0,
    )


def _random_event(rng: random.Random, traffic: Traffic) -> None:
    live = [s for s in traffic.sequences.values() if s.state is not SequenceState.FINISHED]
    chance = rng.random()
    if chance < 0.12 and len(live) < 12:
        traffic.add(_random_sequence(rng, traffic))
    elif chance < 0.14 and live:
        traffic.cancel(rng.choice(live).sequence_id)
    elif chance < 0.15:
        traffic.now += rng.choice([0.1, 400.0])
    else:
        lost = rng.choice(live).sequence_id if live and rng.random() < 0.02 else -1
        traffic.step(END if rng.random() < 0.05 else 1, lost)
    for sequence in live:
        if sequence.resting and sequence.state is not SequenceState.FINISHED and rng.random() < 0.5:
            _go_on(rng, traffic, sequence)


def _go_on(rng: random.Random, traffic: Traffic, beam: Sequence) -> None:
    if beam.known + 1 >= beam.limit:
        traffic.cancel(beam.sequence_id)
        return
    if rng.random() < 0.2:
        answer = beam.limit - beam.known - 1
        prompt = [*beam.tokens, 50]
        child = make_sequence(
            len(traffic.sequences), prompt, answer, options=beam.options, arrival=traffic.now, candidates=2
        )
        traffic.fork(beam, child)
    beam.extend(1)


@pytest.mark.parametrize("states", [False, True], ids=["paged", "states"])
@pytest.mark.parametrize("seed", range(5))
def test_two_thousand_events_on_few_blocks(seed: int, states: bool) -> None:
    rng = random.Random(seed + 10)
    window = 6 if seed % 2 else None
    host = [0, 0, 0, 12, 12][seed]
    traffic = Traffic(StepLimits(5, 24, 6), blocks=20, host=host, window=window, states=states)
    for event in range(2000):
        _random_event(rng, traffic)
        if event % 4 == 0:
            traffic.check()
    traffic.settle()
    assert traffic.scheduler.preemptions > 10
    assert (traffic.scheduler.swaps > 10) is (seed > 2)
    reasons = {sequence.finish_reason for sequence in traffic.sequences.values()}
    assert reasons == {"stop", "length", "abort", "deadline"}
