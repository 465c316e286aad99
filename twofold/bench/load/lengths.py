"""Distributions of lengths (tokens, whole numbers from 1) and pauses (seconds from 0), with reproducible values.

Lengths:

    512                   fixed
    256-1024              uniform, both ends included
    uniform:512,0.5       uniform around a middle, by vLLM's range ratio: 256 to 768
    normal:512,64         mean and standard deviation
    lognormal:512,0.8     mean and coefficient of variation (standard deviation / mean)
    list:128,512,2048     one of these values, equally likely

``normal`` and ``lognormal`` take a maximum as third number: lognormal:512,0.8,4096. Samples are clipped to 1 and that
maximum, so their mean can differ a little from the given one.

Pauses: ``2``, ``1-3`` (uniform), ``exp:2`` (exponential, by its mean), ``lognormal:2,0.5``.

Values of a seed do not depend on the order of access: they are sampled in blocks, each with its own generator, seeded
with the seed, the stream and the number of the block. So the length of request 5000 does not depend on earlier
accesses, and two loads that differ only in their arrivals have the same lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import IntEnum
from functools import partial
from itertools import count
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from twofold.bench.load.base import MAX_SECONDS, MAX_TOKENS, check_number, check_positive, check_whole
from twofold.core.errors import ParameterError, closest_match, describe_name

T = TypeVar("T", int, float)

BLOCK: Final = 1024
"""Values sampled at once."""

_MAX_BLOCKS: Final = 4

SampleFunction: TypeAlias = Callable[[np.random.Generator, int], NDArray[Any]]
"""A function of a generator and a size; returns (size,) values."""


class RandomStream(IntEnum):
    """Purposes of random values. The numbers determine the values of a seed, so they never change."""

    ARRIVALS = 0
    INPUT = 1
    OUTPUT = 2
    GROUPS = 3
    TURNS = 4
    SESSIONS = 5


def generator(seed: int, stream: RandomStream, index: int) -> np.random.Generator:
    """The generator of a block, or of a session, of a stream."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, index)))


class RandomValues(Generic[T]):
    """The random values of one stream. Keeps the last sampled blocks. Raises ParameterError for an invalid seed."""

    def __init__(self, seed: int, stream: RandomStream, sample: SampleFunction) -> None:
        self._seed = check_whole("seed", seed, 0, 2**63 - 1)
        self._stream = stream
        self._sample = sample
        self._blocks: dict[int, list[T]] = {}

    def __getitem__(self, index: int) -> T:
        return self._block(index // BLOCK)[index % BLOCK]

    def __iter__(self) -> Iterator[T]:
        for block in count():
            yield from self._block(block)

    def _block(self, number: int) -> list[T]:
        found = self._blocks.get(number)
        if found is None:
            if len(self._blocks) == _MAX_BLOCKS:
                del self._blocks[next(iter(self._blocks))]
            drawn = self._sample(generator(self._seed, self._stream, number), BLOCK)
            found = self._blocks[number] = cast("list[T]", drawn.tolist())
        return found


Parsed = TypeVar("Parsed")


@dataclass(frozen=True, slots=True)
class _Distribution:
    """Distributions have ``most``, the maximum length, and ``sample``, which returns (size,) lengths."""

    kind: ClassVar[str]

    def describe(self) -> Mapping[str, Any]:
        return {"kind": self.kind, **asdict(self)}


@dataclass(frozen=True, slots=True)
class Fixed(_Distribution):
    length: int

    kind = "fixed"

    def __post_init__(self) -> None:
        check_whole("a length", self.length, 1, MAX_TOKENS)

    @property
    def most(self) -> int:
        return self.length

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        del rng  # nothing is random
        return np.full(size, self.length, np.int64)


@dataclass(frozen=True, slots=True)
class Uniform(_Distribution):
    """Lengths from ``least`` to ``most``, both included, equally likely."""

    least: int
    most: int

    kind = "uniform"

    def __post_init__(self) -> None:
        check_whole("the minimum length", self.least, 1, MAX_TOKENS)
        check_whole("the maximum length", self.most, self.least, MAX_TOKENS)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return rng.integers(self.least, self.most, size, endpoint=True)


@dataclass(frozen=True, slots=True)
class Normal(_Distribution):
    """A normal distribution, rounded and clipped to 1 and ``most``."""

    mean: float
    deviation: float
    most: int = MAX_TOKENS

    kind = "normal"

    def __post_init__(self) -> None:
        check_positive("the mean length", self.mean, MAX_TOKENS)
        check_number("the deviation of lengths", self.deviation, 0, MAX_TOKENS)
        check_whole("the maximum length", self.most, 1, MAX_TOKENS)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return _clipped(rng.normal(self.mean, self.deviation, size), self.most)


@dataclass(frozen=True, slots=True)
class LogNormal(_Distribution):
    """A log-normal distribution by its own mean and coefficient of variation, rounded and clipped to 1 and ``most``.

    With a variation c, the logarithm has variance s² = ln(1 + c²) and mean ln(mean) − s²/2.
    """

    mean: float
    variation: float
    most: int = MAX_TOKENS

    kind = "lognormal"

    def __post_init__(self) -> None:
        check_positive("the mean length", self.mean, MAX_TOKENS)
        check_number("the variation of lengths", self.variation, 0, 100)
        check_whole("the maximum length", self.most, 1, MAX_TOKENS)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        variance = math.log1p(self.variation**2)
        return _clipped(rng.lognormal(math.log(self.mean) - variance / 2, math.sqrt(variance), size), self.most)


@dataclass(frozen=True, slots=True)
class Listed(_Distribution):
    """One of ``values``, each entry equally likely."""

    values: tuple[int, ...]

    kind = "list"
    max_values: ClassVar[int] = 100_000

    def __post_init__(self) -> None:
        check_whole("the number of listed lengths", len(self.values), 1, self.max_values)
        for value in self.values:
            check_whole("a listed length", value, 1, MAX_TOKENS)

    @property
    def most(self) -> int:
        return max(self.values)

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.int64]:
        return rng.choice(np.array(self.values, np.int64), size)


Lengths: TypeAlias = Fixed | Uniform | Normal | LogNormal | Listed
"""A distribution of lengths."""


PauseKind: TypeAlias = Literal["fixed", "uniform", "exp", "lognormal"]

_PARAMETERS: Final[Mapping[PauseKind, tuple[str, ...]]] = {
    "fixed": ("seconds",),
    "uniform": ("least", "most"),
    "exp": ("mean",),
    "lognormal": ("mean", "variation"),
}


@dataclass(frozen=True, slots=True)
class Pauses:
    """A distribution of pauses in seconds. ``_PARAMETERS`` gives the meaning of ``first`` and ``second`` by kind."""

    kind: PauseKind
    first: float
    second: float = 0.0

    def __post_init__(self) -> None:
        check_number("a pause", self.first, 0, MAX_SECONDS)
        if self.kind == "uniform":
            check_number("the longest pause", self.second, self.first, MAX_SECONDS)
        else:
            check_number("the variation of pauses", self.second, 0, 100)

    def describe(self) -> Mapping[str, Any]:
        return {"kind": self.kind, **dict(zip(_PARAMETERS[self.kind], (self.first, self.second), strict=False))}

    def sample(self, rng: np.random.Generator, size: int) -> NDArray[np.float64]:
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


def parse_lengths(text: str, param: str) -> Lengths:
    """Parses lengths in the forms of the module's docstring. Raises ParameterError with ``param``."""
    examples = "512, 256-1024, uniform:512,0.5, normal:512,64, lognormal:512,0.8, list:128,512"
    return _parse(text, param, "length", _LENGTHS, examples)


def parse_pauses(text: str, param: str) -> Pauses:
    """Parses pauses in the forms of the module's docstring. Raises ParameterError with ``param``."""
    return _parse(text, param, "pause", _PAUSES, "2, 1-3, exp:2, lognormal:2,0.5")


def _parse(
    text: str, param: str, noun: str, kinds: Mapping[str, Callable[[Sequence[str]], Parsed]], examples: str
) -> Parsed:
    """Parses ``kind:numbers``, or for the kind "" one number or two with a dash."""
    kind, colon, rest = text.strip().partition(":")
    forms = f"Known: {examples}."
    try:
        if not colon:
            return kinds[""](kind.split("-", 1))
        if kind not in kinds:
            close = closest_match(kind, kinds)
            hint = f"Did you mean {close}:{rest}?" if close else forms
            raise ParameterError(f"{describe_name(kind)} is not a {noun} distribution.", param=param, hint=hint)
        return kinds[kind](rest.split(","))
    except ParameterError as error:
        raise ParameterError(f"{param} {describe_name(text)}: {error}", param=param, hint=error.hint) from None
    except (ValueError, OverflowError):
        raise ParameterError(f"{param} {describe_name(text)} is not a valid {noun}.", param=param, hint=forms) from None


def _uniform_around(values: Sequence[str]) -> Lengths:
    middle, share = values
    half = check_number("the range ratio", float(share), 0, 1) * int(middle)
    return Uniform(max(1, math.ceil(int(middle) - half)), math.floor(int(middle) + half))


def _bell(kind: type[Normal | LogNormal], values: Sequence[str]) -> Lengths:
    mean, spread, most = values if len(values) == 3 else (*values, str(MAX_TOKENS))
    return kind(float(mean), float(spread), int(most))


def _pauses(kind: PauseKind, values: Sequence[str]) -> Pauses:
    if len(values) != len(_PARAMETERS[kind]):
        raise ValueError(values)
    return Pauses(kind, *map(float, values))


_LENGTHS: Final[Mapping[str, Callable[[Sequence[str]], Lengths]]] = {
    "": lambda values: Uniform(*map(int, values)) if len(values) > 1 else Fixed(int(values[0])),
    "uniform": _uniform_around,
    "normal": partial(_bell, Normal),
    "lognormal": partial(_bell, LogNormal),
    "list": lambda values: Listed(tuple(int(value) for value in values)),
}
_PAUSES: Final[Mapping[str, Callable[[Sequence[str]], Pauses]]] = {
    "": lambda values: _pauses("uniform" if len(values) > 1 else "fixed", values),
    "exp": partial(_pauses, "exp"),
    "lognormal": partial(_pauses, "lognormal"),
}


def _clipped(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    return np.rint(np.clip(values, 1, most)).astype(np.int64)
