"""Records as bytes: hooks for msgspec's encoders and decoders, for types that msgspec does not know.

error    [class, message, hint, {other attributes}]; only classes of ``core.errors`` are made
array    [type code, bytes], little-endian
mapping  a map
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Mapping
from typing import Any, Final

from twofold.core import errors
from twofold.core.errors import TwofoldError


def _error_classes() -> dict[str, type[TwofoldError]]:
    found = {name: each for name, each in vars(errors).items() if isinstance(each, type)}
    return {name: each for name, each in found.items() if issubclass(each, TwofoldError)}


ERRORS: Final = _error_classes()
TYPE_CODES: Final = frozenset("id")


def to_plain(value: object) -> object:
    """Plain data in place of ``value``. Raises TypeError for values of other types."""
    if isinstance(value, TwofoldError):
        more = {name: field for name, field in vars(value).items() if name != "hint"}
        return [_known_class(value).__name__, str(value), value.hint, more]
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, array):
        return [value.typecode, _little_endian(value).tobytes()]
    raise TypeError(f"a {type(value).__name__} cannot travel")


def from_plain(kind: type, value: Any) -> object:
    """The inverse, for a field of type ``kind``."""
    if kind is array:
        code, content = value
        if code not in TYPE_CODES:
            raise TypeError(f"an array of {code!r} cannot travel")
        return _little_endian(array(code, content))
    if kind is not TwofoldError:
        raise TypeError(f"a {kind.__name__} cannot travel")
    name, message, hint, more = value
    error = ERRORS[name].__new__(ERRORS[name])
    TwofoldError.__init__(error, message, hint=hint)
    for field, content in more.items():
        setattr(error, field, tuple(content) if isinstance(content, list) else content)
    return error


def _known_class(error: TwofoldError) -> type[TwofoldError]:
    """Its class, or the nearest base that belongs to the tree."""
    return next(each for each in type(error).__mro__ if ERRORS.get(each.__name__) is each)


def _little_endian(values: array[Any]) -> array[Any]:
    """The values in little-endian byte order: a swapped copy on big-endian machines."""
    if sys.byteorder == "big":
        values = values[:]
        values.byteswap()
    return values
