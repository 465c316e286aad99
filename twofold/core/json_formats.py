"""Which keywords of a JSON schema are enforced: known formats become patterns, unsupported keywords are removed, and
spellings of generators that llguidance does not read are replaced by equal ones.

The patterns hold texts that programs read: days that months have, no leap seconds, mail addresses with a top-level
domain. Repetitions have a bound, because small models repeat digits without end. Sources: RFC 3339 (dates, times,
durations), RFC 5321 (mail), RFC 1123 (hosts), RFC 9562 (UUID), RFC 3986 (URI). A format that is not known is an
annotation (JSON Schema 2020-12, Validation, 7.2.1).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from twofold.core.errors import spelled
from twofold.core.json_schema import NAMED, closed_schema

_DATE: Final = (
    r"[1-9]\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30)|02-(?:0[1-9]|[12]\d))"
)
_TIME: Final = r"(?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,6})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d)"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_ATOM: Final = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,32}"
_BYTE: Final = r"(?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d)"
_CLOCK: Final = r"T(?:\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S)"
_DAYS: Final = r"(?:\d{1,9}Y(?:\d{1,9}M(?:\d{1,9}D)?)?|\d{1,9}M(?:\d{1,9}D)?|\d{1,9}D)"
_EMAIL: Final = rf"{_ATOM}(?:\.{_ATOM}){{0,3}}@(?:{_LABEL}\.){{1,3}}[A-Za-z]{{2,63}}"
_HOST: Final = rf"{_LABEL}(?:\.{_LABEL}){{0,3}}"
_PLAIN: Final = r"(?:[A-Za-z0-9._~!$&'()*+,;=:@-]|%[0-9A-Fa-f]{2})"
_TAIL: Final = rf"(?:{_PLAIN}|[/?])*"
FORMATS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"(?:{_DATE})T{_TIME}",
    "duration": rf"P(?:\d{{1,9}}W|{_DAYS}(?:{_CLOCK})?|{_CLOCK})",
    "email": _EMAIL,
    "hostname": _HOST,
    "ipv4": rf"(?:{_BYTE}\.){{3}}{_BYTE}",
    "uri": rf"mailto:{_EMAIL}|[A-Za-z][A-Za-z0-9+.-]{{1,31}}://{_HOST}(?::\d{{1,5}})?(?:/{_PLAIN}*)*(?:\?{_TAIL})?(?:#{_TAIL})?",
    "uuid": r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}",
}
ENFORCED: Final = frozenset({"ipv6"})
"""Formats that are enforced as llguidance has them."""
LEFT_OUT: Final = frozenset(
    {
        *("not", "if", "then", "else", "contains", "minContains", "maxContains", "propertyNames", "uniqueItems"),
        *("dependentSchemas", "dependentRequired", "dependencies", "unevaluatedProperties", "unevaluatedItems"),
    }
)
"""Keywords that cannot be enforced. A tool's schema may have them, unless it is strict."""
WHITE_SPACE: Final = r"[ \t]{1,2}|(?:[ \t]?\r?\n){1,2}[ \t]{0,64}"
"""White space between the values of an output: room for indentation, and an end, because models repeat it without."""
_TYPES: Final = frozenset({"object", "array", "string", "number", "integer", "boolean", "null"})
_NEUTRAL: Final[Mapping[str, tuple[object, ...]]] = {
    "uniqueItems": (False,),
    "not": (False,),
    "propertyNames": (True, {}, {"type": "string"}),
    "unevaluatedProperties": (True, {}),
    "unevaluatedItems": (True, {}),
    "dependentRequired": ({},),
    "dependentSchemas": ({},),
    "dependencies": ({},),
}
"""Values of keywords that every value satisfies."""
_NEEDS: Final = {
    "minContains": {"contains"},
    "maxContains": {"contains"},
    "if": {"then", "else"},
    "then": {"if"},
    "else": {"if"},
}
"""Keywords that mean nothing unless one of these is beside them."""
_MAX_BOUND: Final = 2**63 - 1024
"""llguidance reads bounds of numbers up to this one, the largest float below 2⁶³."""
_MAX_COUNT: Final = 2**31
_DATA: Final = frozenset({"default", "const", "examples", "enum"})
_LOOKS: Final = re.compile(r"(?:[^\\\[(]|\\[^1-9bBk]|\[\^?\]?(?:[^\]\\]|\\.)*\]|\((?!\?<?[=!]))*", re.DOTALL)


def output_schema(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an output that is JSON: with closed objects, as far as it is enforced."""
    return closed_schema(enforceable(schema, strict=True)[0])


def enforceable(schema: Mapping[str, Any], *, strict: bool) -> tuple[dict[str, Any], list[str]]:
    """The schema with known formats as patterns and without those that are not known; what was left out.

    Unless ``strict``, patterns with look-around or back-references are left out, too, and keywords that cannot be
    enforced are named: llguidance ignores them.
    """
    notes: dict[str, None] = {}
    return _enforceable(schema, strict, notes), [*notes]


def _respelled(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema without keywords that ask for nothing. Bounds beyond those that llguidance reads are narrowed, types
    of Google's form are in lower case, and anchors of other languages than JavaScript are its own."""
    found = {
        key: value
        for key, value in schema.items()
        if (value is not None or key in ("const", "default"))
        and value not in _NEUTRAL.get(key, ())
        and (key not in _NEEDS or _NEEDS[key] & schema.keys())
    }
    kinds = found.get("type")
    names = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
    names = [name.lower() if isinstance(name, str) and name.lower() in _TYPES else name for name in names]
    if "any" in names:
        del found["type"]
    elif names:
        found["type"] = names if isinstance(kinds, list) else names[0]
    _respell_numbers(found)
    pattern = found.get("pattern")
    if isinstance(pattern, str):
        found["pattern"] = re.sub(r"(?<!\\)((?:\\\\)*)\\[Zz]\Z", r"\1$", re.sub(r"\A\\A", "^", pattern))
    return found


def _respell_numbers(found: dict[str, Any]) -> None:
    for edge, sign in (("minimum", -1), ("maximum", 1)):
        beyond = f"exclusive{edge.capitalize()}"
        if isinstance(found.get(beyond), bool) and found.pop(beyond) and edge in found:  # of draft 4 and OpenAPI 3.0
            found[beyond] = found.pop(edge)
        for name in (edge, beyond):
            if isinstance(found.get(name), int | float) and sign * found[name] > _MAX_BOUND:
                found[name] = sign * _MAX_BOUND
    for name in [name for name in found if name.startswith(("min", "max")) and name[3:4].isupper()]:
        value = found[name]
        if isinstance(value, float) and value.is_integer():
            found[name] = value = int(value)
        if name.startswith("max") and isinstance(value, int) and value >= _MAX_COUNT:
            del found[name]


def _enforceable(schema: Mapping[str, Any], strict: bool, notes: dict[str, None]) -> dict[str, Any]:
    found = {key: _inner(key, value, strict, notes) for key, value in _respelled(schema).items()}
    name, kinds = found.get("format"), found.get("type", "string")
    if isinstance(name, str) and name not in ENFORCED:
        is_text = "string" in (kinds if isinstance(kinds, list) else [kinds])
        if name not in FORMATS or not is_text:
            del found["format"]
            notes |= {f"format {spelled(name)}": None} if is_text else {}
        elif "pattern" not in found:
            del found["format"]
            found["pattern"] = f"^(?:{FORMATS[name]})$"
    if not strict:
        pattern = found.get("pattern")
        if isinstance(pattern, str) and not _LOOKS.fullmatch(pattern):
            del found["pattern"]
            notes["pattern"] = None
        notes |= dict.fromkeys(key for key in found if key in LEFT_OUT)
    return found


def _inner(key: str, value: Any, strict: bool, notes: dict[str, None]) -> Any:
    if key in _DATA:
        return value
    if isinstance(value, Mapping):
        if key not in NAMED:
            return _enforceable(value, strict, notes)
        return {name: _inner("", one, strict, notes) for name, one in value.items()}
    return [_inner("", one, strict, notes) for one in value] if isinstance(value, list) else value
