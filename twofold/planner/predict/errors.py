"""Errors of predictions by class of model and machine, measured on runs that the constants were not fitted to.

``errors.toml`` has the day, the source, and for each class the mean of |predicted − measured| / measured of TPOT and
TTFT with a constant number of open requests: of ``known`` models, on runs other than those fitted to, and of ``new``
models, none of whose runs were fitted to. ``tests/planner/predict/make_errors.py`` computes it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, Final, TypeAlias

from twofold.core.model import ModelSpec
from twofold.core.tensors import main_format
from twofold.core.values import ValueFormat
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.constants import GENERATIONS, Constants, Generation

Class: TypeAlias = tuple[str, str, str]
"""Kind of model (dense, experts), generation of the machine, precision of the weights."""

MACHINES: Final[Mapping[Generation, str]] = {"hopper": "H100 and H200", "blackwell": "B200"}


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean relative errors of predictions; None if not measured. ``source`` describes the runs."""

    ttft: float | None = None
    tpot: float | None = None
    source: str = ""


def errors_for(shape: ModelSpec, machine: Machine, by: Constants) -> Errors:
    """Measured errors of predictions for that model on that machine, with the constants that are built in.

    Calibrated constants have the error of their steps, which is that of TPOT.
    """
    if by.error is not None:
        return Errors(None, float(by.error), f"of step times, {by.error.source}")
    found = _table().get(class_of(shape, machine))
    words = words_of(shape, machine)
    if found is None:
        return Errors(source=words)
    if shape.name in found["models"]:
        runs = f"on {found['rows']} measured runs of {words}, each excluded from the fit"
        return Errors(found["ttft"], found["tpot"], runs)
    if "new_rows" not in found:
        return Errors(source=f"{words} other than {' and '.join(found['models'])}")
    runs = f"on {found['new_rows']} measured runs of {words}, each model excluded from the fit"
    return Errors(found["new_ttft"], found["new_tpot"], runs)


def error_words(errors: Errors) -> str:
    """The errors in a sentence."""
    known = ((name, each) for name, each in (("TPOT", errors.tpot), ("TTFT", errors.ttft)) if each is not None)
    figures = ", ".join(f"{name} {each:.0%}" for name, each in known)
    if not figures:
        return f"Prediction error: not measured for {errors.source}."
    missing = "" if errors.ttft is not None else ", TTFT not measured"
    return f"Mean prediction error: {figures}{missing} ({errors.source})."


def class_of(shape: ModelSpec, machine: Machine) -> Class:
    """The key in the table."""
    kind = "experts" if shape.has_experts else "dense"
    return kind, GENERATIONS.get(machine.name, machine.name), precision(main_format(shape))


def words_of(shape: ModelSpec, machine: Machine) -> str:
    """As in "dense bf16 models on H100 and H200"."""
    generation = GENERATIONS.get(machine.name)
    kind = "mixture-of-experts" if shape.has_experts else "dense"
    where = machine.name if generation is None else MACHINES[generation]
    return f"{kind} {precision(main_format(shape))} models on {where}"


def precision(form: ValueFormat) -> str:
    """bf16, fp8 or fp4; int8 or int4 where only the weights have so few bits."""
    if form.bits >= 16 or form.arithmetic in ("fp8", "fp4"):
        return form.arithmetic
    return f"int{form.bits}"


@lru_cache(maxsize=1)
def _table() -> Mapping[Class, Mapping[str, Any]]:
    text = files("twofold.planner.predict").joinpath("errors.toml").read_text(encoding="utf-8")
    return {(each["kind"], each["generation"], each["precision"]): each for each in tomllib.loads(text)["class"]}
