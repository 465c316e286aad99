"""Measures cases on a loaded model, round after round.

Nothing is found in the cache that was not put there on purpose: prompts that shall be computed have a salt of their
own. Those who generate keep theirs, so that their prompts are computed once and found again in later rounds and cases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from statistics import fmean, median
from typing import Final, TypeVar

from twofold.bench.phases.cases import PURE_STEPS, Case, Decode, Mixed, Prefill, Prefix
from twofold.bench.phases.driver import Driver, StopError
from twofold.bench.phases.rows import DecodeRow, MixedRow, PrefillRow, PrefixRow, Row, Spread, StartTimes, percentile
from twofold.bench.phases.steps import StepTime
from twofold.core.errors import ResourceError
from twofold.engine.config import EngineConfig
from twofold.engine.kv.memory import KVDemand
from twofold.engine.llm import LLM

T = TypeVar("T")

START_TOKENS: Final = 32
WARM_TOKENS: Final = 256
WARM_STEPS: Final = 16


class PhaseBench:
    """Cases over one model. ``stop`` is asked between steps."""

    def __init__(self, llm: LLM, rounds: int, stop: Callable[[], bool]) -> None:
        self._llm = llm
        self._rounds = rounds
        self._config = llm.config
        self._rows = min(llm.config.limits.rows, llm.loaded.runner.max_rows)
        self._driver = Driver(llm.client, llm.loaded.spec.vocab_size, stop)

    @property
    def config(self) -> EngineConfig:
        """What the engine runs with."""
        return self._config

    def start(self) -> StartTimes | None:
        """What it took to begin, and a warm engine; None if it was stopped before the first token."""
        driver, room = self._driver, self._config.context
        tokens = min(START_TOKENS, room - 1)
        with suppress(StopError):
            report, _ = driver.alone(driver.prompt(tokens, 0), driver.new_salt())
            warm = min(WARM_TOKENS, room // 2)
            driver.finish(driver.add(driver.prompt(warm, 1), min(WARM_STEPS, room - warm), driver.new_salt()))
            loaded = self._llm.loaded
            return StartTimes(loaded.load_s, loaded.compile_s, report.queue_s + report.prefill_s, tokens)
        return None

    def obstacle(self, case: Case) -> str | None:
        """Why a case cannot be measured with this engine; None if it can."""
        context, extent = self._config.context, case.extent(self._rows, self._rounds)
        longest = self._llm.loaded.spec.context_length
        if extent > longest:
            return f"it takes {extent:,} tokens of context, and the model has {longest:,}"
        if extent > context:
            return f"it takes {extent:,} tokens of context, and max_model_len is {context:,}"
        if isinstance(case, Prefill | Prefix):
            return None
        together, others = (case.batch + 1, case.tokens + 1) if isinstance(case, Mixed) else (case.batch, 0)
        most = min(self._rows, self._config.limits.sequences)
        if together > most:
            return f"it takes {together:,} sequences at once, and a step has room for {most:,}"
        needed = case.batch * (case.context + case.answer(self._rows, self._rounds))
        return None if self._holds(case, others) else f"the KV cache does not hold its {needed + others:,} tokens"

    def measure(self, case: Case) -> Row | None:
        """One case, with as many rounds as were whole when it was stopped; None if none was."""
        match case:
            case Prefill():
                return self._prefill(case)
            case Prefix():
                return self._prefix(case)
            case Decode():
                return self._decode(case)
            case Mixed():
                return self._mixed(case)

    def _prefill(self, case: Prefill) -> PrefillRow | None:
        driver = self._driver
        rounds = self._repeat(lambda turn: driver.alone(driver.prompt(case.tokens, turn), driver.new_salt()))
        if not rounds:
            return None
        steps = [step for _, steps in rounds for step in steps]
        seconds = Spread.of([report.prefill_s for report, _ in rounds])
        return PrefillRow(case, seconds, len(rounds[0][1]), StepTime.mean(steps))

    def _prefix(self, case: Prefix) -> PrefixRow | None:
        """Each round a miss, then a prompt with the same beginning and another end."""
        driver = self._driver

        def both(turn: int) -> tuple[float, float, int, list[StepTime]]:
            known, salt = driver.prompt(case.cached, turn), driver.new_salt()
            ends = driver.prompt(2 * case.new, turn + 1)
            miss, _ = driver.alone([*known, *ends[: case.new]], salt)
            hit, steps = driver.alone([*known, *ends[case.new :]], salt)
            return miss.prefill_s, hit.prefill_s, hit.cached_tokens, steps

        rounds = self._repeat(both)
        if not rounds:
            return None
        misses, hits, cached, steps = zip(*rounds, strict=True)
        step = StepTime.mean([step for each in steps for step in each])
        return PrefixRow(case, Spread.of(hits), Spread.of(misses), min(cached), step)

    def _decode(self, case: Decode) -> DecodeRow | None:
        def generate(_turn: int) -> list[StepTime]:
            self._begin(case)
            steps = self._steps(case.batch, case.steps)
            self._driver.abort()
            return steps

        rounds = self._repeat(generate)
        if not rounds:
            return None
        steps = [step for each in rounds for step in each]
        seconds = Spread.of([median(step.seconds for step in each) for each in rounds])
        p99_s = percentile((step.seconds for step in steps), 0.99)
        return DecodeRow(case, seconds, p99_s, len(steps), StepTime.mean(steps))

    def _mixed(self, case: Mixed) -> MixedRow | None:
        """The sequences generate through all rounds; each brings another prompt."""
        driver = self._driver

        def interfere(turn: int) -> tuple[float, float, list[StepTime]]:
            if turn == 0:
                self._begin(case)
            before = self._steps(case.batch, PURE_STEPS)
            newcomer = driver.add(driver.prompt(case.tokens, turn), 1, driver.new_salt())
            report, steps = driver.finish(newcomer)
            mixed = [step for step in steps if step.prefill_rows]
            return median(step.seconds for step in before), report.queue_s + report.prefill_s, mixed

        rounds = self._repeat(interfere)
        driver.abort()
        if not rounds:
            return None
        alone, ttft, mixed = zip(*rounds, strict=True)
        seconds = Spread.of([fmean(step.seconds for step in steps) for steps in mixed])
        step = StepTime.mean([step for steps in mixed for step in steps])
        return MixedRow(case, seconds, Spread.of(alone), Spread.of(ttft), len(mixed[0]), step)

    def _repeat(self, one: Callable[[int], T]) -> list[T]:
        """The rounds that were whole when it was stopped."""
        found: list[T] = []
        with suppress(StopError):
            for turn in range(self._rounds):
                found.append(one(turn))  # noqa: PERF401 - the list must hold what was there when it is stopped
        return found

    def _begin(self, case: Decode | Mixed) -> None:
        """Runs until every sequence generates: their prompts first, to be found, then all of them at once."""
        driver = self._driver
        prompts = [driver.prompt(case.context, number) for number in range(case.batch)]
        if self._config.prefix_caching:
            self._keep(prompts)
        answer = case.answer(self._rows, self._rounds)
        for number, prompt in enumerate(prompts):
            driver.add(prompt, answer, f"stream-{number}")
        self._steps(case.batch, 1)

    def _keep(self, prompts: Sequence[Sequence[int]]) -> None:
        """Computes what is not cached of each prompt, so that all of them then begin together."""
        ids = [self._driver.add(prompt, 1, f"stream-{number}") for number, prompt in enumerate(prompts)]
        for request_id in ids:
            self._driver.finish(request_id)

    def _steps(self, batch: int, wanted: int) -> list[StepTime]:
        """The next ``wanted`` steps, in each of which every sequence gets a token.

        Raises ResourceError where one sequence ends before all of them ran at once.
        """
        steps: list[StepTime] = []
        while len(steps) < wanted:
            if self._driver.open_requests < batch:
                self._driver.abort()
                raise ResourceError(f"{batch} sequences did not run at once.", hint="Raise --kv-cache-memory-bytes.")
            step = self._driver.turn()
            if step is not None and step.decode_rows == batch:
                steps.append(step)
        return steps

    def _holds(self, case: Decode | Mixed, others: int) -> bool:
        """Whether the KV cache has room for all sequences of the case, and for another one of ``others`` tokens."""
        spec, config = self._llm.loaded.spec, self._config
        demand = KVDemand(spec, config.kv_layout(spec), self._rows)
        tokens = case.context + case.answer(self._rows, self._rounds)
        return all(
            case.batch * demand.blocks(group, tokens) + demand.blocks(group, others) <= size.blocks
            for group, size in zip(spec.kv_groups(config.context), config.kv_groups, strict=True)
        )
