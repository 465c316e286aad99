"""How long people think before they answer back: seconds of at least 0, fixed or drawn.

As texts, for flags:

    2                     always so long
    1-3                   every time from 1 to 3 s as likely
    exp:2                 exponential, by its mean
    lognormal:2,0.5       mean, and standard deviation as a share of it
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from twofold.bench.load.checks import MAX_SECONDS, number
from twofold.core.errors import ParameterError, closest_match, describe_name

Kind: TypeAlias = Literal["fixed", "uniform", "exp", "lognormal"]

FORMS: Final = "Known: 2, 1-3, exp:2, lognormal:2,0.5."


@dataclass(frozen=True, slots=True)
class Pauses:
    """A distribution of pauses. ``first`` and ``second`` are the pause alone for "fixed", the least and the most for
    "uniform", the mean for "exp", mean and coefficient of variation for "lognormal"."""

    kind: Kind
    first: float
    second: float = 0.0

    def __post_init__(self) -> None:
        number("a pause", self.first, 0, MAX_SECONDS)
        if self.kind == "uniform":
            number("the longest pause", self.second, self.first, MAX_SECONDS)
        else:
            number("the variation of pauses", self.second, 0, 100)

    def describe(self) -> Mapping[str, Any]:
        said: dict[Kind, dict[str, float]] = {
            "fixed": {"seconds": self.first},
            "uniform": {"least": self.first, "most": self.second},
            "exp": {"mean": self.first},
            "lognormal": {"mean": self.first, "variation": self.second},
        }
        return {"kind": self.kind, **said[self.kind]}

    def draw(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
        """(size,) seconds."""
        match self.kind:
            case "fixed":
                return np.full(size, float(self.first))
            case "uniform":
                return rng.uniform(self.first, self.second, size)
            case "exp":
                return rng.exponential(self.first, size)
            case "lognormal":
                variance = math.log1p(self.second**2)
                return self.first * rng.lognormal(-variance / 2, math.sqrt(variance), size)


def parse_pauses(text: str, param: str) -> Pauses:
    """Pauses as the head of this file spells them. ParameterError with ``param`` for anything else."""
    try:
        return _parsed(text.strip(), param)
    except ParameterError as error:
        raise ParameterError(f"{param} {describe_name(text)}: {error}", param=param, hint=error.hint) from None
    except ValueError:
        raise ParameterError(f"{param} {describe_name(text)} is not a valid pause.", param=param, hint=FORMS) from None


def _parsed(text: str, param: str) -> Pauses:
    kind, colon, rest = text.partition(":")
    if colon:
        if kind not in _KINDS:
            close = closest_match(kind, _KINDS)
            hint = f"Did you mean {close}:{rest}?" if close else FORMS
            raise ParameterError(f"{describe_name(kind)} is not a pause distribution.", param=param, hint=hint)
        return _KINDS[kind](rest)
    least, dash, most = text.partition("-")
    return Pauses("uniform", float(least), float(most)) if dash else Pauses("fixed", float(text))


def _lognormal(text: str) -> Pauses:
    mean, variation = text.split(",")
    return Pauses("lognormal", float(mean), float(variation))


_KINDS: Final[Mapping[str, Callable[[str], Pauses]]] = {
    "exp": lambda text: Pauses("exp", float(text)),
    "lognormal": _lognormal,
}
