"""How many tokens prompts and answers have: whole numbers of at least 1, fixed or drawn.

As texts, for flags:

    512                   always so many
    256-1024              every number from 256 to 1024 as likely
    uniform:512,0.5       the same within a share of the middle, as vLLM's range ratio: 256 to 768
    normal:512,64         mean and standard deviation
    lognormal:512,0.8     mean, and standard deviation as a share of it
    list:128,512,2048     one of these, each as likely

``normal`` and ``lognormal`` take a third number, the most that may be drawn: lognormal:512,0.8,4096. What lies outside
of 1 and that most is set to it, so that the mean of what is drawn can be a little off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from twofold.bench.load.checks import MAX_TOKENS, above_zero, number, whole
from twofold.core.errors import ParameterError, closest_match, describe_name

FORMS: Final = "Known: 512, 256-1024, uniform:512,0.5, normal:512,64, lognormal:512,0.8, list:128,512."


class Lengths(Protocol):
    """A distribution of lengths."""

    @property
    def most(self) -> int:
        """The longest that can be drawn."""
        ...

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        """(size,) lengths."""
        ...

    def describe(self) -> Mapping[str, Any]:
        """``kind`` and its parameters, plain data."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    length: int

    def __post_init__(self) -> None:
        whole("a length", self.length, 1, MAX_TOKENS)

    @property
    def most(self) -> int:
        return self.length

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        del rng  # nothing is left to chance
        return np.full(size, self.length, np.int64)

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "fixed", "length": self.length}


@dataclass(frozen=True, slots=True)
class Uniform:
    """Every length from ``least`` to ``most``, both included, is as likely."""

    least: int
    most: int

    def __post_init__(self) -> None:
        whole("the least length", self.least, 1, MAX_TOKENS)
        whole("the most length", self.most, self.least, MAX_TOKENS)

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return rng.integers(self.least, self.most, size, endpoint=True)

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "uniform", "least": self.least, "most": self.most}


@dataclass(frozen=True, slots=True)
class Normal:
    """A normal distribution, rounded, and clipped to 1 and ``most``."""

    mean: float
    deviation: float
    most: int = MAX_TOKENS

    def __post_init__(self) -> None:
        above_zero("the mean length", self.mean, MAX_TOKENS)
        number("the deviation of lengths", self.deviation, 0, MAX_TOKENS)
        whole("the most length", self.most, 1, MAX_TOKENS)

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return _clipped(rng.normal(self.mean, self.deviation, size), self.most)

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "normal", "mean": self.mean, "deviation": self.deviation, "most": self.most}


@dataclass(frozen=True, slots=True)
class LogNormal:
    """A log-normal distribution by its own mean and coefficient of variation, rounded, and clipped to 1 and ``most``.

    Where the variation is c, the logarithm has variance s² = ln(1 + c²) and mean ln(mean) − s²/2.
    """

    mean: float
    variation: float
    most: int = MAX_TOKENS

    def __post_init__(self) -> None:
        above_zero("the mean length", self.mean, MAX_TOKENS)
        number("the variation of lengths", self.variation, 0, 100)
        whole("the most length", self.most, 1, MAX_TOKENS)

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        variance = math.log1p(self.variation**2)
        return _clipped(rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), size), self.most)

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "lognormal", "mean": self.mean, "variation": self.variation, "most": self.most}


@dataclass(frozen=True, slots=True)
class Listed:
    """One of ``values``, each place in it as likely."""

    values: tuple[int, ...]

    max_values: ClassVar[int] = 100_000

    def __post_init__(self) -> None:
        whole("the number of listed lengths", len(self.values), 1, self.max_values)
        for value in self.values:
            whole("a listed length", value, 1, MAX_TOKENS)

    @property
    def most(self) -> int:
        return max(self.values)

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return rng.choice(np.array(self.values, np.int64), size)

    def describe(self) -> Mapping[str, Any]:
        return {"kind": "list", "values": list(self.values)}


def parse_lengths(text: str, param: str) -> Lengths:
    """Lengths as the head of this file spells them. ParameterError with ``param`` for anything else."""
    try:
        return _parsed(text.strip(), param)
    except ParameterError as error:
        raise ParameterError(f"{param} {describe_name(text)}: {error}", param=param, hint=error.hint) from None
    except (ValueError, OverflowError):
        raise ParameterError(f"{param} {describe_name(text)} is not a valid length.", param=param, hint=FORMS) from None


def _parsed(text: str, param: str) -> Lengths:
    kind, colon, rest = text.partition(":")
    if colon:
        if kind not in _KINDS:
            close = closest_match(kind, _KINDS)
            hint = f"Did you mean {close}:{rest}?" if close else FORMS
            raise ParameterError(f"{describe_name(kind)} is not a length distribution.", param=param, hint=hint)
        return _KINDS[kind](rest.split(","))
    least, dash, most = text.partition("-")
    return Uniform(int(least), int(most)) if dash else Fixed(int(text))


def _uniform(values: list[str]) -> Lengths:
    middle, share = values
    half = number("the range ratio", float(share), 0, 1) * int(middle)
    return Uniform(max(1, math.ceil(int(middle) - half)), math.floor(int(middle) + half))


def _normal(values: list[str]) -> Lengths:
    mean, deviation, *most = values
    return Normal(float(mean), float(deviation), *_most(most))


def _lognormal(values: list[str]) -> Lengths:
    mean, variation, *most = values
    return LogNormal(float(mean), float(variation), *_most(most))


def _most(values: list[str]) -> tuple[int, ...]:
    if len(values) > 1:
        raise ValueError(values)
    return tuple(int(value) for value in values)


def _listed(values: list[str]) -> Lengths:
    return Listed(tuple(int(value) for value in values))


_KINDS: Final[Mapping[str, Callable[[list[str]], Lengths]]] = {
    "uniform": _uniform,
    "normal": _normal,
    "lognormal": _lognormal,
    "list": _listed,
}


def _clipped(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    return np.rint(np.clip(values, 1, most)).astype(np.int64)
