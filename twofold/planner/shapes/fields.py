"""Typed reads from a model's configuration: what is missing or wrong is an error that names the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from twofold.core.errors import FormatError, told

LARGEST: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ConfigFields:
    """The fields of one object of a configuration; ``label`` names the file, ``defaults`` what its class assumes.

    A field that is null counts as absent.
    """

    values: Mapping[str, object]
    label: str
    defaults: Mapping[str, object]

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def integer(self, name: str, default: int | None = None, *, least: int = 1) -> int:
        """A whole number of at least ``least``."""
        value = self._get(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, value, "a whole number")
        if not least <= value <= LARGEST:
            raise self.wrong(name, value, f"between {least} and {LARGEST}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """True or false."""
        value = self._get(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None) -> str:
        value = self._get(name, default)
        if not isinstance(value, str):
            raise self.wrong(name, value, "text")
        return value

    def items(self, name: str) -> Sequence[object]:
        """A list; empty where it is absent."""
        value = self._get(name, ())
        if not isinstance(value, list | tuple):
            raise self.wrong(name, value, "a list")
        return value

    def part(self, name: str) -> ConfigFields | None:
        """An object inside this one, or None. It has no defaults."""
        value = self._find(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return ConfigFields(value, f"{self.label}: {name}", {})

    def wrong(self, name: str, value: object, wanted: str) -> FormatError:
        return FormatError(
            f"{self.label}: the field {name!r} is {told(value)}, but must be {wanted}.",
            hint="Use the config.json that came with the model.",
        )

    def _find(self, name: str) -> object:
        value = self.values.get(name)
        return self.defaults.get(name) if value is None else value

    def _get(self, name: str, default: object) -> object:
        value = self._find(name)
        if value is not None:
            return value
        if default is None:
            raise FormatError(
                f"{self.label} lacks the field {name!r}.", hint="Use the config.json that came with the model."
            )
        return default
