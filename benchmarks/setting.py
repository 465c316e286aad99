"""The model and machine of a benchmark run, and the lower bounds of time that the measured ceilings imply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from twofold.backends.cpu.backend import CpuBackend
from twofold.bench.phases.bench import PhaseBench
from twofold.bench.phases.cases import Case, Decode
from twofold.bench.phases.ceilings import Ceilings, read_ceilings
from twofold.bench.phases.report import Row
from twofold.core.limits import MachineLimits
from twofold.engine.llm import LLM
from twofold.planner.count.step import SequenceRows
from twofold.planner.predict.phase import spans_limit

STEP_ROWS: Final = 512


@dataclass(frozen=True, slots=True)
class Setting:
    """A model on this machine. ``quick`` selects tiny sizes, which only check that a part works."""

    name: str
    path: Path
    ceilings: Ceilings
    rounds: int
    quick: bool

    @classmethod
    def of(cls, name: str, path: Path, machine: MachineLimits, rounds: int, *, quick: bool) -> Setting:
        return cls(name, path, read_ceilings(path, machine, "bf16", STEP_ROWS), rounds, quick)

    def remeasured(self) -> Setting:
        """A copy with the higher of the known ceilings and those that the machine reaches now."""
        return replace(self, ceilings=self.ceilings.raised(CpuBackend(threads=self.threads).probe().now()))

    @property
    def threads(self) -> int:
        return self.ceilings.machine.threads

    @property
    def context(self) -> int:
        return self.ceilings.spec.context_length

    @property
    def vocabulary(self) -> int:
        return self.ceilings.spec.vocab_size

    def floor(self, case: Case) -> float:
        """Minimum seconds of a case: of a prompt until its first token, or of one decode step."""
        return self.ceilings.limit(case).seconds

    def serve_floor(self, streams: int, prompt: int, answer: int) -> float:
        """Minimum seconds of ``streams`` simultaneous equal requests: their prompts, then their decode steps."""
        prompts = spans_limit(self.ceilings.steps, [(streams, SequenceRows(prompt))])
        return prompts.seconds + (answer - 1) * self.floor(Decode(streams, prompt, answer))

    def measure(self, cases: Sequence[Case], rounds: int) -> list[Row]:
        """Measures each case on the engine alone."""
        context = max(case.extent(STEP_ROWS, rounds) for case in cases)
        with LLM(self.path, max_model_len=context, threads=self.threads, token_budget="fixed") as llm:
            bench = PhaseBench(llm, rounds, lambda: False)
            bench.start()
            return [row for case in cases if (row := bench.measure(case)) is not None]
