"""Reads two facts from a grammar before it is compiled: the cost of its costliest part, and its literals.

``growth_bytes`` is how much a single token can add to what an answer still needs: an estimate in bytes, from above.

A token adds most where it opens the costliest part of the grammar: the longest value of an enumeration, an optional
property whose value has many required parts, a repetition of at least 100. The estimate reads the caller's text and
compiles nothing. It sets the headroom at which an answer counts as near its limit, no more: too small a value could
lose an answer, too large a one makes the last tokens plainer than necessary.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, TypeAlias

from twofold.engine.grammar.source import GrammarSource

Json: TypeAlias = Any

MAX_DEPTH: Final = 100
MAX_RISE: Final = 1 << 20
MIN_VALUE: Final = 4
_FORMAT_BYTES: Final = 40
MAX_LITERALS: Final = 32
_LITERAL: Final = re.compile(r"""(?:[^\\.^$|?*+()\[\]{}"/]|\\[^A-Za-z0-9])+""")
_ESCAPED: Final = re.compile(r"\\(.)", re.DOTALL)
_SCHEMA: Final = re.compile(r"%json\s*(?=\{)")
_COUNT: Final = re.compile(r"\{(\d{1,9})")


def growth_bytes(source: GrammarSource) -> int:
    """The estimate for a grammar that is not a list of texts."""
    if source.form == "json":
        return SchemaSizes(json.loads(source.text)).rise()
    return _lark_growth(source.text) if source.form == "grammar" else _text_growth(source.text)


def _lark_growth(text: str) -> int:
    """Schemas inside a Lark grammar (``%json {…}``) as schemas, the text around them as text."""
    rest, done, rise = [], 0, 0
    for found in _SCHEMA.finditer(text):
        with suppress(ValueError, RecursionError):
            schema, end = json.JSONDecoder().raw_decode(text, found.end())
            rise = max(rise, SchemaSizes(schema).rise())
            rest.append(text[done : found.start()])
            done = end
    return min(MAX_RISE, rise + _text_growth("".join((*rest, text[done:]))))


def _text_growth(text: str) -> int:
    """For regexes and rules: the longest alternative, and the largest count of a repetition."""
    longest = max(len(part.encode(errors="replace")) for part in re.split(r"[|\n]", text))
    return min(MAX_RISE, longest + max(map(int, _COUNT.findall(text)), default=0))


def literals(source: GrammarSource) -> tuple[str, ...]:
    """Texts that a regex or grammar may want word for word, such as ``foo`` and ``.com`` in ``.*foo.*\\.com``."""
    text = " ".join(_patterns(source.text)) if source.form == "json" else source.text
    found = (_ESCAPED.sub(r"\1", literal) for literal in _LITERAL.findall(text))
    return tuple(dict.fromkeys(found))[:MAX_LITERALS]


def _patterns(schema: str) -> list[str]:
    return [
        part["pattern"]
        for part, _ in SchemaSizes(json.loads(schema)).parts()
        if isinstance(part, dict) and isinstance(part.get("pattern"), str)
    ]


class SchemaSizes:
    """How many bytes the parts of a JSON schema need at the least, roughly and rather too many than too few."""

    def __init__(self, schema: Json) -> None:
        self._root = schema
        self._known: dict[int, int] = {}

    def rise(self) -> int:
        """What the costliest part needs."""
        return max((self.least(part) + extra for part, extra in self.parts()), default=MIN_VALUE)

    def least(self, part: Json, depth: int = 0) -> int:
        """Bytes of the shortest value that is valid for ``part``; of an enumeration's longest one."""
        if not isinstance(part, dict) or depth > MAX_DEPTH:
            return MIN_VALUE
        known = self._known.get(id(part))
        if known is None:
            self._known[id(part)] = MIN_VALUE  # what a reference to itself finds
            known = self._known[id(part)] = min(MAX_RISE, self._least(part, depth + 1))
        return known

    def _least(self, part: dict[str, Json], depth: int) -> int:
        if "const" in part:
            return len(json.dumps(part["const"]))
        if isinstance(part.get("enum"), list):
            return max((len(json.dumps(value)) for value in part["enum"]), default=MIN_VALUE)
        total = self._own(part, depth)
        for name in ("anyOf", "oneOf"):
            branches = part.get(name)
            total += max((self.least(one, depth) for one in branches), default=0) if isinstance(branches, list) else 0
        if isinstance(part.get("allOf"), list):
            total += sum(self.least(one, depth) for one in part["allOf"])
        return total + (self.least(self._target(part["$ref"]), depth) if "$ref" in part else 0)

    def _own(self, part: dict[str, Json], depth: int) -> int:
        """Of the keywords for each type, added up: a schema rarely has those of several."""
        total = MIN_VALUE + _count(part, "minLength") + (_FORMAT_BYTES if "format" in part else 0)
        total += _text_growth(part["pattern"]) if isinstance(part.get("pattern"), str) else 0
        total += max(len(str(part.get(name, ""))) for name in ("minimum", "maximum", "multipleOf"))
        total += _count(part, "minItems") * (1 + self.least(part.get("items"), depth))
        prefix = part.get("prefixItems")
        total += sum(self.least(one, depth) + 1 for one in prefix) if isinstance(prefix, list) else 0
        properties, required = part.get("properties"), part.get("required")
        values = properties if isinstance(properties, dict) else {}
        names = required if isinstance(required, list) else []
        total += sum(len(str(name)) + 4 + self.least(values.get(str(name)), depth) for name in names)
        return total + _count(part, "minProperties") * 8

    def _target(self, reference: Json) -> Json:
        """What a local reference points to; nothing for any other one, which llguidance refuses."""
        if not isinstance(reference, str) or not reference.startswith("#"):
            return None
        target = self._root
        for step in reference[1:].split("/")[1:]:
            name = step.replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, dict) else None
        return target

    def parts(self) -> Iterator[tuple[Json, int]]:
        """Everything in the schema that may be a schema, with the bytes of the key before it."""
        waiting = [(self._root, 0)]
        while waiting:
            part, before = waiting.pop()
            if isinstance(part, dict):
                yield part, before
                waiting += [(inner, len(name) + 4) for name, inner in part.items()]
            elif isinstance(part, list):
                waiting += [(inner, 0) for inner in part]


def _count(part: dict[str, Json], name: str) -> int:
    value = part.get(name, 0)
    return min(MAX_RISE, int(value)) if isinstance(value, int | float) and 0 <= value <= MAX_RISE else 0
