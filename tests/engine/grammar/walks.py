"""Outputs that are sampled at random under a constraint, and forms with checks of outputs."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from twofold.core.params import StructuredOutputsParams
from twofold.core.step import TokenConstraint
from twofold.engine.grammar.compiled import CompiledGrammar
from twofold.engine.grammar.vocabulary import TokenVocabulary, allowed_ids

Check = Callable[[str], bool]


@dataclass(frozen=True, slots=True)
class Form:
    """A form, and a check that a text has it."""

    params: StructuredOutputsParams
    holds: Check


@dataclass(frozen=True, slots=True)
class Answer:
    """What a walk drew, without the end token."""

    tokens: tuple[int, ...]
    text: str
    ended: bool
    shortened: bool


def allowed(constraint: TokenConstraint) -> list[int]:
    """The tokens of a mask."""
    words: NDArray[np.uint32] = np.asarray(constraint.masks()[0])
    ids: list[int] = allowed_ids(words).tolist()
    return ids


def walk(compiled: CompiledGrammar, max_tokens: int, draw: random.Random, structural: float = 0.0) -> Answer:
    """Samples tokens until the output ends; with probability ``structural`` one that opens or closes something."""
    vocabulary = compiled.vocabulary
    constraint = compiled.start(max_tokens)
    tokens: list[int] = []
    ended = False
    while len(tokens) < max_tokens and not constraint.finished:
        token = _drawn(vocabulary, allowed(constraint), draw, structural)
        constraint.advance([token])
        ended = token in vocabulary.end_ids
        tokens += [] if ended else [token]
    data = b"".join(vocabulary.tokens[token] for token in tokens)
    return Answer(tuple(tokens), data.decode(), ended or constraint.finished, constraint.shortened)


def _drawn(vocabulary: TokenVocabulary, ids: list[int], draw: random.Random, structural: float) -> int:
    if draw.random() < structural:
        known = _structural(vocabulary)
        ids = [token for token in ids if token in known] or ids
    return draw.choice(ids)


@cache
def _structural(vocabulary: TokenVocabulary) -> frozenset[int]:
    return frozenset(token for token, data in enumerate(vocabulary.tokens) if set(data) & set(b'{[("'))


def schema_form(schema: dict[str, Any], check: Callable[[Any], bool]) -> Form:
    return Form(StructuredOutputsParams(json=schema), lambda text: check(json.loads(text)))


def is_person(value: Any) -> bool:
    return (
        isinstance(value, dict)
        and {"name", "age", "tags"} <= value.keys() <= {"name", "age", "tags", "address"}
        and isinstance(value["name"], str)
        and type(value["age"]) is int
        and all(isinstance(tag, str) for tag in value["tags"])
        and len(value["tags"]) <= 3
        and ("address" not in value or set(value["address"]) == {"street", "number", "city"})
    )


PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}, "maxItems": 3},
        "address": {
            "type": "object",
            "properties": {"street": {"type": "string"}, "number": {"type": "number"}, "city": {"type": "string"}},
            "required": ["street", "number", "city"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}

WIDE = [f"measurement_{index}" for index in range(12)]


def is_wide(value: Any) -> bool:
    return value is None or (set(value) == set(WIDE) and all(isinstance(each, bool) for each in value.values()))


def is_tree(value: Any) -> bool:
    return set(value) == {"value", "children"} and type(value["value"]) is int and all(map(is_tree, value["children"]))


TREE: dict[str, Any] = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}

LONG_NAMES = ["ok", "a much longer name of a thing, with a comma", 'and "quotes" \\ and a \n line', "żółw 🐢 " * 5]

EXPRESSION = re.compile(r"\d+|\(\d+[+*]\d+\)")


def is_expression(text: str) -> bool:
    """Whether brackets, sums and products reduce to a number."""
    while len(shorter := EXPRESSION.sub("1", text)) < len(text):
        text = shorter
    return text == "1" or text.isdigit()


FORMS: dict[str, Form] = {
    "object": Form(StructuredOutputsParams(json_object=True), lambda text: isinstance(json.loads(text), dict)),
    "person": schema_form(PERSON, is_person),
    "tree": schema_form(TREE, is_tree),
    "wide": schema_form(
        {
            "anyOf": [
                {"type": "null"},
                {
                    "type": "object",
                    "properties": {name: {"type": "boolean"} for name in WIDE},
                    "required": WIDE,
                    "additionalProperties": False,
                },
            ]
        },
        is_wide,
    ),
    "enum": schema_form({"enum": [*LONG_NAMES, 7, None]}, lambda value: value in [*LONG_NAMES, 7, None]),
    "lengths": schema_form(
        {"type": "array", "items": {"type": "string", "minLength": 4, "maxLength": 9}, "minItems": 2, "maxItems": 4},
        lambda value: 2 <= len(value) <= 4 and all(4 <= len(each) <= 9 for each in value),
    ),
    "date": schema_form(
        {"type": "string", "format": "date"}, lambda value: bool(re.fullmatch(r"\d{4}-\d\d-\d\d", value))
    ),
    "email": Form(
        StructuredOutputsParams(regex=r"^[a-z0-9]+@[a-z]{2,8}\.(com|org)$"),
        lambda text: re.fullmatch(r"[a-z0-9]+@[a-z]{2,8}\.(com|org)", text) is not None,
    ),
    "branches": Form(
        StructuredOutputsParams(regex=r"[ab]+x|c[0-9]{30}|d"),
        lambda text: re.fullmatch(r"[ab]+x|c[0-9]{30}|d", text) is not None,
    ),
    "wildcard": Form(
        StructuredOutputsParams(regex=r".*foo.*\.com"), lambda text: re.fullmatch(r".*foo.*\.com", text) is not None
    ),
    "choice": Form(StructuredOutputsParams(choice=LONG_NAMES), lambda text: text in LONG_NAMES),
    "lark": Form(
        StructuredOutputsParams(grammar='start: e\ne: NUM | "(" e ("+" | "*") e ")"\nNUM: /[0-9]+/'), is_expression
    ),
    "gbnf": Form(
        StructuredOutputsParams(grammar='root ::= expr\nexpr ::= num | "(" expr [+*] expr ")"\nnum ::= [0-9]+'),
        is_expression,
    ),
}
