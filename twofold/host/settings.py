"""Settings files in TOML. Each field is read with its type; at ``close``, a field that was not read is an error.

Numbers with a point are decimals, so that amounts of money stay exact.
"""

from __future__ import annotations

import tomllib
from collections.abc import Collection, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from twofold.core.errors import ParameterError, did_you_mean, unreadable

MAX_BYTES: Final = 1 << 20
"""Maximum size of a settings file."""


def read_toml(path: Path) -> Table:
    """The table of a file. Raises UsageError if the file cannot be read, ResourceError if the disk fails,
    ParameterError if the content is not TOML."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise unreadable(path, error) from error
    if len(data) > MAX_BYTES:
        raise ParameterError(f"{path} is longer than {MAX_BYTES} bytes.", param=path.name)
    try:
        return parse_toml(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ParameterError(f"{path} is not TOML: {error}.", param=path.name) from error


def parse_toml(text: str) -> Table:
    """The table in ``text``. Raises TOMLDecodeError."""
    return Table(tomllib.loads(text, parse_float=Decimal))


class Table:
    """The fields of a table; ``path`` is its dotted name in the file, "" for the file itself.

    The constructor and the methods raise ParameterError for a wrong value. The methods return None for an absent field.
    """

    def __init__(self, value: object, path: str = "") -> None:
        if not isinstance(value, dict):
            raise impossible(path or "the file", value, "a table")
        self._values: dict[str, Any] = value
        self._path = path
        self._read: set[str] = set()

    def __contains__(self, field: str) -> bool:
        return field in self._values

    def name(self, field: str) -> str:
        """The field's name with its path: models.small.input."""
        return f"{self._path}.{field}" if self._path else field

    def number(self, field: str, low: str, high: str, *, places: int) -> Decimal | None:
        """A number from ``low`` to ``high`` with at most ``places`` decimal places."""
        value = self._take(field)
        if value is None:
            return None
        wanted = f"a number from {low} to {high} with at most {places} decimal places"
        if not isinstance(value, int | Decimal) or isinstance(value, bool):
            raise impossible(self.name(field), value, wanted)
        number = Decimal(value)
        if not number.is_finite() or not Decimal(low) <= number <= Decimal(high) or number != round(number, places):
            raise impossible(self.name(field), value, wanted)
        return number

    def whole(self, field: str, low: int, high: int) -> int | None:
        """A whole number from ``low`` to ``high``."""
        value = self._take(field)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise impossible(self.name(field), value, f"a whole number from {low} to {high}")
        return value

    def flag(self, field: str) -> bool | None:
        """True or false."""
        value = self._take(field)
        if value is not None and not isinstance(value, bool):
            raise impossible(self.name(field), value, "true or false")
        return value

    def text(self, field: str, most: int) -> str | None:
        """A text of 1 to ``most`` characters."""
        value = self._take(field)
        if value is not None and not (isinstance(value, str) and 0 < len(value) <= most):
            raise impossible(self.name(field), value, f"a text of 1 to {most} characters")
        return value

    def inner(self, field: str) -> Table | None:
        """A table inside this one."""
        value = self._take(field)
        return None if value is None else Table(value, self.name(field))

    def tables(self) -> Iterator[tuple[str, Table]]:
        """All fields, which must be tables."""
        for field in self._values:
            yield field, Table(self._take(field), self.name(field))

    def close(self, known: Collection[str] = ()) -> None:
        """Raises ParameterError for the first field that was not read and is not ``known``, with the closest match."""
        names = self._read | set(known)
        for field in self._values:
            if field not in names:
                message = f"{self.name(field):.200} is not a known setting."
                raise ParameterError(message, param=self.name(field), hint=did_you_mean(field, sorted(names)))

    def _take(self, field: str) -> Any:
        self._read.add(field)
        return self._values.get(field)


def impossible(name: str, value: object, wanted: str) -> ParameterError:
    """The error for a setting of the wrong type or out of range."""
    return ParameterError(f"{name} must be {wanted}, not {value!r:.60}.", param=name)
