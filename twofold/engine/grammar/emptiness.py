"""Proves of some grammars that they have no output: a part of them always needs itself again.

The parts that can end are the least fixed point of "all that it needs can end", as for useless symbols of context-free
grammars (Hopcroft and Ullman, 1979, section 4.4). Whatever is not understood counts as able to end, so a grammar that
has an output is never refused here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeAlias

from twofold.engine.grammar.source import GrammarSource

Json: TypeAlias = Any
Part: TypeAlias = int | str
"""The ``id`` of a part of a schema, or the name of a rule."""
Needs: TypeAlias = list[list[list[Part]]]
"""All of these lists must have an alternative of which all parts end."""
_QUOTED: Final = re.compile(r'"(?:\\.|[^"\\])*"i?|/(?![/*])(?:\\.|[^/\\\n])+/[a-z]*|(?://|#)[^\n]*')
_RULE: Final = re.compile(r"^[?!]?([A-Za-z_]\w*)(?:\[[^\]\n]*\])?(?:\.-?\d+)?[ \t]*:", re.MULTILINE)
_GROUP: Final = re.compile(r"\(([^()\[\]{}]*)\)[ \t]*([*?~{])?")
_OPTIONAL: Final = re.compile(r"\w+[ \t]*[*?]")


def has_no_output(source: GrammarSource) -> bool:
    """Whether it is proven that no output satisfies the grammar."""
    if source.form == "json":
        schema = json.loads(source.text)
        return not _ending(_schema_needs(schema), id(schema)) if isinstance(schema, dict) else schema is False
    if source.form == "grammar":
        rules = _rule_needs(source.text)
        return "start" in rules and not _ending(rules, "start")
    return False


def target_of(root: Json, reference: Json) -> Json:
    """The target of a local reference in a schema; None for any other one, which llguidance refuses."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    target = root
    for step in reference[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        target = target.get(name) if isinstance(target, dict) else None
    return target


def _ending(needs: Mapping[Part, Needs], start: Part) -> bool:
    """Whether ``start`` can end. Parts without needs can."""
    left = {**needs}
    while left and start in left:
        found = [part for part, each in left.items() if all(any(_all_end(one, left) for one in of) for of in each)]
        if not found:
            return False
        for part in found:
            del left[part]
    return True


def _all_end(parts: Iterable[Part], left: Mapping[Part, Needs]) -> bool:
    return all(part not in left for part in parts)


def _schema_needs(root: Json) -> dict[Part, Needs]:
    """What each part of a schema needs."""
    needs: dict[Part, Needs] = {id(False): [[]]}
    waiting = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and id(part) not in needs:
            alternatives = [
                part[name] for name in ("anyOf", "oneOf") if part.get(name) and isinstance(part[name], list)
            ]
            needed = _needed(root, part)
            needs[id(part)] = [[[id(each) for each in needed]]]
            for one in alternatives:
                needs[id(part)].append([[id(each)] for each in one])
            waiting += [*needed, *(each for one in alternatives for each in one)]
    return needs


def _needed(root: Json, part: dict[str, Json]) -> list[Json]:
    """The parts of a schema that every value of ``part`` has to satisfy or to contain."""
    needed = [*part["allOf"]] if isinstance(part.get("allOf"), list) else []
    needed += [target_of(root, part["$ref"])] if "$ref" in part else []
    properties, required = part.get("properties"), part.get("required")
    if part.get("type") == "object" and isinstance(properties, dict) and isinstance(required, list):
        needed += [properties[name] for name in required if isinstance(name, str) and name in properties]
    least = part.get("minItems", 0)
    if part.get("type") == "array" and isinstance(least, int):
        first = part["prefixItems"][:least] if isinstance(part.get("prefixItems"), list) else []
        needed += [*first, *([part["items"]] if least > len(first) and "items" in part else [])]
    return needed


def needed_parts(root: Json) -> list[dict[str, Json]]:
    """The parts of a schema that every value has, each of them once; entries of lists may be more."""
    found: dict[int, dict[str, Json]] = {}
    waiting = [root]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict) and id(part) not in found:
            found[id(part)] = part
            waiting += [each for each in _needed(root, part) if each is not part.get("items")]
    return [*found.values()]


def chooses(text: str) -> bool:
    """Whether the rules of a Lark grammar have alternatives or repetitions, apart from those in terminals."""
    return re.search(r"[|*+?~]", _QUOTED.sub("", text)) is not None


def _rule_needs(text: str) -> dict[Part, Needs]:
    """What each rule of a Lark grammar needs; empty for a grammar with directives, which are not read here."""
    text = _QUOTED.sub(lambda found: "" if found[0].startswith(("//", "#")) else " T ", text)
    _, *parts = _RULE.split(text)
    names = parts[::2]
    if "%" in text or len(set(names)) < len(names):
        return {}
    needs: dict[Part, Needs] = {}
    for name, rule in zip(names, parts[1::2], strict=True):
        body = rule
        while (group := _GROUP.search(body)) is not None:
            inner = "T" if group[2] else f"0{len(needs)}"  # no rule has this name
            if not group[2]:
                needs[inner] = _alternatives(group[1])
            body = f"{body[: group.start()]} {inner} {body[group.end() :]}"
        needs[name] = _alternatives(body)
    return needs


def _alternatives(body: str) -> Needs:
    """The rules that each alternative of a body needs; none where it has something else than names."""
    bodies = (_OPTIONAL.sub(" ", re.sub(r"\[[^\[\]]*\]", " ", one)).replace("+", " ") for one in body.split("|"))
    return [[[*one.split()] if re.fullmatch(r"[\w\s]*", one) else [] for one in bodies]]
