"""Typed reads of an object's fields: a missing or wrong field is an error that names it."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from twofold.core.errors import FormatError, TwofoldError, UnsupportedModelError, describe

LARGEST: Final = 2**31 - 1
HINT: Final = "Use the config.json that came with the model."
FILE_HINT: Final = "The file is damaged or was made by a faulty converter."
INCOMPLETE_HINT: Final = "The file is incomplete: convert or download it again."


@dataclass(frozen=True, slots=True)
class TypedFields:
    """The fields of an object whose names begin with ``prefix``. A field that is null counts as absent.

    ``label`` names the object in errors; ``defaults`` are the defaults of objects of its kind. A number that is read
    for a layer may be a list with an entry for each layer; with ``per_layer`` every number may. ``read`` has the fields
    read so far, for callers that refuse the others, with their values as plain objects; ``agreed`` are the lists whose
    entries are known to be equal. Copies with other values start with neither.
    """

    values: Mapping[str, object]
    label: str
    defaults: Mapping[str, object] = field(default_factory=dict)
    prefix: str = ""
    hint: str = HINT
    per_layer: bool = False
    read: dict[str, object] = field(default_factory=dict, init=False)
    agreed: set[str] = field(default_factory=set, init=False)

    def __contains__(self, name: str) -> bool:
        value = self.values.get(self.prefix + name)
        return value is not None or self.defaults.get(name) is not None

    def integer(
        self, name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST, layer: int | None = None
    ) -> int:
        """A whole number from ``least`` to ``most``. A list gives its entry for ``layer``, or without ``layer`` the
        value that all its entries have."""
        value = self._one(name, self._get(name, default), layer)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.wrong(name, value, "a whole number")
        if not least <= value <= most:
            raise self.wrong(name, value, f"between {least} and {most}")
        return value

    def number(self, name: str, default: float | None = None, *, least: float = 0.0) -> float:
        """A finite number of at least ``least``."""
        value = self._one(name, self._get(name, default))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(name, value, "a number")
        if not least <= value <= sys.float_info.max:
            raise self.wrong(name, value, f"finite and at least {least}")
        return float(value)

    def positive(self, name: str, default: float | None = None) -> float:
        """A finite number above zero."""
        value = self.number(name, default)
        if value == 0:
            raise self.wrong(name, value, "above zero")
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

    def part(self, name: str) -> Self | None:
        """An object inside this one, or None. It has no defaults."""
        value = self._find(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, value, "an object")
        return type(self)(value, f"{self.label}: {name}", hint=self.hint)

    def wrong(self, name: str, value: object, wanted: str) -> TwofoldError:
        return self._error(
            f"{self.label}: the field {self.prefix + name!r} is {describe(value)}, but must be {wanted}."
        )

    def _error(self, message: str) -> TwofoldError:
        return FormatError(message, hint=self.hint)

    def _find(self, name: str) -> object:
        if name not in self.read:  # files choose how long a list is, and it is read for each layer
            found = self.values.get(self.prefix + name)
            plain = getattr(found, "tolist", None)  # NumPy's arrays and numbers, without loading NumPy
            self.read[name] = plain() if callable(plain) else found
        value = self.read[name]
        return self.defaults.get(name) if value is None else value

    def _get(self, name: str, default: object) -> object:
        value = self._find(name)
        if value is not None:
            return value
        if default is None:
            raise self._error(f"{self.label} lacks the field {self.prefix + name!r}.")
        return default

    def _one(self, name: str, value: object, layer: int | None = None) -> object:
        """A single value, or one of a list: that of ``layer``, or without ``layer`` the one that all entries have."""
        if not ((self.per_layer or layer is not None) and isinstance(value, list | tuple)):
            return value
        if layer is not None and layer < len(value):
            return value[layer]
        if layer is not None or not value:
            raise self.wrong(name, value, "a value for each layer")
        if name not in self.agreed and any(item != value[0] for item in value):
            raise UnsupportedModelError(
                f"{self.label}: the field {self.prefix + name!r} differs from layer to layer.",
                hint="Twofold runs models whose layers agree in this field.",
            )
        self.agreed.add(name)
        return value[0]
