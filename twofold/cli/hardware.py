"""Models and machines named in flags: those of the tables, files, and this machine."""

from __future__ import annotations

from twofold.core.model import ModelSpec
from twofold.planner.names import HERE, NamedMachine, Names
from twofold.planner.shapes.known import model_file, resolve_shape


class LocalNames(Names):
    """Also files of models, and this machine: as it was calibrated for the model, or else measured."""

    def spec(self, model: str, weights: str | None = None) -> ModelSpec:
        """Raises what ``resolve_shape`` raises."""
        return resolve_shape(model, weights)

    def machine(self, hardware: str, spec: ModelSpec, model: str | None) -> NamedMachine:
        if hardware != HERE:
            return super().machine(hardware, spec, model)
        from twofold.planner.calibrate.here import named_here  # noqa: PLC0415 - imports the engine

        return named_here(spec, None if model is None else model_file(model))
