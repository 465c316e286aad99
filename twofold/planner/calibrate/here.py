"""This machine for planners: its calibration for a model, or else its limits, measured now if they are not known."""

from __future__ import annotations

from pathlib import Path

from twofold.core.model import ModelSpec
from twofold.engine.config import EngineOptions
from twofold.planner.calibrate.run import ENGINE, calibrated
from twofold.planner.count.memory import streamed_bytes
from twofold.planner.machines.machine import engine_setting, machine_of
from twofold.planner.names import NamedMachine


def named_here(spec: ModelSpec, file: Path | None) -> NamedMachine:
    """This machine running the model; ``file`` is the model's, if it is here."""
    known = None if file is None else calibrated(file)
    if known is not None:
        return NamedMachine(known.machine, engine_setting(), known.constants)
    probe = EngineOptions().open_backend().probe(streamed_bytes(spec, ENGINE))
    return NamedMachine(machine_of(spec, probe.limits()), engine_setting())
