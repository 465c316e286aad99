"""How wrong predictions are, by class of model and machine: measured on runs that the constants were not fitted to.

``errors.toml`` has the day, the source, and for each class the mean of |predicted − measured| / measured of TPOT and
TTFT with so many requests open at all times: of ``known`` models, on runs other than those fitted to, and of ``new``
models, none of whose runs were fitted to. ``tests/planner/predict/make_errors.py`` computes it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Final, Literal, TypeAlias

from twofold.core.model import ModelSpec
from twofold.core.tensors import main_format
from twofold.core.values import ValueFormat
from twofold.planner.machines.machine import Machine
from twofold.planner.predict.constants import Constants

Generation: TypeAlias = Literal["hopper", "blackwell"]
Class: TypeAlias = tuple[str, str, str]
"""Kind of model (dense, experts), generation of the machine, precision of the weights."""

GENERATIONS: Final[Mapping[str, Generation]] = {"h100": "hopper", "h200": "hopper", "b200": "blackwell"}
"""Of the machines that runs were measured on."""
MACHINES: Final[Mapping[Generation, str]] = {"hopper": "H100 and H200", "blackwell": "B200"}


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean relative errors of predictions; None where nobody measured them. ``source``: on what, in words."""

    ttft: float | None = None
    tpot: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True)
class _Measured:
    """A class of the table: errors are (TPOT, TTFT), those of new models None where too few were measured."""

    rows: int
    models: tuple[str, ...]
    known: tuple[float, float]
    new_rows: int
    new: tuple[float, float] | None


def errors_for(shape: ModelSpec, machine: Machine, by: Constants) -> Errors:
    """The measured errors of predicting that model on that machine with the constants that are built in.

    Constants that were calibrated bring the error of their steps, which is that of TPOT.
    """
    if by.error is not None:
        return Errors(None, float(by.error), f"of step times, {by.error.source}")
    found = _table().get(class_of(shape, machine))
    words = words_of(shape, machine)
    if found is None:
        return Errors(source=words)
    if shape.name in found.models:
        return Errors(
            found.known[1], found.known[0], f"on {found.rows} measured runs of {words}, each excluded from the fit"
        )
    if found.new is None:
        return Errors(source=f"{words} other than {' and '.join(found.models)}")
    runs = f"on {found.new_rows} measured runs of {words}, each model excluded from the fit"
    return Errors(found.new[1], found.new[0], runs)


def error_words(errors: Errors) -> str:
    """What is known of them, in a sentence."""
    known = ((name, each) for name, each in (("TPOT", errors.tpot), ("TTFT", errors.ttft)) if each is not None)
    figures = ", ".join(f"{name} {each:.0%}" for name, each in known)
    if not figures:
        return f"Prediction error: not measured for {errors.source}."
    missing = "" if errors.ttft is not None else ", TTFT not measured"
    return f"Mean prediction error: {figures}{missing} ({errors.source})."


def class_of(shape: ModelSpec, machine: Machine) -> Class:
    """Where the table would have it."""
    kind = "experts" if shape.has_experts else "dense"
    return kind, GENERATIONS.get(machine.name, machine.name), precision(main_format(shape))


def words_of(shape: ModelSpec, machine: Machine) -> str:
    """Dense bf16 models on H100 and H200."""
    generation = GENERATIONS.get(machine.name)
    kind = "mixture-of-experts" if shape.has_experts else "dense"
    where = machine.name if generation is None else MACHINES[generation]
    return f"{kind} {precision(main_format(shape))} models on {where}"


def precision(form: ValueFormat) -> str:
    """bf16, fp8, fp4, or int8 and int4 where only weights have so few bits."""
    if form.bits >= 16 or form.arithmetic in ("fp8", "fp4"):
        return form.arithmetic
    return f"int{form.bits}"


@lru_cache(maxsize=1)
def _table() -> Mapping[Class, _Measured]:
    text = files("twofold.planner.predict").joinpath("errors.toml").read_text(encoding="utf-8")
    return {
        (each["kind"], each["generation"], each["precision"]): _Measured(
            each["rows"],
            tuple(each["models"]),
            (each["tpot"], each["ttft"]),
            each.get("new_rows", 0),
            (each["new_tpot"], each["new_ttft"]) if "new_rows" in each else None,
        )
        for each in tomllib.loads(text)["class"]
    }
