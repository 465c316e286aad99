"""All that a run found, and the same as JSON of a stable schema.

    {"schema": "twofold.phases/1", "version": …, "model": …, "machine": …, "engine": …, "rounds": …, "start": …,
     "prefill": […], "prefix": […], "decode": […], "mixed": […], "pace": …, "skipped": […], "interrupted": false}

Times are seconds, rates are of a second. A row holds its case, ``seconds`` over rounds, ``limit`` (the least seconds,
what bounds them, and the share that was reached), ``tok_s``, and the parts of its steps as ``steps`` has them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, get_args

from twofold.bench.phases.cases import Phase, phase_of
from twofold.bench.phases.ceilings import Ceilings
from twofold.bench.phases.rows import DecodeRow, MixedRow, PrefillRow, PrefixRow, Row, SkippedCase, StartTimes
from twofold.engine.config import EngineConfig
from twofold.host.versions import twofold_version

SCHEMA: Final = "twofold.phases/1"


@dataclass(frozen=True, slots=True)
class PhaseReport:
    """What was found about a model, by its ``name``, until all was measured or somebody stopped it.

    pace    the least share of its ceilings that the machine reached when all was done; less than 1 where something else
            runs on it. None where that was not measured
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
        """Plain data. What was not measured is missing from its list; an unknown start is null."""
        rows: dict[str, list[dict[str, Any]]] = {phase: [] for phase in get_args(Phase)}
        for row in self.rows:
            rows[phase_of(row.case)].append(self._row(row))
        return {
            "schema": SCHEMA,
            "version": twofold_version(),
            "model": self._model(),
            "machine": asdict(self.ceilings.machine),
            "engine": self._engine(),
            "rounds": self.rounds,
            "start": None if self.start is None else asdict(self.start),
            **rows,
            "pace": self.pace,
            "skipped": [{"phase": phase_of(s.case), **asdict(s.case), "why": s.why} for s in self.skipped],
            "interrupted": self.interrupted,
        }

    def _model(self) -> dict[str, Any]:
        spec, cost = self.ceilings.spec, self.ceilings.steps.cost
        return {
            "name": self.name,
            "architecture": spec.architecture,
            "layers": len(spec.layers),
            "context": spec.context_length,
            "weight_bytes": cost.weight_bytes(),
            "layer_macs": cost.row_flops // 2,
            "head_macs": cost.logit_row_flops // 2,
            "kv_bytes_per_token": cost.kv_bytes(dict.fromkeys(cost.windows, 1)),
        }

    def _engine(self) -> dict[str, Any]:
        config = self.config
        return {
            "context": config.context,
            "step_rows": config.limits.rows,
            "sequences": config.limits.sequences,
            "block_size": config.block_size,
            "kv_type": config.kv_type,
            "kv_blocks": config.kv_blocks,
            "prefix_caching": config.prefix_caching,
            "threads": self.ceilings.machine.threads,
            "isa": self.ceilings.machine.isa,
        }

    def _row(self, row: Row) -> dict[str, Any]:
        limit = self.ceilings.limit(row.case)
        return {
            **asdict(row.case),
            "seconds": asdict(row.seconds),
            "limit": {"seconds": limit.seconds, "bound": limit.bound, "share": limit.share(row.seconds.median)},
            "tok_s": row.tok_s,
            **_more(row),
            "step": {"seconds": row.step.seconds, **asdict(row.step)},
        }


def _more(row: Row) -> dict[str, Any]:
    """What only rows of its kind have. ``step_count`` is of a round where a prompt is computed, else of all rounds."""
    match row:
        case PrefillRow():
            return {"step_count": row.steps}
        case PrefixRow():
            return {"miss": asdict(row.miss), "cached_tokens": row.cached}
        case DecodeRow():
            return {"p99_s": row.p99_s, "step_count": row.steps}
        case MixedRow():
            return {
                "alone": asdict(row.alone),
                "slower": row.slower,
                "ttft": asdict(row.ttft),
                "step_count": row.steps,
            }
