"""Results of a run as records and as JSON of a stable schema.

    {"schema": "twofold.phases/1", "version": …, "model": …, "machine": …, "engine": …, "rounds": …, "start": …,
     "prefill": […], "prefix": […], "decode": […], "mixed": […], "pace": …, "skipped": […], "interrupted": false}

All times are seconds. A row has its case; ``seconds`` over rounds, of a prompt until its first token or of one step;
``limit`` (the least seconds, their bound, and the share that was reached); ``tok_s``; and the parts of its steps.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import median
from typing import Any, Final, Generic, Self, TypeAlias, TypeVar, get_args

from twofold.bench.phases.cases import Case, Decode, Mixed, Phase, Prefill, Prefix
from twofold.bench.phases.ceilings import Ceilings
from twofold.core.report import StepReport
from twofold.engine.config import EngineConfig
from twofold.host.versions import twofold_version

SCHEMA: Final = "twofold.phases/1"

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


def percentile(values: Iterable[float], share: float) -> float:
    """The least of at least one value that at least this share of the values does not exceed (nearest rank)."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


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
        own = {name: value for name, value in asdict(self).items() if name not in ("case", "seconds", "step")}
        return {{"cached": "cached_tokens", "steps": "step_count"}.get(name, name): own[name] for name in own}


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
