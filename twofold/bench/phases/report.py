"""Results of a run as records, as JSON of a stable schema, and as text.

    {"schema": "twofold.phases/1", "version": …, "model": …, "machine": …, "engine": …, "rounds": …, "start": …,
     "prefill": […], "prefix": […], "decode": […], "mixed": […], "pace": …, "skipped": […], "interrupted": false}

``model.draft`` has the draft model's bytes and the least seconds of its pass of one row; null without one.

All times are seconds. A row has its case; ``seconds`` over rounds, of a prompt until its first token or of one step;
``limit`` (the least seconds, their bound, and the share that was reached); ``tok_s``; and the parts of its steps.

The text has the ceilings, then a line for each case, with its limit before its measurement:

tokens        limit                 measured   least – most        tok/s   share  not model
   512      211 ms  arithmetic        402 ms      399 – 410        1,270     52%       0.4%
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar, get_args

from twofold.bench.draw.form import duration
from twofold.bench.phases.cases import Case, Decode, Mixed, Phase, Prefill, Prefix
from twofold.bench.phases.ceilings import Ceilings
from twofold.core.limits import MachineLimits
from twofold.core.report import StepReport
from twofold.core.units import count
from twofold.engine.config import EngineConfig
from twofold.host.versions import twofold_version
from twofold.planner.predict.phase import PhaseLimit

SCHEMA: Final = "twofold.phases/1"
LABEL: Final = 10
SIZES: Final = 26
TITLES: Final[dict[Phase, str]] = {
    "prefill": "prefill: a prompt alone, to its first token",
    "prefix": "prefix: a prompt alone, all but its end cached, to its first token",
    "decode": "decode: a step in which every sequence gets a token",
    "mixed": "mixed: a step that computes another prompt beside sequences that decode",
}

OfCase = TypeVar("OfCase", Prefill, Prefix, Decode, Mixed)


@dataclass(frozen=True, slots=True)
class StepTime:
    """Mean seconds of steps by part; the parts follow each other without a gap. Rows are counted by phase.

    host    of the engine: requests enter and leave, the step is planned, the one before is committed
    batch   blocks are moved, the rows become arrays
    model   the forward pass; ``beside`` is what Python did during it: the text of the last step's tokens
    draw    tokens are sampled from the logits
    """

    decode_rows: float
    prefill_rows: float
    host_s: float
    batch_s: float
    model_s: float
    draw_s: float
    beside_s: float

    @classmethod
    def of(cls, report: StepReport) -> Self:
        """The parts of one step."""
        return cls(
            report.decode_rows,
            report.prefill_rows,
            report.host_s,
            report.moves_s + report.seconds - report.forward_s - report.sample_s,
            report.forward_s,
            report.sample_s,
            report.overlap_s,
        )

    @classmethod
    def mean(cls, steps: Sequence[StepTime]) -> Self:
        """The mean of at least one step."""
        names = [field.name for field in fields(cls)]
        return cls(**{name: sum(getattr(step, name) for step in steps) / len(steps) for name in names})

    @property
    def seconds(self) -> float:
        """From the end of the step before to its own end."""
        return self.host_s + self.batch_s + self.model_s + self.draw_s

    @property
    def outside(self) -> float:
        """The share of its time outside of the model."""
        return 1 - self.model_s / self.seconds if self.seconds > 0 else 0.0


@dataclass(frozen=True, slots=True)
class Spread:
    """A figure over rounds."""

    median: float
    least: float
    most: float
    rounds: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Of at least one round."""
        return cls(median(values), min(values), max(values), len(values))


@dataclass(frozen=True, slots=True)
class StartTimes:
    """``load_s`` excludes ``compile_s``; ``first_token_s`` is of the first prompt, of ``tokens`` tokens."""

    load_s: float
    compile_s: float
    first_token_s: float
    tokens: int


@dataclass(frozen=True, slots=True)
class MeasuredCase(Generic[OfCase]):
    """A case, its seconds over rounds, and the mean of its steps."""

    case: OfCase
    seconds: Spread
    step: StepTime

    @property
    def tok_s(self) -> float:
        """Tokens a second: of the prompt, cached ones included, or of all sequences."""
        tokens = self.case.batch if isinstance(self.case, Decode) else self.case.tokens
        return tokens / self.seconds.median

    def details(self) -> dict[str, Any]:
        """What only rows of this kind have, for JSON."""
        names = {"cached": "cached_tokens", "steps": "step_count"}
        common = ("case", "seconds", "step")
        return {names.get(name, name): value for name, value in asdict(self).items() if name not in common}


@dataclass(frozen=True, slots=True)
class PrefillRow(MeasuredCase[Prefill]):
    """``steps`` are those of one prompt."""

    steps: int


@dataclass(frozen=True, slots=True)
class PrefixRow(MeasuredCase[Prefix]):
    """``seconds`` are with ``cached`` tokens found, ``miss`` of a prompt of equal length without any."""

    miss: Spread
    cached: int


@dataclass(frozen=True, slots=True)
class DecodeRow(MeasuredCase[Decode]):
    """``seconds`` are medians of the steps of a round, ``p99_s`` is of the steps of all rounds."""

    p99_s: float
    steps: int


@dataclass(frozen=True, slots=True)
class MixedRow(MeasuredCase[Mixed]):
    """``seconds`` are means of the ``steps`` with a part of the prompt; ``alone`` is the median of the steps before
    it; ``ttft`` is the prompt's."""

    alone: Spread
    ttft: Spread
    steps: int

    @property
    def tok_s(self) -> float:
        """Tokens a second, of the prompt and of decoding."""
        return self.case.tokens / self.steps / self.seconds.median + self.case.batch / self.seconds.median

    @property
    def slower(self) -> float:
        """Factor by which the prompt prolongs a step."""
        return self.seconds.median / self.alone.median

    def details(self) -> dict[str, Any]:
        return MeasuredCase.details(self) | {"slower": self.slower}


Row: TypeAlias = PrefillRow | PrefixRow | DecodeRow | MixedRow


@dataclass(frozen=True, slots=True)
class SkippedCase:
    """A case that cannot be measured here, and why."""

    case: Case
    why: str


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """The results of a model called ``name``, until all cases were measured or the run was stopped.

    pace    the least share of its ceilings that the machine reached at the end: below 1 if other programs run on it.
            None if it was not measured
    """

    name: str
    ceilings: Ceilings
    config: EngineConfig
    rounds: int
    start: StartTimes | None
    rows: Sequence[Row]
    skipped: Sequence[SkippedCase]
    pace: float | None = None
    interrupted: bool = False

    def to_json(self) -> dict[str, Any]:
        """Plain data. Cases that were not measured are missing from their lists."""
        spec, cost, config, machine = self.ceilings.spec, self.ceilings.steps.cost, self.config, self.ceilings.machine
        rows: dict[str, list[dict[str, Any]]] = {phase: [] for phase in get_args(Phase)}
        for row in self.rows:
            rows[row.case.phase].append(self._row(row))
        return {
            "schema": SCHEMA,
            "version": twofold_version(),
            "model": {
                "name": self.name,
                "architecture": spec.architecture,
                "layers": len(spec.layers),
                "context": spec.context_length,
                "weight_bytes": cost.weight_bytes(),
                "layer_macs": cost.row_flops // 2,
                "head_macs": cost.logit_row_flops // 2,
                "kv_bytes_per_token": cost.kv_bytes(dict.fromkeys(cost.windows, 1)),
                "draft": None if self.ceilings.draft is None else _draft(self.ceilings.draft),
            },
            "machine": asdict(machine),
            "engine": {
                "context": config.context,
                "step_rows": config.limits.rows,
                "sequences": config.limits.sequences,
                "block_size": config.options.block_size,
                "kv_type": config.options.kv_type,
                "kv_blocks": config.kv_blocks,
                "prefix_caching": config.options.enable_prefix_caching,
                "threads": machine.threads,
                "isa": machine.isa,
            },
            "rounds": self.rounds,
            "start": None if self.start is None else asdict(self.start),
            **rows,
            "pace": self.pace,
            "skipped": [{"phase": s.case.phase, **asdict(s.case), "why": s.why} for s in self.skipped],
            "interrupted": self.interrupted,
        }

    def _row(self, row: Row) -> dict[str, Any]:
        limit = self.ceilings.limit(row.case)
        return {
            **asdict(row.case),
            "seconds": asdict(row.seconds),
            "limit": {"seconds": limit.seconds, "bound": limit.bound, "share": limit.share(row.seconds.median)},
            "tok_s": row.tok_s,
            **row.details(),
            "step": {"seconds": row.step.seconds, **asdict(row.step)},
        }


def machine_lines(machine: MachineLimits) -> Iterator[str]:
    """The measured ceilings of the machine."""
    yield _line("machine", f"{machine.cpu}, {count(machine.threads, 'thread')}, {machine.isa}")
    yield _line("ceilings", ", ".join(f"{r.bytes_per_s / 1e9:.1f} GB/s over {r.size >> 20} MiB" for r in machine.reads))
    int8, floats = machine.int8_macs_per_s / 1e9, machine.float_macs_per_s / 1e9
    pairs = machine.bf16_macs_per_s
    more = "" if pairs is None else f", {pairs / 1e9:,.0f} G of bfloat16"
    yield _line("", f"{int8:,.0f} G multiply-adds/s of 8-bit integers, {floats:,.0f} G of 32-bit floats{more}")


class TablePrinter:
    """Prints a run as it proceeds. The line of a case stays open until it is measured."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._phase: Phase | None = None
        self._open = False
        self._prompts: dict[int, float] = {}

    def opened(self, ceilings: Ceilings, name: str) -> None:
        """Prints the ceilings for the model called ``name``, before it is loaded."""
        cost = ceilings.steps.cost
        kv = cost.kv_bytes(dict.fromkeys(cost.windows, 1))
        row, logits = f"{cost.row_flops / 2e6:,.1f} M", f"{cost.logit_row_flops / 2e6:,.1f} M"
        macs = f"{row} multiply-adds a row and {logits} for its logits"
        self._lines(
            (
                *machine_lines(ceilings.machine),
                _line("model", f"{name}: {cost.weight_bytes() / 1e6:,.1f} MB of weights a step, {macs}"),
                _line("", f"{kv:,} bytes of keys and values a token; steps of {ceilings.step_rows:,} rows at most"),
            )
        )
        if ceilings.draft is not None:
            draft = _draft(ceilings.draft)
            reads = f"{draft['weight_bytes'] / 1e6:,.1f} MB of weights a pass, at least {duration(draft['pass_s'])}"
            more = f"{draft['kv_bytes_per_token']:,} more bytes of keys and values a token"
            self._lines([_line("draft", f"{reads}; {more}; steps are measured without drafts")])

    def started(self, start: StartTimes) -> None:
        times = f"loaded in {duration(start.load_s)}, kernels compiled in {duration(start.compile_s)}"
        first = f"first token of the first {start.tokens} tokens after {duration(start.first_token_s)}"
        self._lines([_line("start", f"{times}, {first}")])

    def expected(self, case: Case, limit: PhaseLimit) -> None:
        """Prints the next case and its limit."""
        self._end_line()
        if case.phase != self._phase:
            self._phase = case.phase
            figures = f"{'measured':>9}  {'least – most':>19}  {'tok/s':>8}  {'share':>5}  {'not model':>9}"
            self._lines(("", TITLES[case.phase], f"{'':{SIZES}}{'limit':>9}  {'bound':10}  {figures}"))
        self._write(f"{_sizes(case):{SIZES}}{duration(limit.seconds):>9}  {limit.bound:10}")
        self._open = True

    def found(self, row: Row, limit: PhaseLimit) -> None:
        if isinstance(row, PrefillRow):
            self._prompts[row.case.tokens] = row.seconds.median
        share = limit.share(row.seconds.median) or 0.0
        rate = f"{row.tok_s:,.0f}" if row.tok_s >= 100 else f"{row.tok_s:.1f}"
        spread = f"{duration(row.seconds.least)} – {duration(row.seconds.most)}"
        figures = f"{duration(row.seconds.median):>9}  {spread:>19}  {rate:>8}  {share:>5.0%}  {row.step.outside:>9.1%}"
        self._write(f"  {figures}" + "".join(f"\n{'':4}{note}" for note in self._notes(row)))
        self._end_line()

    def skipped(self, skipped: SkippedCase) -> None:
        self._lines([f"{skipped.case.phase} of {_sizes(skipped.case).strip()} was skipped: {skipped.why}."])

    def raised(self, ceilings: Ceilings) -> None:
        """Prints that the ceilings measured at the end are higher, so that reported shares are too high."""
        self._lines(["The machine is faster than measured before, so that shares are a little lower:"])
        self._lines(machine_lines(ceilings.machine))

    def busy(self, pace: float) -> None:
        """Prints the share of its ceilings that the machine reached at the end."""
        text = f"At the end the machine reached only {pace:.0%} of its ceilings: other programs run on it, "
        self._lines([text + "and may have slowed down the measurements."])

    def close(self) -> None:
        """Ends an open line."""
        self._end_line()

    def _notes(self, row: Row) -> Iterator[str]:
        match row:
            case PrefixRow():
                share = row.seconds.median / row.miss.median
                yield f"{row.cached:,} tokens cached; {share:.3f} of a miss, which takes {duration(row.miss.median)}"
            case DecodeRow():
                step = row.step
                parts = (("model", step.model_s), ("host", step.host_s), ("batch", step.batch_s), ("draw", step.draw_s))
                shown = ", ".join(f"{name} {duration(part)}" for name, part in parts)
                yield f"P99 {duration(row.p99_s)}; {shown}; beside the model {duration(step.beside_s)}"
            case MixedRow():
                prompt_s = self._prompts.get(row.case.tokens)
                alone = "" if prompt_s is None else f", {row.ttft.median / prompt_s:.2f}× of alone"
                yield (
                    f"{row.slower:.2f}× of the {duration(row.alone.median)} without the prompt; its TTFT "
                    f"{duration(row.ttft.median)} in {count(row.steps, 'step')}{alone}"
                )

    def _lines(self, lines: Iterable[str]) -> None:
        self._end_line()
        self._write("".join(f"{line.rstrip()}\n" for line in lines))

    def _end_line(self) -> None:
        if self._open:
            self._open = False
            self._write("\n")


def _sizes(case: Case) -> str:
    match case:
        case Prefill(tokens):
            return f"{tokens:6,} tokens"
        case Prefix():
            return f"{case.tokens:6,} tokens, {case.new} new"
        case Decode():
            return f"{case.batch:4,} × {case.context:,} tokens"
        case Mixed():
            return f"{case.batch:4,} × {case.context:,} + {case.tokens:,} tokens"


def _draft(draft: Ceilings) -> dict[str, Any]:
    cost = draft.steps.cost
    return {
        "weight_bytes": cost.weight_bytes(),
        "kv_bytes_per_token": cost.kv_bytes(dict.fromkeys(cost.windows, 1)),
        "pass_s": draft.pass_limit().seconds,
    }


def _line(label: str, text: str) -> str:
    return f"{label:{LABEL}}{text}"
