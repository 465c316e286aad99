"""A token limit that an output does not reach leaves it as it is; an output that reaches its limit is valid."""

from __future__ import annotations

import json
import random
import re
import string
from functools import reduce
from typing import Any, Final

import pytest

from tests.engine.grammar.conftest import LocalCompiler
from tests.engine.grammar.schemas import FORMATTED, PATTERNS, one, strings
from tests.engine.grammar.walks import FORMS, PERSON, Form, allowed, schema_form
from tests.support.vocabulary import tokenizer_of
from tests.text.vocabularies import bytelevel_metadata
from twofold.core.errors import ParameterError
from twofold.core.json_formats import FORMATS
from twofold.core.params import StructuredOutputsParams
from twofold.engine.grammar.compiled import COMPILE_WORK, CompiledGrammar
from twofold.engine.grammar.form import MAX_LEVELS
from twofold.engine.grammar.lexemes import MAX_DIGITS
from twofold.text.parsers.json_calls import HERMES

WIDE: Final = 1_000
MARGINS: Final = (3, 8, 20, 60)


def pattern_form(pattern: str) -> Form:
    return schema_form(one({"type": "string", "pattern": pattern}), lambda value: bool(re.search(pattern, value["a"])))


def regex_form(regex: str) -> Form:
    """Python's ``\\s`` has more characters than Rust's, and its ``\\w`` and ``\\d`` fewer: these are replaced."""
    odd = str.maketrans({chr(code): "_" for code in range(28, 32)})

    def holds(text: str) -> bool:
        plain = "".join(c if c.isascii() or c.isspace() else "1" for c in text)
        return re.fullmatch(regex, plain.translate(odd)) is not None

    return Form(StructuredOutputsParams(regex=regex), holds)


def call_form(schema: dict[str, Any]) -> Form:
    tool = {"type": "function", "function": {"name": "save", "parameters": schema}}

    def holds(text: str) -> bool:
        return has_required(json.loads(text.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")), schema)

    return Form(StructuredOutputsParams(grammar=HERMES.rules([tool], json.dumps, parallel=False)), holds)


def has_required(call: Any, schema: dict[str, Any]) -> bool:
    return bool(call["name"] == "save") and set(schema["required"]) <= call["arguments"].keys()


def flags(count: int) -> dict[str, Any]:
    names = [f"flag {number}" for number in range(count)]
    return {"type": "object", "properties": {name: {"type": "boolean"} for name in names}, "required": names}


DEEP: Final = reduce(lambda inner, _: one(inner), range(20), flags(40))
CASES: Final = {
    **FORMS,
    "many": schema_form(flags(12), lambda value: len(value) == 12),
    "formats": schema_form(FORMATTED, lambda value: all(re.fullmatch(FORMATS[name], value[name]) for name in FORMATS)),
    **{f"string {pattern}": pattern_form(pattern) for pattern in PATTERNS},
    **{f"regex {pattern}": regex_form(pattern) for pattern in PATTERNS},
    "call of many": call_form(flags(12)),
    "call": call_form(one({"type": "string"})),
    "call of four": call_form(strings("name", "email", "city", "note")),
    "call of a person": call_form(PERSON),
    "long": schema_form(one({"type": "string", "minLength": 40}), lambda value: len(value["a"]) >= 40),
    "bounded": schema_form(
        one({"type": "string", "minLength": 3, "maxLength": 30}), lambda value: 3 <= len(value["a"]) <= 30
    ),
}


def output(compiled: CompiledGrammar, begin: int, draw: random.Random) -> list[int]:
    """An output without a limit: ``begin`` tokens at random, then a short end. Empty if none was found."""
    constraint, tokens = compiled.start(WIDE), list[int]()
    while len(tokens) < begin:
        token = draw.choice(allowed(constraint))
        if token in compiled.vocabulary.end_ids:
            break
        constraint.advance([token])
        tokens.append(token)
        if constraint.finished:
            return tokens
    assert not constraint.shortened
    spelled = b"".join(compiled.vocabulary.tokens[token] for token in tokens)
    end = constraint._search.find(constraint._matcher, WIDE, spelled, COMPILE_WORK)
    return [] if end is None else [*tokens, *end]


def refused(compiled: CompiledGrammar, limit: int, tokens: list[int]) -> int | None:
    """The place of the first token that a limit does not allow."""
    constraint = compiled.start(max(limit, compiled.min_tokens))
    for place, token in enumerate(tokens):
        if token not in allowed(constraint):
            return place
        constraint.advance([token])
    return None


def check_margins(compiled: CompiledGrammar, begins: range) -> None:
    """Outputs are allowed wherever the limit leaves room for them. (llguidance allows a forced text in one way only,
    so some outputs are not allowed at all.)"""
    outputs = [output(compiled, begin, random.Random(begin)) for begin in begins]
    for tokens in outputs:
        if refused(compiled, WIDE, tokens) is None:
            places = {margin: refused(compiled, len(tokens) + margin, tokens) for margin in MARGINS}
            assert {*places.values()} == {None}, (places, text_of(compiled, tokens))


def text_of(compiled: CompiledGrammar, tokens: list[int]) -> str:
    return b"".join(compiled.vocabulary.tokens[token] for token in tokens).decode(errors="replace")


@pytest.mark.parametrize("form", CASES.values(), ids=CASES)
def test_a_limit_that_is_not_reached_changes_nothing(tiny_compiler: LocalCompiler, form: Form) -> None:
    long = form is CASES["formats"]
    check_margins(tiny_compiler.compile(form.params), range(0, 40, 40 if long else 5))


@pytest.mark.parametrize("form", CASES.values(), ids=CASES)
def test_outputs_at_their_limits_are_valid(tiny_compiler: LocalCompiler, form: Form) -> None:
    compiled = tiny_compiler.compile(form.params)
    draw = random.Random(1)
    for limit in (compiled.min_tokens, compiled.min_tokens + 1, *(compiled.min_tokens + draw.randrange(2, 60),) * 3):
        constraint, text = compiled.start(limit), b""
        for _ in range(limit):
            if constraint.finished:
                break
            token = draw.choice(allowed(constraint))
            constraint.advance([token])
            text += b"" if token in compiled.vocabulary.end_ids else compiled.vocabulary.tokens[token]
        assert form.holds(text.decode()), (limit, text)


def many_beginnings() -> LocalCompiler:
    """A string begins with one of 90 tokens here, and the shortest one is a token of both quotation marks."""
    letters = string.ascii_letters + string.digits + "!#$%&()*+-./:;<=>?@[]^_`|~"
    tokenizer = tokenizer_of(
        bytelevel_metadata([('"', '"'), *(('"', letter) for letter in letters)], control=("<|end|>",))
    )
    return LocalCompiler(tokenizer, tokenizer.vocab_size)


@pytest.mark.parametrize("form", [schema_form(DEEP, bool), call_form(DEEP)], ids=["schema", "call"])
def test_what_every_output_has_does_not_bring_the_limit_near(tiny_compiler: LocalCompiler, form: Form) -> None:
    """Near a limit every token is proven, which takes long; a limit of many times the output's length is not near."""
    compiled = tiny_compiler.compile(form.params)
    assert compiled.min_tokens > 400
    assert compiled.headroom < 100


def test_optional_parts_bring_the_limit_near(tiny_compiler: LocalCompiler) -> None:
    schema = {"type": "object", "properties": {"a": flags(40)}, "additionalProperties": False}
    assert tiny_compiler.compile(StructuredOutputsParams(json=schema)).headroom > 400


def test_all_beginnings_of_a_string_fit_where_one_fits() -> None:
    compiler = many_beginnings()
    compiled = compiler.compile(StructuredOutputsParams(json=one({"type": "string"})))
    head = compiler.vocabulary.cut(b'{"a":')
    wide, narrow = compiled.start(WIDE), compiled.start(len(head) + 8)
    wide.advance(head)
    narrow.advance(head)
    assert {token for token in allowed(wide) if compiler.vocabulary.tokens[token][:1] == b'"'} <= set(allowed(narrow))
    assert not narrow.shortened


@pytest.mark.parametrize("margin", [6, 8, 20, 60])
def test_a_complete_output_that_could_go_on_is_not_shortened_by_its_limit(
    tiny_compiler: LocalCompiler, margin: int
) -> None:
    tool = {"type": "function", "function": {"name": "save", "parameters": one({"type": "string"})}}
    compiled = tiny_compiler.compile(StructuredOutputsParams(grammar=HERMES.rules([tool], json.dumps, parallel=True)))
    text = b'<tool_call>\n{"name": "save", "arguments": {"a": "Ada"}}\n</tool_call>'
    tokens = compiled.vocabulary.cut(text)
    constraint = compiled.start(len(tokens) + margin)
    constraint.advance(tokens)
    assert compiled.vocabulary.end_ids[0] in allowed(constraint)
    constraint.advance([compiled.vocabulary.end_ids[0]])
    assert not constraint.shortened


def test_a_token_that_goes_on_after_the_end_leaves_its_beginning() -> None:
    """As ``>`` and a line break do at the end of a call, after which another call has no room."""
    tokenizer = tokenizer_of(bytelevel_metadata([(">", ";")], control=("<|end|>",)))
    compiler = LocalCompiler(tokenizer, tokenizer.vocab_size)
    compiled = compiler.compile(StructuredOutputsParams(grammar='start: "<a>" (";<a>")*'))
    constraint = compiled.start(4)
    for byte in b"<a>":
        tokens = compiler.vocabulary.cut(bytes([byte]))
        assert tokens[0] in allowed(constraint)
        constraint.advance(tokens)
    assert not constraint.shortened


@pytest.mark.parametrize("kind", ["integer", "number"])
def test_digits_end_unless_the_schema_needs_more(tiny_compiler: LocalCompiler, kind: str) -> None:
    zero = tiny_compiler.vocabulary.cut(b"0")[0]

    def longest(schema: dict[str, Any], text: bytes) -> int:
        """The zeros that may follow a text."""
        constraint = tiny_compiler.compile(StructuredOutputsParams(json=schema)).start(200)
        constraint.advance(tiny_compiler.vocabulary.cut(text))
        for count in range(100):
            if zero not in allowed(constraint):
                return count
            constraint.advance([zero])
        return 100

    assert longest({"type": kind}, b"1") == MAX_DIGITS - 1
    if kind == "number":
        assert longest({"type": kind}, b"1.5") == MAX_DIGITS - 1
        assert [longest({"type": kind}, text) for text in (b"1e1", b"1.5E+1", b"1e-11")] == [1, 1, 0]
    assert longest({"enum": [10**25, 2]}, b"1") == 25
    assert longest({"type": "string"}, b'"1') == 100


@pytest.mark.parametrize("levels", [MAX_LEVELS // 2 - 1, MAX_LEVELS // 2 + 2, 90])
@pytest.mark.parametrize("form", ["json", "grammar"])
def test_a_schema_of_too_many_levels_is_refused_with_the_number(local: LocalCompiler, levels: int, form: str) -> None:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(levels):
        schema = one(schema)
    params = StructuredOutputsParams(json=schema) if form == "json" else call_form(schema).params
    if 2 * levels < MAX_LEVELS:
        assert local.compile(params).ends
    else:
        with pytest.raises(ParameterError, match=f"at most {MAX_LEVELS} levels"):
            local.compile(params)


class _CountedRows(list[Any]):
    """Counts the bytes that an automaton reads."""

    reads = 0

    def __getitem__(self, place: Any) -> Any:
        type(self).reads += 1
        return super().__getitem__(place)


@pytest.mark.parametrize("pattern", [r"^\"[^\"]+\"\\$", r"^(?:[^,]+,\s*){3}[^,]+$", r"^(?:[^;]+;\s*){2}[^;]+$"])
def test_masks_near_a_limit_read_only_the_new_bytes_of_a_text(local: LocalCompiler, pattern: str) -> None:
    compiled = local.compile(call_form(one({"type": "string", "pattern": pattern})).params)
    for lexeme in compiled.lexemes._all:
        lexeme.automaton._rows = _CountedRows(lexeme.automaton._rows)
    reads = list[int]()
    for length in (100, 400):
        constraint = compiled.start(compiled.min_tokens + length + 4)
        begin = r"\"" if pattern[1] == "\\" else ""
        text = f'<tool_call>\n{{"name": "save", "arguments": {{"a": "{begin}{"x" * length}'
        constraint.advance(local.vocabulary.cut(text.encode()))
        constraint.prepare()
        _CountedRows.reads = 0
        constraint.advance([local.vocabulary.cut(b"x")[0]])
        constraint.prepare()
        reads.append(_CountedRows.reads)
    assert 0 < reads[1] < 400  # which are fewer than the text has
