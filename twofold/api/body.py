"""Bodies as declared types: a ``msgspec.Struct`` declares what a JSON object holds. Its JSON Schema is made from the
declaration, and so is the reader of a request.

    class Part(RequestObject):
        type: Literal["text"]                        required; distinguishes the objects of a union
        text: Annotated[str, Meta(max_length=9)]     ``Meta`` bounds texts, numbers, lists and maps
        name: str | None = None                      optional: null counts as absent, as in OpenAI's API
        user: Annotated[str, IGNORED] = ""           changes no completion: ignored with a warning, but for the default
        audio: None = None                           known, but refused unless it asks for NOTHING
        store: Literal[False] = False                refused but for this value

    class Choice(ReplyObject, kw_only=True):
        object: Literal["choice"] = "choice"         always present
        text: str | None                             always present, may be null
        token_ids: Sequence[int] | UnsetType = UNSET absent where it is UNSET

msgspec's own decoder would refuse 2.0 for a whole number, null for an absent field, and unions of several objects or
lists; its errors give neither the value nor a hint.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta, UnsetType

from twofold.api.fields import (
    LABELS,
    MAX_EXACT,
    MISSING,
    UNSUPPORTED_VALUE,
    FieldError,
    ignore_label,
    ignore_object,
    impossible,
    omission,
    refuse_unknown,
    unsupported,
)
from twofold.core.errors import MAX_QUOTED, closest_match, describe_name, quoted, spelled

Schema: TypeAlias = dict[str, Any]
Notes: TypeAlias = dict[str, Any]
Path: TypeAlias = "tuple[Path, str | int] | None"
"""Where a value is in the body, the innermost name or index last; None is the body itself."""
Read: TypeAlias = Callable[[Any, Path], Any]
"""Returns a value in the type that the Struct declares. Raises FieldError."""

ABSENT: Final = (NoneType, UnsetType)
TAGS: Final = ("type", "role")
"""Fields that distinguish the objects of a union."""
OMITTING: Final = Meta(extra={"omits": True})
"""Note of a list, such as a chat's tools: objects of unknown types are omitted with a warning. Beside ``omits``, a note
may have ``omitted``, which makes a replacement for such an object, and ``omitted_properties``: schemas of the fields
that it reads."""
CHOOSING: Final = Meta(extra={"chooses": True})
"""Note of a choice among the objects of such a list: if an omitted one is chosen, the error names it as the cause."""
OFFERED: Final = Meta(extra={"offered": True})
"""Note of a choice: the API has more values than Twofold supports."""
IGNORED: Final = Meta(extra={"ignored": True})
"""Note of a field that only labels, hints or describes."""
LIFTED: Final = Meta(extra={"lifted": True})
"""Note of a field whose own fields may also be beside it; those in it come first."""
EMPTY: Final[tuple[object, ...]] = (None, "", [], {})
NOTHING: Final[tuple[object, ...]] = (None, "", [])
"""What an unsupported field may be. An empty object may ask for what is the default in it."""
LABELLED: Final[Mapping[str, Any]] = {
    "patternProperties": {f"^({'|'.join(sorted(LABELS))})$": {}},
    "additionalProperties": {"type": "null"},
}
"""What the schema of a request's object says of fields that it does not declare."""
COMPONENTS: Final = "#/components/schemas/"
NonNegativeInt: TypeAlias = Annotated[int, Meta(ge=0)]
NonNegativeFloat: TypeAlias = Annotated[float, Meta(ge=0)]
NonEmptyText: TypeAlias = Annotated[str, Meta(min_length=1)]
DateTime: TypeAlias = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Explanation: TypeAlias = Annotated[Any, Meta(extra_json_schema={"$ref": f"{COMPONENTS}RequestRecord"})]
"""The record of a request, in its reply if the caller asked for an explanation."""
encode: Final = msgspec.json.Encoder().encode


class RequestObject(msgspec.Struct, kw_only=True):
    """An object of a request. Fields that are not declared are unknown, except for LABELS."""

    @classmethod
    def read(cls, value: object) -> Self:
        """Reads a whole body. Raises FieldError for a field that is missing, impossible, unknown or unsupported."""
        read: Self = object_of(cls).read(value, None)
        return read


MAX_MODEL_CHARS: Final = 512
ModelName: TypeAlias = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_MODEL_CHARS, extra_json_schema={"$ref": f"{COMPONENTS}ModelName"}),
]


MAX_COMPARED: Final = 8
ComparedModels: TypeAlias = Annotated[
    list[NonEmptyText],
    Meta(
        max_length=MAX_COMPARED,
        description="Models of other providers: the reply carries the request's record, with its cost at their prices.",
    ),
]


class OwnFields(RequestObject):
    """Twofold's own fields, under one key: ``"twofold": {"explain": true}``."""

    explain: Annotated[bool, Meta(description="The reply carries the request's record.")] = False
    compare_prices: ComparedModels | None = None


class DraftingFields(OwnFields):
    """Twofold's own fields of a completion, in APIs without a field for speculation."""

    speculation: Annotated[bool, Meta(description="Whether tokens may be drafted ahead. It changes no completion.")] = (
        True
    )


class Explainable:
    """A request that may have Twofold's own fields."""

    __slots__ = ()
    twofold: OwnFields | None

    @property
    def explain(self) -> bool:
        """Whether the reply has the request's record under ``twofold``."""
        return self.twofold is not None and (self.twofold.explain or bool(self.twofold.compare_prices))

    @property
    def compared(self) -> Sequence[str]:
        """Models at whose prices the record gives the request's cost."""
        return () if self.twofold is None else self.twofold.compare_prices or ()


class ReplyObject(msgspec.Struct, kw_only=True):
    """An object of a reply. It is encoded as it is declared; fields that are UNSET are absent."""


Body: TypeAlias = RequestObject | ReplyObject


def only(*values: object, hint: str | None = None) -> Meta:
    """Note of a field that may have only these values; ``hint`` names an alternative."""
    return Meta(extra={"only": values, "hint": hint})


def schemas(bodies: Iterable[type[Body]]) -> dict[str, Schema]:
    """The JSON Schemas of these bodies and of all objects in them, by class name."""
    found: dict[str, Schema] = {}
    left = list(bodies)
    while left:
        body = left.pop()
        if body.__name__ not in found:
            made = object_of(body)
            found[body.__name__] = made.schema
            left += [inner for kind in made.kinds.values() for inner in kind.bodies]
    return found


@dataclass(frozen=True, slots=True)
class JsonKind:
    """What a value may be.

    types   its JSON types, as Python classes
    wanted  its description in errors
    schema  its JSON Schema
    bodies  the declared objects in it
    words   its allowed values, if it is a choice
    items   the kind of a list's entries
    fits    whether a text or a number is within its bounds
    """

    types: tuple[type, ...]
    wanted: str
    schema: Schema
    read: Read
    bodies: tuple[type[Body], ...] = ()
    words: AllowedValues | None = None
    items: JsonKind | None = None
    fits: Callable[[Any], object] = lambda _: True


@dataclass(frozen=True, slots=True)
class AllowedValues:
    """The only values that a field may have.

    offered  the API has more values than Twofold supports
    needed   the field is required, so that another value is a mistake although only one is known
    hint     what to do about another value
    """

    known: tuple[Any, ...]
    offered: bool = False
    needed: bool = False
    hint: str | None = None

    def read(self, value: Any, path: Path) -> Any:
        for known in self.known:
            if value == known and isinstance(value, bool) == isinstance(known, bool):
                return known
        if not self.known and value in NOTHING:
            return None
        raise self.error(at(path), value)

    def error(self, name: str, value: object) -> FieldError:
        """The error for another value: a mistake if the field is a choice, else a value that is not supported."""
        if not self.known:
            return unsupported(name, "Remove it.")
        close = closest_match(value, self.known) if isinstance(value, str) and isinstance(self.known[0], str) else None
        hint = f"Did you mean {close!r}?" if close else None
        tag = name.rpartition(".")[2] in TAGS
        if not self.offered and (len(self.known) > 1 or self.needed or tag):
            wanted = " or ".join(map(str, self.known))
            return FieldError(f"{name} must be {wanted}, not {describe_name(value)}.", param=name, hint=hint)
        hint = hint or self.hint or f"Possible: {', '.join(map(repr, self.known))}."
        return FieldError(
            f"{name} {describe_name(value)} is not supported.", param=name, code=UNSUPPORTED_VALUE, hint=hint
        )


class DeclaredObject:
    """Reads and describes the objects of a Struct. Optional fields of a request may be null; fields of a reply only if
    their type says so."""

    def __init__(self, body: type[Body]) -> None:
        hints = get_type_hints(body, include_extras=True)
        self._body = body
        self._declared = msgspec.structs.fields(body)
        config = body.__struct_config__
        self.kinds = {config.tag_field: kind_of(Literal[config.tag])} if config.tag_field else {}
        self.kinds |= {each.encode_name: kind_of(hints[each.name], needed=each.required) for each in self._declared}
        replied = issubclass(body, ReplyObject)
        self.required = {
            each.encode_name
            for each in self._declared
            if (UnsetType not in get_args(hints[each.name]) if replied else each.required)
        }
        properties = {name: kind.schema for name, kind in self.kinds.items()}
        self.required |= {config.tag_field} if config.tag_field else set()
        for each in self._declared:
            name, note = each.encode_name, _notes(hints[each.name]).get("schema", {})
            schema = note if "$ref" in note else self.kinds[name].schema | note
            properties[name] = schema if replied or name in self.required else nullable(schema)
        notes = {each.encode_name: _notes(hints[each.name]) for each in self._declared}
        self._ignored = {name for name, note in notes.items() if "ignored" in note}
        self._lifted = {
            inner: name
            for name, note in notes.items()
            if "lifted" in note
            for inner in object_of(self.kinds[name].bodies[0]).kinds
            if inner not in self.kinds
        }
        for inner, name in self._lifted.items():
            properties[inner] = object_of(self.kinds[name].bodies[0]).schema["properties"][inner]
        rest: Mapping[str, Any] = {"additionalProperties": False} if replied else LABELLED
        self.schema: Schema = {"type": "object", "properties": properties, **rest} | _given(
            required=[name for name in self.kinds if name in self.required] or None
        )

    def read(self, value: Any, path: Path) -> Any:
        if type(value) is not dict:
            raise impossible(at(path) or "body", value, "an object")
        if self._lifted:
            value = self._lowered(value)
        found = {}
        for field in self._declared:
            name = field.encode_name
            given = value.get(name)
            if given is not None:
                read = found[field.name] = self.kinds[name].read(given, (path, name))
                if name in self._ignored and read != field.default and read not in EMPTY:
                    ignore_label(at((path, name)))
            elif field.required:
                raise missing((path, name))
        for name, given in value.items():
            if given is None or name in self.kinds:
                continue
            if name not in LABELS:
                refuse_unknown(f"{at(path)}." if path else "", name, self.kinds)
            elif given not in EMPTY:
                ignore_label(at((path, name)))
        return self._body(**found)

    def _lowered(self, value: dict[str, Any]) -> dict[str, Any]:
        """The object with its lifted fields where they are declared."""
        lowered = {name: given for name, given in value.items() if name not in self._lifted}
        for name in {self._lifted[inner] for inner in value.keys() & self._lifted.keys()}:
            own = value.get(name)
            if own is None or type(own) is dict:
                lifted = {inner: given for inner, given in value.items() if self._lifted.get(inner) == name}
                lowered[name] = lifted | {inner: given for inner, given in (own or {}).items() if given is not None}
        return lowered


object_of = cache(DeclaredObject)


def at(path: Path) -> str:
    """The path as errors write it: messages[0].content."""
    if path is None:
        return ""
    outer, last = at(path[0]), path[1]
    if isinstance(last, int):
        return f"{outer}[{last}]"
    return f"{outer}.{spelled(last)}" if outer else spelled(last)


def missing(path: Path) -> FieldError:
    """The error for a required field that is absent or null."""
    return FieldError(f"{at(path)} is required.", param=at(path), code=MISSING)


def nullable(schema: Schema) -> Schema:
    """The schema with null allowed."""
    kind, values = schema.get("type"), schema.get("enum")
    is_nullable = kind == "null" or isinstance(kind, list) or {"type": "null"} in schema.get("anyOf", ())
    if not schema or is_nullable or (values and None in values):
        return schema
    more: Schema = {} if values is None else {"enum": [*values, None]}
    if isinstance(kind, str):
        return {**schema, **more, "type": [kind, "null"]}
    if more:
        return schema | more
    return (
        {**schema, "anyOf": [*schema["anyOf"], {"type": "null"}]}
        if "anyOf" in schema
        else {"anyOf": [schema, {"type": "null"}]}
    )


def kind_of(hint: Any, *, needed: bool = False) -> JsonKind:
    """The kind of a field's type. ``needed`` says that the field is required."""
    notes = _notes(hint) | {"needed": needed}
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if "only" in notes:
        return _words(notes["only"], notes)
    make = KINDS.get(get_origin(hint) or hint)
    if make is not None:
        return make(get_args(hint), notes)
    assert issubclass(hint, Body), f"{hint} is not declared"
    return JsonKind((dict,), "an object", {"$ref": COMPONENTS + hint.__name__}, object_of(hint).read, (hint,))


def _notes(hint: Any) -> Notes:
    """The notes in the annotations of a type; of an optional type, those of its values."""
    parts = [part for part in get_args(hint) if part not in ABSENT]
    if get_origin(hint) in (Union, UnionType) and len(parts) == 1:
        return _notes(parts[0])
    found: Notes = {"schema": {}}
    for note in parts[1:] if get_origin(hint) is Annotated else ():
        bounds = {name: getattr(note, name) for name in ("ge", "gt", "le", "min_length", "max_length", "pattern")}
        found |= _given(**bounds) | (note.extra or {})
        found["schema"] |= (note.extra_json_schema or {}) | _given(description=note.description)
    return found


def _plain(kind: type, wanted: str, schema: Schema, fits: Callable[[Any], object] = lambda _: True) -> JsonKind:
    """A value without parts."""

    def read(value: Any, path: Path) -> Any:
        if kind is int and type(value) is float and value.is_integer() and abs(value) <= MAX_EXACT:
            value = int(value)  # JSON has one kind of numbers, and some clients write 2 as 2.0
        if type(value) not in types or not fits(value):
            raise impossible(at(path), value, wanted)
        return value

    types = (int, float) if kind is float else (kind,)
    return JsonKind(types, wanted, schema, read, fits=fits)


def _text(notes: Notes) -> JsonKind:
    low, high, pattern = notes.get("min_length", 0), notes.get("max_length"), notes.get("pattern")
    limit = sys.maxsize if high is None else high
    # In JSON Schema, $ matches only at the end, not before a final line feed.
    match = re.compile((pattern or "").replace("$", r"\Z")).search
    schema = {"type": "string"} | _given(minLength=low or None, maxLength=high, pattern=pattern)
    wanted = notes.get("wanted", "text" + _bounded(low, high, "characters"))
    return _plain(str, wanted, schema, lambda value: low <= len(value) <= limit and match(value))


def _number(notes: Notes, kind: type[float]) -> JsonKind:
    low, above, high = notes.get("ge"), notes.get("gt"), notes.get("le")
    minimum = -sys.float_info.max if low is None else low  # so that neither infinity nor NaN fits
    maximum = sys.float_info.max if high is None else high
    name = "a whole number" if kind is int else "a number"
    bounds = f" above {above}" if above is not None else f" of at least {low}" if low is not None else ""
    wanted = (
        f"{name} from {low} to {high}"
        if None not in (low, high)
        else name + bounds + (f" and at most {high}" if high else "")
    )
    schema: Schema = {"type": "integer" if kind is int else "number"}
    schema |= _given(minimum=low, exclusiveMinimum=above, maximum=high)
    return _plain(kind, wanted, schema, lambda value: minimum <= value <= maximum and (above is None or value > above))


def _words(known: tuple[Any, ...], notes: Notes) -> JsonKind:
    words = AllowedValues(known, "offered" in notes or "only" in notes, notes["needed"], notes.get("hint"))
    types = tuple({type(value) for value in known})
    schema: Schema = {"enum": [*(known or NOTHING)]}
    wanted = " or ".join(map(str, known))
    return JsonKind(types, wanted, schema | ({"type": "string"} if types == (str,) else {}), words.read, words=words)


def _list(parts: tuple[Any, ...], notes: Notes) -> JsonKind:
    items, low, high = kind_of(parts[0]), notes.get("min_length", 0), notes.get("max_length")
    wanted = "a list" + _bounded(low, high, "entries")
    limit = sys.maxsize if high is None else high
    fast: Any = list[parts[0]] if items.types in ((int,), (str,)) and not items.words else None  # type: ignore[valid-type]
    words = _tags(items.bodies, "type") if "omits" in notes else None

    def read(value: Any, path: Path) -> Any:
        if type(value) is not list or not low <= len(value) <= limit:
            raise impossible(at(path), value, wanted)
        if fast is not None:
            try:
                return msgspec.convert(value, fast)  # many token ids in one call
            except msgspec.ValidationError:
                pass  # the error is made below, unless it was 2.0 for 2
        if words is None:
            return [items.read(one, (path, index)) for index, one in enumerate(value)]
        found = []
        for index, one in enumerate(value):
            if not _is_omitted(one, (path, index), words):
                found.append(items.read(one, (path, index)))
            elif "omitted" in notes:
                found.append(notes["omitted"](one, (path, index)))
        return found

    entry = items.schema
    if words is not None:
        kind = {"type": "string", "not": {"enum": list(words.known)}}
        properties = {"type": kind} | notes.get("omitted_properties", {})
        entry = {
            "anyOf": [
                entry,
                {"type": "object", "properties": properties, "required": ["type"], "additionalProperties": True},
            ]
        }
    schema = {"type": "array", "items": entry} | _given(minItems=low or None, maxItems=high)
    return JsonKind((list,), wanted, schema, read, items.bodies, items=items)


def _is_omitted(value: Any, path: Path, words: AllowedValues) -> bool:
    """Whether an object is omitted, because its type is unknown. Raises FieldError if nothing may be omitted."""
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind in words.known:
        return False
    ignore_object(value, at(path), words.error(at((path, "type")), kind))
    return True


def _map(parts: tuple[Any, ...], notes: Notes) -> JsonKind:
    """An object whose names the caller chooses. If its values may be anything, it is returned as it is."""
    names, values, high = kind_of(parts[0]), kind_of(parts[1]), notes.get("max_length")
    wanted = notes.get("wanted", "an object" + _bounded(0, high, "entries"))
    limit = sys.maxsize if high is None else high

    def read(value: Any, path: Path) -> Any:
        if type(value) is not dict:
            raise impossible(at(path), value, wanted)
        if len(value) > limit:
            raise FieldError(f"{at(path)} must be {wanted}, not {len(value)} entries.", param=at(path))
        if parts[1] is Any:
            return value
        for name in value:
            if not names.fits(name):
                wrong = f"{at(path)} must be {wanted}, not with the name {quoted(name)}."
                raise FieldError(wrong, param=f"{at(path)}.{name[:MAX_QUOTED]}")
        return {name: values.read(one, (path, name)) for name, one in value.items() if one is not None}

    schema: Schema = {"type": "object"}
    schema |= _given(additionalProperties=values.schema or None, maxProperties=high)
    schema |= {"propertyNames": names.schema} if len(names.schema) > 1 else {}
    return JsonKind((dict,), wanted, schema, read, values.bodies)


def _union(parts: tuple[Any, ...], notes: Notes) -> JsonKind:
    """Chooses by the JSON type; lists also by their first entry, objects by their TAGS or their required fields."""
    kinds = [kind_of(part) for part in parts if part not in ABSENT]
    null = NoneType in parts
    if len(kinds) == 1:
        return replace(kinds[0], schema=nullable(kinds[0].schema)) if null else kinds[0]
    types = tuple(dict.fromkeys(each for kind in kinds for each in kind.types))
    wanted = notes.get("wanted", " or ".join(dict.fromkeys(kind.wanted for kind in kinds)))
    bodies = tuple(dict.fromkeys(body for kind in kinds for body in kind.bodies))

    def read(value: Any, path: Path) -> Any:
        if "chooses" in notes and type(value) is dict and isinstance(value.get("type"), str):
            cause = omission(type=value["type"], name=value.get("name"))
            if cause is not None:
                raise cause
        fitting = [kind for kind in kinds if type(value) in kind.types]
        if not fitting:
            raise impossible(at(path), value, wanted)
        if len(fitting) > 1 and type(value) is list:
            first = type(value[0]) if value else None
            fitting = [kind for kind in fitting if kind.items and first in kind.items.types] or fitting
        elif len(fitting) > 1 and type(value) is dict:
            return _chosen([object_of(kind.bodies[0]) for kind in fitting], value, path).read(value, path)
        return fitting[0].read(value, path)

    schema = {"anyOf": [kind.schema for kind in kinds]}
    return JsonKind(types, wanted, nullable(schema) if null else schema, read, bodies)


def _chosen(objects: list[DeclaredObject], value: dict[str, Any], path: Path) -> DeclaredObject:
    """The object of a union that ``value`` is. Raises FieldError."""
    for tag in TAGS:
        words = {one: one.kinds[tag].words for one in objects if tag in one.kinds}
        given = value.get(tag)
        if not words:
            continue
        known = {one: found.known for one, found in words.items() if found is not None}
        left = [
            one for one in objects if (given in known.get(one, ()) if given is not None else tag not in one.required)
        ]
        if given is None and (not left or (len(left) == 1 and not left[0].required <= value.keys())):
            raise missing((path, tag))
        if not left:
            raise _joined(words.values()).error(at((path, tag)), given)
        objects = left
    given = {name for name, one in value.items() if one is not None}
    return next((one for one in objects if one.required <= given), objects[0])


def _tags(bodies: Iterable[type[Body]], tag: str) -> AllowedValues:
    return _joined(object_of(body).kinds[tag].words for body in bodies if tag in object_of(body).kinds)


def _joined(several: Iterable[AllowedValues | None]) -> AllowedValues:
    each = [words for words in several if words is not None]
    known = tuple(dict.fromkeys(word for words in each for word in words.known))
    return AllowedValues(known, any(words.offered for words in each))


KINDS: Final[dict[Any, Callable[[tuple[Any, ...], Notes], JsonKind]]] = {
    Any: lambda _, notes: JsonKind((bool, int, float, str, list, dict), "a value", {}, lambda value, path: value),  # noqa: ARG005
    NoneType: _words,
    Literal: _words,
    Union: _union,
    UnionType: _union,
    list: _list,
    Sequence: _list,
    dict: _map,
    Mapping: _map,
    str: lambda _, notes: _text(notes),
    int: lambda _, notes: _number(notes, int),
    float: lambda _, notes: _number(notes, float),
    bool: lambda _, notes: _plain(bool, "true or false", {"type": "boolean"}),  # noqa: ARG005
}


def _bounded(low: int, high: int | None, unit: str) -> str:
    if high is not None:
        numbers = f"{low}" if low == high else f"{low} to {high}" if low else f"at most {high}"
        return f" of {numbers} {unit}"
    return " that is not empty" if low else ""


def _given(**values: Any) -> Schema:
    """The values that are not None."""
    return {name: value for name, value in values.items() if value is not None}
