"""What every part of the benchmarks is told, and the least time that the measured ceilings allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twofold.cost.machine import MachineLimits
from twofold.cost.model import ModelCost, MultiplyAdds
from twofold.formats.gguf import GGUFFile
from twofold.models.read import read_model

KV_VALUE_BYTES = 2


@dataclass(frozen=True, slots=True)
class Setting:
    """A model on this machine. ``quick`` asks for tiny sizes: they show that a part works, and measure nothing."""

    name: str
    path: Path
    cost: ModelCost
    limits: MachineLimits
    rounds: int
    quick: bool

    @classmethod
    def of(cls, name: str, path: Path, limits: MachineLimits, rounds: int, *, quick: bool) -> Setting:
        with GGUFFile.open(path) as file:
            spec, _ = read_model(file.metadata, file.tensors, file.data)
            return cls(name, path, ModelCost.of(spec, file.tensors), limits, rounds, quick)

    @property
    def threads(self) -> int:
        return self.limits.threads

    @property
    def context(self) -> int:
        return self.cost.spec.context_length

    @property
    def vocabulary(self) -> int:
        return self.cost.spec.vocab_size

    def prefill_floor(self, new: int, cached: int = 0, prompts: int = 1) -> float:
        """Least seconds for prompts of ``new`` tokens each, after ``cached`` ones."""
        return self._compute(self.cost.prefill_macs(new, cached).times(prompts))

    def step_floor(self, contexts: Sequence[int]) -> float:
        """Least seconds of a step in which each of these sequences gets a token: to read or to compute, the longer."""
        read = self.cost.step_bytes(contexts, KV_VALUE_BYTES) / self.limits.read_speed(self.cost.weight_bytes)
        return max(read, self._compute(self.cost.step_macs(contexts)))

    def serve_floor(self, streams: int, prompt: int, answer: int) -> float:
        """Least seconds for ``streams`` equal requests at once: their prompts, then their steps."""
        steps = (self.step_floor([prompt + done] * streams) for done in range(1, answer))
        return self.prefill_floor(prompt, prompts=streams) + sum(steps)

    def _compute(self, macs: MultiplyAdds) -> float:
        return macs.integer / self.limits.int8_macs_per_s + macs.floating / self.limits.float_macs_per_s
