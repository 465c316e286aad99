"""Decodes a long message in parts, so that its reader can do other work between them.

Decoding holds the interpreter lock: a message of 50 MB would stop an event loop for seconds. Records and lists that are
long are split into their elements, without decoding these, and short ones are decoded together, PART_BYTES at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec

PART_BYTES: Final = 128 << 10
MAX_WHOLE_BYTES: Final = 1 << 20
"""Maximum length of something that cannot be split."""
NIL: Final = b"\xc0"
LIST: Final = b"\xdd"
"""How a list begins; its number of elements follows, in 4 bytes."""

Decoding = Generator[None, None, Any]


class PartReader:
    """``decoder`` gives the decoder of a type; ``check`` is called with each part and the name of its field."""

    def __init__(
        self, decoder: Callable[[Any], msgspec.msgpack.Decoder[Any]], check: Callable[..., None] | None
    ) -> None:
        self._decoder = decoder
        self._check = check

    def record(self, kind: Any, data: bytes | msgspec.Raw, skip: int = 0) -> Decoding:
        """A record. If it is written as a list, its fields begin after ``skip`` elements."""
        if is_dataclass(kind):
            found = self._decoder(dict[str, msgspec.Raw]).decode(data)
        else:
            elements = self._decoder(list[msgspec.Raw]).decode(data)[skip:]
            found = dict(zip(kind.__struct_fields__, elements, strict=False))
        yield
        values = {}
        for name, hint in _hints(kind).items():
            if name in found:
                values[name] = yield from self._value(hint, found[name], name)
        return kind(**values)

    def _value(self, kind: Any, data: msgspec.Raw, name: str) -> Decoding:
        if len(data) > PART_BYTES:
            if get_origin(kind) in (Union, UnionType) and bytes(memoryview(data)[:1]) != NIL:
                members = [each for each in get_args(kind) if each is not NoneType]
                kind = members[0] if len(members) == 1 else kind
            if get_origin(kind) is list or (get_origin(kind) is tuple and get_args(kind)[1:] == (...,)):
                return (yield from self._items(kind, data, name))
            if is_dataclass(kind) or (isinstance(kind, type) and issubclass(kind, msgspec.Struct)):
                return (yield from self.record(kind, data))
            if kind not in (bytes, str) and len(data) > MAX_WHOLE_BYTES:
                raise ValueError(f"{name} has {len(data)} bytes")
        value = self._decode(kind, data, name)
        if len(data) > PART_BYTES // 8:
            yield
        return value

    def _items(self, kind: Any, data: msgspec.Raw, name: str) -> Decoding:
        """The elements of a long list, or of a tuple of any length."""
        member: Any = get_args(kind)[0]
        several: Any = list.__class_getitem__(member)
        values: list[Any] = []
        short, nbytes = list[msgspec.Raw](), 0
        elements = self._decoder(list[msgspec.Raw]).decode(data)
        yield
        for place, each in enumerate(elements):
            if len(each) <= PART_BYTES:
                short.append(each)
                nbytes += len(each)
            if short and (nbytes >= PART_BYTES or len(each) > PART_BYTES or place == len(elements) - 1):
                values += self._decode(several, LIST + len(short).to_bytes(4, "big") + b"".join(short), name)
                short, nbytes = [], 0
                yield
            if len(each) > PART_BYTES:
                values.append((yield from self._value(member, each, name)))
        return tuple(values) if get_origin(kind) is tuple else values

    def _decode(self, kind: Any, data: bytes | msgspec.Raw, name: str) -> Any:
        value = self._decoder(kind).decode(data)
        if self._check is not None:
            self._check(value, name)
        return value


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The types of a record's fields."""
    return get_type_hints(kind)
