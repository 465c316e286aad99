"""Seconds of one matrix product on a GPU, by rows: what the steps' model takes a mean of.

With n rows, a matrix of ``outputs`` × ``inputs``, tiles of r × c results, and a device of ``cores`` multiprocessors
that each compute one tile at a time:

    waves      w = ⌈n / r⌉ · ⌈outputs / c⌉ / cores;  beyond one, w + tail · (⌈w⌉ − w)
    compute    mean over tiles of waves · cores · 2 · r · c · inputs / (η_c · peak)
    memory     bytes of matrix, inputs and results / (η_m · bandwidth)
    seconds    t_start + (memory^s + compute^s)^(1/s)

Rows are rounded up to whole tiles, and the last wave leaves multiprocessors idle: ``tail`` of that idleness costs, for
libraries split the inner sum where few tiles are left ("tile and wave quantisation", NVIDIA, Matrix Multiplication
Background User's Guide). Which tile a library takes nobody tells, hence the mean over usual ones. ``s`` says how well
reading and computing overlap: large is wholly.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from twofold.planner.machines.machine import Cited, Machine

TILES: Final = ((128, 256), (256, 128), (128, 128))
CORES: Final[Mapping[str, Cited]] = {
    "a100-40": Cited(108, "NVIDIA A100 Tensor Core GPU Architecture whitepaper (2020)"),
    "a100-80": Cited(108, "NVIDIA A100 Tensor Core GPU Architecture whitepaper (2020)"),
    "h100": Cited(132, "NVIDIA H100 Tensor Core GPU Architecture whitepaper (2022), SXM5"),
    "h200": Cited(132, "NVIDIA H200: the H100's chip"),
}
"""Multiprocessors by machine."""


@dataclass(frozen=True, slots=True)
class Gemm:
    """Products of n rows with a matrix of 16-bit values."""

    rows: int
    outputs: int
    inputs: int

    @property
    def nbytes(self) -> int:
        return 2 * (self.outputs * self.inputs + self.rows * (self.outputs + self.inputs))


@dataclass(frozen=True, slots=True)
class GemmConstants:
    """The five that are fitted: see the module."""

    eta_m: float = 0.9
    eta_c: float = 0.75
    t_start: float = 5e-6
    tail: float = 0.2
    sharpness: float = 3.0

    def seconds(self, gemm: Gemm, machine: Machine) -> float:
        """Seconds on a machine that ``CORES`` knows; KeyError elsewhere."""
        memory = gemm.nbytes / (self.eta_m * machine.bandwidth)
        compute = self._tiles(gemm, int(CORES[machine.name])) * 2 * gemm.inputs / (self.eta_c * machine.peak("fp16"))
        longer, shorter = max(memory, compute), min(memory, compute)
        return self.t_start + longer * math.pow(1 + math.pow(shorter / longer, self.sharpness), 1 / self.sharpness)

    def _tiles(self, gemm: Gemm, cores: int) -> float:
        """Results that are computed, those of idle multiprocessors and of tiles' empty parts included."""
        total = 0.0
        for rows, columns in TILES:
            waves = -(-gemm.rows // rows) * -(-gemm.outputs // columns) / cores
            if waves > 1:
                waves += self.tail * (math.ceil(waves) - waves)
            total += waves * rows * columns
        return total * cores / len(TILES)


FITTED: Final[Mapping[str, GemmConstants]] = {
    "a100-80": GemmConstants(eta_m=1.0, eta_c=0.76, t_start=6.0e-6, tail=0.0, sharpness=29.0),
    "h100": GemmConstants(eta_m=0.99, eta_c=0.75, t_start=7.6e-6, tail=0.34, sharpness=3.9),
}
"""Fitted on half of Vidur's profiles of Llama-2-7B and Llama-2-70B; mean errors on the other halves: 7.6% and 8.0%."""
