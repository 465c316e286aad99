"""This machine for planners: its calibration for a model, or else its limits, measured now if they are not known."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Self

from twofold.backends.cpu.backend import CpuBackend
from twofold.core.model import ModelSpec
from twofold.planner.calibrate.run import ENGINE, calibrated
from twofold.planner.count.memory import streamed_bytes
from twofold.planner.machines.machine import Machine, machine_of
from twofold.planner.predict.constants import Constants, constants_for


@dataclass(frozen=True, slots=True)
class LocalMachine:
    """``fitted`` are the constants of its calibration for the model; None before the first one."""

    machine: Machine
    fitted: Constants | None

    @classmethod
    def of(cls, shape: ModelSpec, file: Path | None) -> Self:
        """This machine running the model; ``file`` is the model's, if it is here."""
        known = None if file is None else calibrated(file)
        if known is not None:
            return cls(known.machine, known.constants)
        return cls(machine_of(shape, CpuBackend().probe(streamed_bytes(shape, ENGINE)).limits()), None)

    def constants(self, machine: Machine, shape: ModelSpec) -> Constants:
        """Those of the calibration for this machine, and the built-in ones for others."""
        fitted = self.fitted if machine.name == self.machine.name else None
        return fitted or constants_for(machine, shape)
