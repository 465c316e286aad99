"""Typed reads from a JSON document: what is missing or wrong is an error that names the field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from twofold.core.errors import ParameterError
from twofold.core.typed_fields import TypedFields

HINT = (
    "Give a request's record (GET /v1/twofold/requests/ID), a reply with one, the output of `twofold run --json`, or a "
    "document of `twofold bench`."
)


@dataclass(frozen=True, slots=True)
class SourceFields(TypedFields):
    """The fields of one object of a document."""

    def count(self, name: str, default: int | None = None) -> int:
        """A whole number that is not negative."""
        return self.integer(name, default, least=0, most=1 << 63)

    def optional_text(self, name: str) -> str | None:
        """A text, or None where it is absent."""
        return self.text(name) if name in self else None

    def inner(self, name: str) -> Self:
        """An object inside this one."""
        return self.within(name, self._get(name, None))

    def parts(self, name: str) -> list[Self]:
        """A list of objects."""
        self._get(name, None)
        return [self.within(f"{name}[{i}]", each) for i, each in enumerate(self.items(name))]

    def series(self, name: str) -> list[float]:
        """A list of finite numbers; empty where it is absent."""
        items = type(self)({str(i): each for i, each in enumerate(self.items(name))}, f"{self.label}: {name}")
        return [items.number(key) for key in items.values]

    def numbers(self, name: str) -> dict[str, float]:
        """An object of numbers; empty where it is absent."""
        part = self.part(name)
        return {} if part is None else {key: part.number(key) for key in part.values}

    def within(self, name: str, value: object) -> Self:
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return type(self)(value, f"{self.label}: {name}")

    def _error(self, message: str) -> ParameterError:
        return ParameterError(message, param="source", hint=HINT)
