"""Measures cases on a model: first the ceilings, then every case that fits, with its limit before its measurement.

Cases are measured in rounds. Prompts that must be computed have their own cache salt. Sequences that decode keep
theirs, so that their prompts are computed once and found again in later rounds and cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import fmean, median
from typing import Final, TypeVar

from twofold.bench.phases.cases import PURE_STEPS, Case, Decode, Mixed, Prefill, Prefix, Sizes
from twofold.bench.phases.ceilings import Ceilings, read_ceilings
from twofold.bench.phases.report import (
    DecodeRow,
    MixedRow,
    PhaseReport,
    PrefillRow,
    PrefixRow,
    Row,
    SkippedCase,
    Spread,
    StartTimes,
    StepTime,
    TablePrinter,
)
from twofold.core.errors import ContextLengthError, ResourceError
from twofold.core.params import SamplingParams
from twofold.core.ranks import nearest_rank
from twofold.core.report import RequestMetrics, StepReport
from twofold.core.request import RequestOptions
from twofold.engine.config import EngineKeywords, EngineOptions, KVDemand
from twofold.engine.draft_source import find_draft
from twofold.engine.llm import LLM
from twofold.engine.loop import EngineClient

T = TypeVar("T")

START_TOKENS: Final = 32
WARM_TOKENS: Final = 256
WARM_STEPS: Final = 16
MAX_TOKEN: Final = 30_000
FIRST_TOKEN: Final = 100
"""Lower ids are often special tokens; at most the first third of a small vocabulary is skipped."""
RAISED: Final = 1.02
"""Factor above which higher ceilings, measured at the end, are reported."""
SLOW: Final = 0.85
"""Share of the ceilings below which the machine is reported as busy."""


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """The model to measure: its file, its name, and another model's tokenizer if any."""

    path: Path
    name: str
    tokenizer: Path | None = None


def run(
    subject: MeasuredModel, options: EngineOptions, sizes: Sizes, printer: TablePrinter, stop: Callable[[], bool]
) -> PhaseReport:
    """Measures a model on this machine until all is done or ``stop`` returns True.

    Context and sequences default to what the cases need. Raises ContextLengthError if no case fits, and the errors of
    loading a model.
    """
    probe = options.open_backend().probe(subject.path.stat().st_size)
    draft = find_draft(options)
    ceilings = read_ceilings(subject.path, probe.best(), options.kv_type, options.max_num_batched_tokens, draft)
    printer.opened(ceilings, subject.name)
    cases = tuple(sizes.cases(prefix_caching=options.enable_prefix_caching))
    keywords = _keywords(options, ceilings, cases, sizes)
    with LLM(subject.path, tokenizer=subject.tokenizer, **keywords) as llm:
        bench = PhaseBench(llm, sizes.rounds, stop)
        start = bench.start()
        if start is not None:
            printer.started(start)
        rows, skipped = measure_cases(bench, ceilings, cases, printer, stop)
        config = bench.config
    pace, interrupted = None, stop()
    if not interrupted:
        now = probe.now()
        ratios, ceilings = ceilings.ratios(now), ceilings.raised(now)
        pace = min(ratios)
        if max(ratios) > RAISED:
            printer.raised(ceilings)
        if pace < SLOW:
            printer.busy(pace)
    return PhaseReport(subject.name, ceilings, config, sizes.rounds, start, rows, skipped, pace, interrupted)


def measure_cases(
    bench: PhaseBench, ceilings: Ceilings, cases: Sequence[Case], printer: TablePrinter, stop: Callable[[], bool]
) -> tuple[list[Row], list[SkippedCase]]:
    """Measures every case that fits; the others are skipped. Raises ContextLengthError if none fits."""
    rows: list[Row] = []
    skipped = [SkippedCase(case, why) for case in cases if (why := bench.obstacle(case)) is not None]
    if len(skipped) == len(cases):
        raise ContextLengthError(
            f"None of these cases can be measured: {skipped[0].why}.",
            hint="Use smaller sizes, or raise --max-model-len.",
        )
    for case in cases:
        if any(one.case == case for one in skipped) or stop():
            continue
        limit = ceilings.limit(case)
        printer.expected(case, limit)
        try:
            row = bench.measure(case)
        except ResourceError as error:
            skipped.append(SkippedCase(case, str(error).rstrip(".")))
            continue
        if row is not None:
            rows.append(row)
            printer.found(row, limit)
    for one in skipped:
        printer.skipped(one)
    return rows, skipped


def _keywords(options: EngineOptions, ceilings: Ceilings, cases: Sequence[Case], sizes: Sizes) -> EngineKeywords:
    """Keywords of ``LLM`` with which the cases fit, as far as the model allows."""
    most = ceilings.spec.context_length
    extents = (case.extent(ceilings.step_rows, sizes.rounds) for case in cases)
    return {
        "max_model_len": options.max_model_len or max((extent for extent in extents if extent <= most), default=most),
        "max_num_seqs": min(max(sizes.batch) + 1, ceilings.step_rows),
        "max_num_batched_tokens": options.max_num_batched_tokens,
        "block_size": options.block_size,
        "kv_cache_dtype": options.kv_cache_dtype,
        "kv_cache_memory_bytes": options.kv_cache_memory_bytes,
        "swap_space_bytes": 0,
        "enable_prefix_caching": options.enable_prefix_caching,
        "token_budget": "fixed",
        "overlap": True,
        "speculative_config": options.speculative_config,
        "seed": options.seed,
        "backend_options": options.backend_options,
    }


class StopError(Exception):
    """The run was stopped; requests in progress were aborted."""


class Driver:
    """Sends greedy requests to an engine and measures its steps; ``stop`` is called between steps.

    Prompts of different salts share nothing in the cache. Tokens become text, as for every client.
    """

    def __init__(self, client: EngineClient, vocabulary: int, stop: Callable[[], bool]) -> None:
        self._client = client
        self._engine = client.engine
        self._tokens = range(min(FIRST_TOKEN, vocabulary // 3), min(vocabulary, MAX_TOKEN))
        self._stop = stop
        self._salts = count()
        self.open: set[str] = set()
        self._last: StepTime | None = None
        self._reports: dict[str, RequestMetrics] = {}
        self._engine.observe(self)

    def on_step(self, report: StepReport) -> None:
        """Called after a step."""
        self._last = StepTime.of(report)

    def on_request(self, report: RequestMetrics) -> None:
        """Called at the end of a request."""
        self.open.discard(report.request_id)
        self._reports[report.request_id] = report

    def prompt(self, tokens: int, seed: int) -> list[int]:
        """Random token ids; shorter prompts of a seed are prefixes of longer ones."""
        return random.Random(seed).choices(self._tokens, k=tokens)

    def new_salt(self) -> str:
        """A salt under which nothing is cached."""
        return f"once-{next(self._salts)}"

    def add(self, prompt: Sequence[int], tokens: int, salt: str) -> str:
        """Queues a request for ``tokens`` output tokens and returns its id."""
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        options = RequestOptions(cache_salt=salt, speculation=False)
        request_id = self._engine.add(self._engine.request(tuple(prompt), params, options))
        self.open.add(request_id)
        return request_id

    def turn(self) -> StepTime | None:
        """Runs the engine's loop once; its step, if any. Raises StopError, and errors of requests."""
        if self._stop():
            self.abort()
            raise StopError
        self._last = None
        for delta in self._client.turn():
            if delta.error is not None:
                raise delta.error
        return self._last

    def finish(self, request_id: str) -> tuple[RequestMetrics, list[StepTime]]:
        """Runs until the request has ended; its report and the steps until then."""
        steps = []
        while request_id in self.open:
            step = self.turn()
            if step is not None:
                steps.append(step)
        return self._reports.pop(request_id), steps

    def alone(self, prompt: Sequence[int], salt: str) -> tuple[RequestMetrics, list[StepTime]]:
        """Runs a prompt to its first token."""
        return self.finish(self.add(prompt, 1, salt))

    def abort(self) -> None:
        """Aborts all requests."""
        for request_id in list(self.open):
            self._engine.abort(request_id)
        self._reports.clear()


class PhaseBench:
    """Measures cases of one model. ``stop`` is called between steps."""

    def __init__(self, llm: LLM, rounds: int, stop: Callable[[], bool]) -> None:
        self._llm = llm
        self._rounds = rounds
        self.config = llm.config
        self._rows = min(llm.config.limits.rows, llm.loaded.runner.max_rows)
        self._driver = Driver(llm.client, llm.loaded.spec.vocab_size, stop)

    def start(self) -> StartTimes | None:
        """Warms up the engine and returns its start times; None if it was stopped before."""
        driver, room = self._driver, self.config.context
        tokens = min(START_TOKENS, room - 1)
        with suppress(StopError):
            report, _ = driver.alone(driver.prompt(tokens, 0), driver.new_salt())
            warm = min(WARM_TOKENS, room // 2)
            driver.finish(driver.add(driver.prompt(warm, 1), min(WARM_STEPS, room - warm), driver.new_salt()))
            loaded = self._llm.loaded
            return StartTimes(loaded.load_s, loaded.compile_s, report.queue_s + report.prefill_s, tokens)
        return None

    def obstacle(self, case: Case) -> str | None:
        """The reason why a case cannot be measured with this engine; None if it can."""
        context, extent = self.config.context, case.extent(self._rows, self._rounds)
        longest = self._llm.loaded.spec.context_length
        if extent > longest:
            return f"it takes {extent:,} tokens of context, and the model has {longest:,}"
        if extent > context:
            return f"it takes {extent:,} tokens of context, and max_model_len is {context:,}"
        if isinstance(case, Prefill | Prefix):
            return None
        together, others = (case.batch + 1, case.tokens + 1) if isinstance(case, Mixed) else (case.batch, 0)
        most = min(self._rows, self.config.limits.sequences)
        if together > most:
            return f"it takes {together:,} sequences at once, and a step has room for {most:,}"
        needed = case.batch * (case.context + case.max_output(self._rows, self._rounds))
        return None if self._holds(case, others) else f"the KV cache does not hold its {needed + others:,} tokens"

    def measure(self, case: Case) -> Row | None:
        """Measures a case; only complete rounds count. None without any."""
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
        rounds = self._repeat(lambda number: driver.alone(driver.prompt(case.tokens, number), driver.new_salt()))
        if not rounds:
            return None
        steps = [step for _, steps in rounds for step in steps]
        seconds = Spread.of([report.prefill_s for report, _ in rounds])
        return PrefillRow(case, seconds, StepTime.mean(steps), len(rounds[0][1]))

    def _prefix(self, case: Prefix) -> PrefixRow | None:
        """Each round is a miss, then a prompt with the same prefix and another end."""
        driver = self._driver

        def both(number: int) -> tuple[float, float, int, list[StepTime]]:
            known, salt = driver.prompt(case.cached, number), driver.new_salt()
            ends = driver.prompt(2 * case.new, number + 1)
            miss, _ = driver.alone([*known, *ends[: case.new]], salt)
            hit, steps = driver.alone([*known, *ends[case.new :]], salt)
            return miss.prefill_s, hit.prefill_s, hit.cached_tokens, steps

        rounds = self._repeat(both)
        if not rounds:
            return None
        misses, hits, cached, steps = zip(*rounds, strict=True)
        step = StepTime.mean([step for each in steps for step in each])
        return PrefixRow(case, Spread.of(hits), step, Spread.of(misses), min(cached))

    def _decode(self, case: Decode) -> DecodeRow | None:
        def generate(_number: int) -> list[StepTime]:
            self._begin(case)
            steps = self._steps(case.batch, case.steps)
            self._driver.abort()
            return steps

        rounds = self._repeat(generate)
        if not rounds:
            return None
        steps = [step for each in rounds for step in each]
        seconds = Spread.of([median(step.seconds for step in each) for each in rounds])
        p99_s = nearest_rank(sorted(step.seconds for step in steps), 0.99)
        return DecodeRow(case, seconds, StepTime.mean(steps), p99_s, len(steps))

    def _mixed(self, case: Mixed) -> MixedRow | None:
        """The sequences decode through all rounds; each round adds a prompt."""
        driver = self._driver

        def interfere(number: int) -> tuple[float, float, list[StepTime]]:
            if number == 0:
                self._begin(case)
            before = self._steps(case.batch, PURE_STEPS)
            newcomer = driver.add(driver.prompt(case.tokens, number), 1, driver.new_salt())
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
        return MixedRow(case, seconds, step, Spread.of(alone), Spread.of(ttft), len(mixed[0]))

    def _repeat(self, one: Callable[[int], T]) -> list[T]:
        """The results of complete rounds."""
        found: list[T] = []
        with suppress(StopError):
            for number in range(self._rounds):
                found.append(one(number))  # noqa: PERF401 - the list keeps complete rounds when stopped
        return found

    def _begin(self, case: Decode | Mixed) -> None:
        """Runs until every sequence decodes: caches their prompts first, then starts all of them at once."""
        driver = self._driver
        prompts = [driver.prompt(case.context, number) for number in range(case.batch)]
        if self.config.options.enable_prefix_caching:
            ids = [driver.add(prompt, 1, f"stream-{number}") for number, prompt in enumerate(prompts)]
            for request_id in ids:
                driver.finish(request_id)
        output = case.max_output(self._rows, self._rounds)
        for number, prompt in enumerate(prompts):
            driver.add(prompt, output, f"stream-{number}")
        self._steps(case.batch, 1)

    def _steps(self, batch: int, wanted: int) -> list[StepTime]:
        """The next ``wanted`` steps in which every sequence decodes. Raises ResourceError if one ends before."""
        steps: list[StepTime] = []
        while len(steps) < wanted:
            if len(self._driver.open) < batch:
                self._driver.abort()
                raise ResourceError(f"{batch} sequences did not run at once.", hint="Raise --kv-cache-memory-bytes.")
            step = self._driver.turn()
            if step is not None and step.decode_rows == batch:
                steps.append(step)
        return steps

    def _holds(self, case: Decode | Mixed, others: int) -> bool:
        """Whether the KV cache has room for all sequences of the case and another one of ``others`` tokens."""
        spec, config = self._llm.loaded.spec, self.config
        demand = KVDemand(spec, config.options.kv_layout(spec, config.draft), self._rows, config.attention_chunk)
        tokens = case.context + case.max_output(self._rows, self._rounds)
        return all(
            case.batch * demand.blocks(size.window, tokens) + demand.blocks(size.window, others) <= size.blocks
            for size in config.kv_groups
            if not size.state
        )
