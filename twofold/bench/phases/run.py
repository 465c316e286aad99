"""A whole run: the ceilings, then every case that fits, the limit of each before it is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from twofold.backends.cpu.backend import CpuBackend
from twofold.backends.cpu.machine import MachineProbe
from twofold.bench.phases.bench import PhaseBench
from twofold.bench.phases.cases import Case, Sizes
from twofold.bench.phases.ceilings import Ceilings, read_ceilings
from twofold.bench.phases.report import PhaseReport
from twofold.bench.phases.rows import Row, SkippedCase, StartTimes
from twofold.core.errors import ContextLengthError, ResourceError
from twofold.engine.config import EngineKeywords, EngineOptions
from twofold.engine.llm import LLM
from twofold.planner.predict.phase import PhaseLimit

RAISED: Final = 1.02
"""Ceilings that rose by more while the engine ran are told."""
SLOW: Final = 0.85
"""A machine that reaches less of its ceilings is told to be busy."""


class Listener(Protocol):
    """Hears of everything the moment that it is known."""

    def opened(self, ceilings: Ceilings, name: str) -> None:
        """What bounds the work; the model is not loaded yet."""
        ...

    def started(self, start: StartTimes) -> None: ...

    def expected(self, case: Case, limit: PhaseLimit) -> None:
        """This case is measured next."""
        ...

    def found(self, row: Row, limit: PhaseLimit) -> None: ...

    def skipped(self, skipped: SkippedCase) -> None: ...

    def raised(self, ceilings: Ceilings) -> None:
        """The machine can do more than was thought: shares that were told are too high."""
        ...

    def busy(self, pace: float) -> None:
        """In the end the machine reached only this share of its ceilings."""
        ...


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """The model that is measured: its file, what it is called, another model's tokenizer if one is used."""

    path: Path
    name: str
    tokenizer: Path | None = None


def run(
    subject: MeasuredModel, options: EngineOptions, sizes: Sizes, listener: Listener, stop: Callable[[], bool]
) -> PhaseReport:
    """Measures a model on this machine until all is done or ``stop`` says so; the report holds what there is.

    Of ``options``, what is left open is made to suit the cases: as much context as the longest needs, as many sequences
    as the largest batch. Raises ContextLengthError where no case fits, and what loading a model raises.
    """
    probe = MachineProbe(CpuBackend(options.isa, options.threads), subject.path.stat().st_size)
    ceilings = read_ceilings(subject.path, probe.best(), options.kv_type, options.max_num_batched_tokens)
    listener.opened(ceilings, subject.name)
    cases = tuple(sizes.cases(prefix_caching=options.enable_prefix_caching))
    with _bench(subject, _keywords(options, ceilings, cases, sizes), sizes.rounds, stop) as bench:
        start = bench.start()
        if start is not None:
            listener.started(start)
        rows, skipped = measure_cases(bench, ceilings, cases, listener, stop)
        config = bench.config
    if stop():
        return PhaseReport(subject.name, ceilings, config, sizes.rounds, start, rows, skipped, interrupted=True)
    now = probe.now()
    pace, gain, ceilings = ceilings.pace(now), ceilings.gain(now), ceilings.raised(now)
    if gain > RAISED:
        listener.raised(ceilings)
    if pace < SLOW:
        listener.busy(pace)
    return PhaseReport(subject.name, ceilings, config, sizes.rounds, start, rows, skipped, pace)


def measure_cases(
    bench: PhaseBench, ceilings: Ceilings, cases: Sequence[Case], listener: Listener, stop: Callable[[], bool]
) -> tuple[list[Row], list[SkippedCase]]:
    """Every case that fits, and those that do not. Raises ContextLengthError where none does."""
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
        listener.expected(case, limit)
        try:
            row = bench.measure(case)
        except ResourceError as error:
            skipped.append(SkippedCase(case, str(error).rstrip(".")))
            continue
        if row is not None:
            rows.append(row)
            listener.found(row, limit)
    for one in skipped:
        listener.skipped(one)
    return rows, skipped


@contextmanager
def _bench(
    subject: MeasuredModel, options: EngineKeywords, rounds: int, stop: Callable[[], bool]
) -> Iterator[PhaseBench]:
    with LLM(subject.path, tokenizer=subject.tokenizer, **options) as llm:
        yield PhaseBench(llm, rounds, stop)


def _keywords(options: EngineOptions, ceilings: Ceilings, cases: Sequence[Case], sizes: Sizes) -> EngineKeywords:
    """Keywords of ``LLM`` under which the cases fit as far as the model allows."""
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
        "seed": options.seed,
        "threads": options.threads,
        "isa": options.isa,
    }
