"""Typed reads from a JSON document: what is missing or wrong is an error that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

from twofold.core.errors import ParameterError, told

HINT = (
    "Give a request's record (GET /v1/twofold/requests/ID), a reply with one, the output of `twofold run --json`, or a "
    "document of `twofold bench`."
)


@dataclass(frozen=True, slots=True)
class SourceFields:
    """The fields of one object; ``label`` says whose they are. A field that is null counts as absent."""

    values: Mapping[str, object]
    label: str

    def __contains__(self, name: str) -> bool:
        return self.values.get(name) is not None

    def number(self, name: str, default: float | None = None) -> float:
        """A finite number that is not negative."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value) or value < 0:
            raise self._wrong(name, value, "a number that is not negative")
        return float(value)

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number that is not negative."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise self._wrong(name, value, "a whole number that is not negative")
        return value

    def text(self, name: str) -> str | None:
        value = self.values.get(name)
        if value is not None and not isinstance(value, str):
            raise self._wrong(name, value, "text")
        return value

    def part(self, name: str) -> SourceFields:
        """An object inside this one."""
        return self.within(name, self._get(name, None))

    def parts(self, name: str) -> list[SourceFields]:
        """A list of objects."""
        value = self._get(name, None)
        if not isinstance(value, list):
            raise self._wrong(name, value, "a list")
        return [self.within(f"{name}[{i}]", each) for i, each in enumerate(value)]

    def series(self, name: str) -> list[float]:
        """A list of finite numbers; empty where it is absent."""
        value = self.values.get(name, [])
        if not isinstance(value, list | None):
            raise self._wrong(name, value, "a list")
        items = SourceFields({str(i): each for i, each in enumerate(value or ())}, f"{self.label}: {name}")
        return [items.number(key) for key in items.values]

    def numbers(self, name: str) -> dict[str, float]:
        """An object of numbers; empty where it is absent."""
        part = self.part(name) if name in self else SourceFields({}, self.label)
        return {key: part.number(key) for key in part.values}

    def within(self, name: str, value: object) -> SourceFields:
        if not isinstance(value, Mapping):
            raise self._wrong(name, value, "an object")
        return SourceFields(value, f"{self.label}: {name}")

    def _get(self, name: str, default: object) -> object:
        value = self.values.get(name)
        if value is not None:
            return value
        if default is None:
            raise ParameterError(f"{self.label} lacks the field {name!r}.", param="source", hint=HINT)
        return default

    def _wrong(self, name: str, value: object, wanted: str) -> ParameterError:
        return ParameterError(
            f"{self.label}: the field {name!r} is {told(value)}, but must be {wanted}.", param="source", hint=HINT
        )
