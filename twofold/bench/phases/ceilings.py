"""The least time of a case on this machine, computed before it is measured.

With W bytes of weights, kv(c) bytes of K and V after c tokens, R rows of a step, B sequences, S tokens of a prompt:

    prefill    ⌈S/R⌉ · W read; multiply-adds of S rows
    prefix     ⌈new/R⌉ · W and kv(S) read; multiply-adds of the new rows, which attend to all before them
    decode     W + Σ kv(c) read; multiply-adds of B rows: of one step, halfway
    mixed      k = ⌈S/(R − B)⌉ steps that each read W + Σ kv(c); multiply-adds of the prompt and of k · B rows, by k

The limit is the longer of reading and computing, as ``cost.predict.phase`` has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from twofold.bench.phases.cases import Case, Decode, Mixed, Prefill, Prefix
from twofold.core.kv_layout import KVType
from twofold.core.limits import MachineLimits, best_of
from twofold.core.model import ModelSpec
from twofold.engine.draft_source import open_draft
from twofold.formats.base import open_model
from twofold.models.read import read_model
from twofold.planner.count.step import SequenceRows
from twofold.planner.predict.phase import PhaseLimit, local_steps, prefill_limit, spans_limit
from twofold.planner.predict.steps import StepPredictor


@dataclass(frozen=True)
class Ceilings:
    """The costs of a model and the limits of the machine; ``draft`` has those of its draft model, None without one."""

    spec: ModelSpec
    machine: MachineLimits
    kv_type: KVType
    step_rows: int
    draft: Ceilings | None = None

    @cached_property
    def steps(self) -> StepPredictor:
        """Predicts steps of the model on the machine."""
        return local_steps(self.spec, self.machine, self.kv_type)

    def limit(self, case: Case) -> PhaseLimit:
        """Least seconds of a prompt until its first token, or of one step with decoding."""
        match case:
            case Prefill(tokens):
                return prefill_limit(self.steps, tokens, chunk=self.step_rows)
            case Prefix():
                read = self.steps.cost.read_bytes([(1, SequenceRows(1, case.tokens - 1))])
                passes = -(-case.new // self.step_rows)
                rows = [(1, SequenceRows(case.new, case.cached))]
                return spans_limit(self.steps, rows, passes=passes, kv_read=read)
            case Decode():
                rows = [(case.batch, SequenceRows(1, case.context + (case.steps + 1) // 2 - 1))]
                return spans_limit(self.steps, rows, kv_read=self.steps.cost.read_bytes(rows))
            case Mixed():
                passes = case.prompt_steps(self.step_rows)
                rows = [(passes * case.batch, SequenceRows(1, case.context - 1))]
                read = self.steps.cost.read_bytes(rows)
                whole = spans_limit(self.steps, [(1, SequenceRows(case.tokens)), *rows], passes=passes, kv_read=read)
                return PhaseLimit(whole.seconds / passes, whole.bound)

    def raised(self, machine: MachineLimits) -> Ceilings:
        """The best of both measurements, since other programs can only slow one down."""
        draft = None if self.draft is None else self.draft.raised(machine)
        return replace(self, machine=best_of(self.machine, machine), draft=draft)

    def ratios(self, machine: MachineLimits) -> list[float]:
        """Another measurement in shares of these ceilings: reading, for sizes measured in both, and computing.

        Above 1 a ceiling was too low.
        """
        known = self.machine
        speeds = {read.size: read.bytes_per_s for read in known.reads}
        before, now = known.bf16_macs_per_s, machine.bf16_macs_per_s
        return [
            *(read.bytes_per_s / speeds[read.size] for read in machine.reads if read.size in speeds),
            machine.int8_macs_per_s / known.int8_macs_per_s,
            machine.float_macs_per_s / known.float_macs_per_s,
            *([now / before] if now and before else []),
        ]

    def pass_limit(self) -> PhaseLimit:
        """Least seconds of a pass of one row, as a draft model makes for each draft of a sequence."""
        return self.limit(Decode(1, 1, 1))


def read_ceilings(
    path: Path, machine: MachineLimits, kv_type: KVType, step_rows: int, draft_path: Path | None = None
) -> Ceilings:
    """Reads the model of a GGUF file, and its draft model. Raises the errors of reading them."""
    with open_model(path) as file:
        spec, _ = read_model(file)
        draft = None
        if draft_path is not None:
            with open_draft(draft_path, path, file, None) as model:
                draft = Ceilings(model.spec, machine, kv_type, step_rows)
        return Ceilings(spec, machine, kv_type, step_rows, draft)
