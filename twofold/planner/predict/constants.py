"""Constants between counted work and seconds, each with its source; and the errors of predictions by them.

    eta_m     share of the peak bandwidth at which weights are read
    eta_c     share of the peak at which products are computed
    eta_k     share of the peak bandwidth at which keys and values are read and written
    eta_l     share of the links' bandwidth
    overlap   share of the shorter of reading and multiplying that passes during the longer one
    t_layer   seconds that each layer of a step takes beside its work: starts of kernels, gaps between them
    t_step    seconds that each step takes beside its work: planning, tables, sampling
    t_req     seconds for each sequence of a step: planning, delivery of its token
    t_ar      seconds of an all-reduce of almost no bytes
    t_first   seconds that a request spends outside of steps before its first token
    ahead     other prompts that are computed before a request's own, if that many others are open
    ahead_c   further ones, as a share of the other open requests

Shares are above 0 (``overlap`` may be 0) and at most 1, times and ``ahead`` not negative: no prediction is
below the speed of light. The constants of machines that were not calibrated are below.

``errors.toml`` has the errors by class of model and machine: the day, the source, and for each class the mean of
|predicted − measured| / measured of TPOT and TTFT with a constant number of open requests: of ``known`` models, on runs
other than those fitted to, and of ``new`` models, none of whose runs were fitted to.
``tests/planner/predict/make_errors.py`` computes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any, Final, Literal, Self, TypeAlias

from twofold.core.model import ModelSpec
from twofold.core.tensors import main_format
from twofold.core.values import ValueFormat
from twofold.planner.machines.machine import Cited, Machine

Generation: TypeAlias = Literal["hopper", "blackwell"]

SHARES: Final = ("eta_m", "eta_c", "eta_k", "eta_l")
TIMES: Final = ("t_layer", "t_step", "t_req", "t_ar", "t_first")
PROMPTS: Final = ("ahead", "ahead_c")
OVERLAP: Final = "overlap"
NAMES: Final = (*SHARES, OVERLAP, *TIMES, *PROMPTS)
PERFECT: Final = Cited(1.0, "the data sheet: nothing is lost")
FREE: Final = Cited(0.0, "nothing is spent outside of the work")
ALONE: Final = Cited(0.0, "no prompt waits for another one")
WHOLLY: Final = Cited(1.0, "the machine reads while it multiplies")


@dataclass(frozen=True, slots=True)
class Constants:
    """A set of constants.

    ``error``: mean of |predicted − measured| / measured on steps that a calibration did not fit.
    """

    eta_m: Cited = PERFECT
    eta_c: Cited = PERFECT
    eta_k: Cited = PERFECT
    eta_l: Cited = PERFECT
    overlap: Cited = WHOLLY
    t_layer: Cited = FREE
    t_step: Cited = FREE
    t_req: Cited = FREE
    t_ar: Cited = FREE
    t_first: Cited = FREE
    ahead: Cited = ALONE
    ahead_c: Cited = ALONE
    error: Cited | None = None

    def __post_init__(self) -> None:
        for name in SHARES:
            if not 0 < getattr(self, name) <= 1:
                raise ValueError(f"{name} is a share above 0 and at most 1, not {getattr(self, name)}")
        if not 0 <= self.overlap <= 1:
            raise ValueError(f"overlap is a share from 0 to 1, not {self.overlap}")
        for name in (*TIMES, *PROMPTS):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"{name} is a {'time' if name in TIMES else 'number'} ≥ 0, not {getattr(self, name)}")

    def values(self) -> dict[str, Cited]:
        """Shares, times and numbers by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name in NAMES}

    def prompts_ahead(self, batch: int) -> float:
        """Other prompts that are computed before a request's own, of ``batch`` open requests: at most all others."""
        others = batch - 1
        return min(others, self.ahead + self.ahead_c * others)

    def having(self, values: Mapping[str, float], source: str) -> Self:
        """A copy with other values for some, all from one source."""
        return replace(self, **{name: Cited(value, source) for name, value in values.items()})


BARE: Final = Constants()
"""The bare roofline: data sheets alone."""

RULES: Final = "rule of thumb: 80% of bandwidth, 70% of arithmetic"
EFFICIENT: Final = BARE.having({"eta_m": 0.8, "eta_c": 0.7, "eta_k": 0.8}, RULES)
"""The roofline with the usual efficiencies."""


_RANGE: Final = "middle of the published range 0.8–0.95 for GPUs; not fitted"
_LINKS: Final = "fitted on Vidur's all-reduce profile of an H100 server with 2, 4 and 8 devices; mean error 9%"
_UNDER: Final = "under vLLM, SGLang and TensorRT-LLM (aiconfigurator-core 0.12.0)"
_SERVED: Final = (
    f"fitted on TPOT of 545 served runs: Llama 3.1 8B and 70B, Qwen3-32B in bf16 and fp8 on H100 and H200, {_UNDER}"
)
_FIRST: Final = "fitted on TTFT of 166 of those runs, whose outputs have at least 1,000 tokens"
_AHEAD: Final = "fitted on TTFT of 528 of those runs"
_EXPERTS_HOPPER: Final = f"fitted on 427 served runs of five models with experts on H100 and H200, {_UNDER}"
_DENSE_BLACKWELL: Final = f"fitted on 184 served runs of Llama 3.1 70B and Qwen3-32B in fp8 and fp4 on B200, {_UNDER}"
_EXPERTS_BLACKWELL: Final = f"fitted on 406 served runs of four models with experts on B200, {_UNDER}"

GPU: Final[Constants] = Constants(
    eta_m=Cited(0.9, _RANGE),
    eta_c=Cited(0.824, _SERVED),
    eta_k=Cited(0.900, _SERVED),
    eta_l=Cited(0.78, _LINKS),
    t_layer=Cited(50.1e-6, _SERVED),
    t_req=Cited(26.4e-6, _SERVED),
    t_ar=Cited(9.05e-6, _SERVED),
    t_first=Cited(30e-3, _FIRST),
    ahead=Cited(0.0, _AHEAD),
    ahead_c=Cited(0.121, _AHEAD),
)
"""Servers with dense models on NVIDIA GPUs in 2026. ``t_layer`` includes ``t_step``: the data cannot separate them."""

EXPERTS_HOPPER: Final = GPU.having(
    {"eta_c": 0.249, "eta_k": 0.437, "t_layer": 90e-6, "t_req": 12.9e-6, "t_ar": 2.14e-6}
    | {"ahead": 0.4, "ahead_c": 0.073},
    _EXPERTS_HOPPER,
)
DENSE_BLACKWELL: Final = GPU.having(
    {"eta_c": 0.473, "eta_k": 0.987, "t_layer": 65.7e-6, "t_req": 25.2e-6, "t_ar": 0.0} | {"ahead_c": 0.0611},
    _DENSE_BLACKWELL,
)
EXPERTS_BLACKWELL: Final = GPU.having(
    {"eta_c": 0.413, "eta_k": 0.476, "t_layer": 89.8e-6, "t_req": 0.0, "t_ar": 1.92e-6}
    | {"ahead": 1.06, "ahead_c": 0.0887},
    _EXPERTS_BLACKWELL,
)

_BESIDE: Final = (
    "chosen by steps of SmolLM2-135M and Qwen2.5-Coder 0.5B and 1.5B on two cores (Zen 4), 2026-11-24: with 0, 0.4 "
    "and 1 held-out steps err by 9.0%, 7.0% and 8.5%, draft rows by up to 18%, 12% and 42%"
)
CPU: Final[Constants] = BARE.having(
    {"eta_m": 0.8, "eta_c": 0.6, "eta_k": 0.6, "t_step": 0.5e-3},
    "assumed for processors; `twofold doctor --calibrate` measures this one",
).having({"overlap": 0.4}, _BESIDE)

GENERATIONS: Final[Mapping[str, Generation]] = {"h100": "hopper", "h200": "hopper", "b200": "blackwell"}
"""Of the machines on which served runs were measured."""
FITTED: Final[Mapping[tuple[str, bool], Constants]] = {
    ("hopper", False): GPU,
    ("hopper", True): EXPERTS_HOPPER,
    ("blackwell", False): DENSE_BLACKWELL,
    ("blackwell", True): EXPERTS_BLACKWELL,
}
"""By the machine's generation, and whether the model has experts."""


def constants_for(machine: Machine, shape: ModelSpec) -> Constants:
    """Constants of a machine that runs such a model: fitted for GPUs, rules of thumb for others.

    GPUs of other generations get Hopper's.
    """
    if machine.kind != "gpu":
        return CPU if machine.kind == "cpu" else EFFICIENT
    return FITTED[GENERATIONS.get(machine.name, "hopper"), shape.has_experts]


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
    """As in "dense bf16 models on H100 and H200", "dense Q4_1 models on this machine"."""
    generation = GENERATIONS.get(machine.name)
    kind = "mixture-of-experts" if shape.has_experts else "dense"
    where = machine.name if generation is None else MACHINES[generation]
    form = main_format(shape)
    known = precision(form)
    return f"{kind} {form.name if known.startswith('int') else known} models on {where}"


def precision(form: ValueFormat) -> str:
    """bf16, fp8 or fp4; int8 or int4 where only the weights have so few bits."""
    if form.bits >= 16 or form.arithmetic in ("fp8", "fp4"):
        return form.arithmetic
    return f"int{form.bits}"


@lru_cache(maxsize=1)
def _table() -> Mapping[Class, Mapping[str, Any]]:
    import tomllib  # noqa: PLC0415 - start-up time of those that predict without errors
    from importlib.resources import files  # noqa: PLC0415

    text = files("twofold.planner.predict").joinpath("errors.toml").read_text(encoding="utf-8")
    return {(each["kind"], each["generation"], each["precision"]): each for each in tomllib.loads(text)["class"]}
