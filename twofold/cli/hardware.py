"""Machines named in flags: those of the table, and this one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twofold.core.model import ModelSpec
from twofold.planner.machines.known import find_machine
from twofold.planner.machines.machine import Machine
from twofold.planner.shapes.known import model_file

if TYPE_CHECKING:
    from twofold.planner.calibrate.here import LocalMachine

HERE: Final = "this"
"""The name of the machine that runs the command."""


def local_machine(shape: ModelSpec, model: str | None) -> LocalMachine:
    """This machine running a model, which has that name in the command."""
    from twofold.planner.calibrate.here import LocalMachine  # noqa: PLC0415 - imports the engine

    return LocalMachine.of(shape, None if model is None else model_file(model))


def named_machine(name: str, shape: ModelSpec, model: str | None) -> Machine:
    """The machine of the table, or this one. Raises ParameterError for an unknown name."""
    return local_machine(shape, model).machine if name == HERE else find_machine(name)
