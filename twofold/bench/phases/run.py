"""A whole run: the ceilings, then every case that fits, with its limit before its measurement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from twofold.backends.cpu.backend import CpuBackend
from twofold.bench.phases.bench import PhaseBench
from twofold.bench.phases.cases import Case, Sizes
from twofold.bench.phases.ceilings import Ceilings, read_ceilings
from twofold.bench.phases.report import PhaseReport, Row, SkippedCase, StartTimes
from twofold.core.errors import ContextLengthError, ResourceError
from twofold.engine.config import EngineKeywords, EngineOptions
from twofold.engine.llm import LLM
from twofold.planner.predict.phase import PhaseLimit

RAISED: Final = 1.02
"""Factor above which higher ceilings, measured at the end, are reported."""
SLOW: Final = 0.85
"""Share of the ceilings below which the machine is reported as busy."""


class Listener(Protocol):
    """Is notified of results as they are known.

    opened    the ceilings, before the model is loaded
    expected  the next case and its limit
    raised    higher ceilings: the machine is faster than measured before, so reported shares are too high
    busy      the share of its ceilings that the machine reached at the end
    """

    def opened(self, ceilings: Ceilings, name: str) -> None: ...
    def started(self, start: StartTimes) -> None: ...
    def expected(self, case: Case, limit: PhaseLimit) -> None: ...
    def found(self, row: Row, limit: PhaseLimit) -> None: ...
    def skipped(self, skipped: SkippedCase) -> None: ...
    def raised(self, ceilings: Ceilings) -> None: ...
    def busy(self, pace: float) -> None: ...


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """The model to measure: its file, its name, and another model's tokenizer if any."""

    path: Path
    name: str
    tokenizer: Path | None = None


def run(
    subject: MeasuredModel, options: EngineOptions, sizes: Sizes, listener: Listener, stop: Callable[[], bool]
) -> PhaseReport:
    """Measures a model on this machine until all is done or ``stop`` returns True.

    Context and sequences default to what the cases need. Raises ContextLengthError if no case fits, and the errors of
    loading a model.
    """
    probe = CpuBackend(options.isa, options.threads).probe(subject.path.stat().st_size)
    ceilings = read_ceilings(subject.path, probe.best(), options.kv_type, options.max_num_batched_tokens)
    listener.opened(ceilings, subject.name)
    cases = tuple(sizes.cases(prefix_caching=options.enable_prefix_caching))
    keywords = _keywords(options, ceilings, cases, sizes)
    with LLM(subject.path, tokenizer=subject.tokenizer, **keywords) as llm:
        bench = PhaseBench(llm, sizes.rounds, stop)
        start = bench.start()
        if start is not None:
            listener.started(start)
        rows, skipped = measure_cases(bench, ceilings, cases, listener, stop)
        config = bench.config
    pace, interrupted = None, stop()
    if not interrupted:
        now = probe.now()
        pace, gain, ceilings = ceilings.pace(now), ceilings.gain(now), ceilings.raised(now)
        if gain > RAISED:
            listener.raised(ceilings)
        if pace < SLOW:
            listener.busy(pace)
    return PhaseReport(subject.name, ceilings, config, sizes.rounds, start, rows, skipped, pace, interrupted)


def measure_cases(
    bench: PhaseBench, ceilings: Ceilings, cases: Sequence[Case], listener: Listener, stop: Callable[[], bool]
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
        "seed": options.seed,
        "threads": options.threads,
        "isa": options.isa,
    }
