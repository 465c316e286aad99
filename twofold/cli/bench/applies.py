"""Flags that say nothing to what was asked for: each is an error, for who gave it expects that it does something."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from twofold.core.errors import ParameterError

if TYPE_CHECKING:
    from twofold.cli.bench.options import LoadOptions, MeasureOptions, TraceOptions

Mode: TypeAlias = Literal["trace", "rates", "concurrencies", "search", "load"]

SHAPE: Final = ("input_tokens", "output_tokens", "shared_prefix", "prefix_groups", "turns", "think_time")
ARRIVALS: Final = ("arrivals", "burstiness")
DECISIONS: Final = ("attainment", "confidence", "precision")
WORDS: Final[Mapping[Mode, str]] = {
    "trace": "a --trace says for itself",
    "rates": "--rates do not use",
    "concurrencies": "--concurrencies do not use",
    "search": "a search for the highest rate does not use",
    "load": "a single load does not use",
}
UNUSED: Final[Mapping[Mode, tuple[str, ...]]] = {
    "trace": ("duration", "ramp", *ARRIVALS, *SHAPE, *DECISIONS),
    "rates": ("rate", "requests", "ramp", *DECISIONS),
    "concurrencies": ("rate", "concurrency", *ARRIVALS, *DECISIONS),
    "search": ("requests", "ramp"),
    "load": DECISIONS,
}


def check_all_apply(mode: Mode, load: LoadOptions, trace: TraceOptions, measure: MeasureOptions) -> None:
    """Raises ParameterError for a flag that ``mode`` has no use for."""
    given = {*_given(load), *_given(measure)}
    for name in UNUSED[mode]:
        if name in given:
            raise _useless(name, WORDS[mode])
    of_trace = set(_given(trace)) - {"trace"}
    if mode != "trace" and of_trace:
        raise _useless(min(of_trace), "nothing uses without a --trace")
    if mode != "trace" and "think_time" in given and "turns" not in given:
        raise _useless("think_time", "nothing uses without --turns")


def _given(options: Any) -> Iterator[str]:
    """Fields that differ from what is there without a flag."""
    for field in fields(options):
        usual = field.default_factory() if field.default_factory is not MISSING else field.default
        if getattr(options, field.name) != usual:
            yield field.name


def _useless(name: str, why: str) -> ParameterError:
    flag = name.replace("_", "-")
    return ParameterError(f"--{flag} has no effect: {why}.", param=flag, hint="Remove it.")
