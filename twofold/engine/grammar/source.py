"""From what a caller asks for to the grammar that llguidance compiles, without compiling anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from llguidance import LLMatcher

from twofold.core.errors import ParameterError
from twofold.core.json_schema import closed_schema
from twofold.core.params import StructuredOutputsParams
from twofold.core.step import TokenConstraint
from twofold.engine.grammar.gbnf import gbnf_to_lark, is_gbnf

MAX_SOURCE_BYTES: Final = 262_144


@dataclass(frozen=True, slots=True)
class GrammarSource:
    """A grammar to compile, in llguidance's JSON.

    form    the caller's name for its kind: json, json_object, regex, choice or grammar
    text    the schema, the regex or the Lark grammar; empty for the others
    texts   all answers there are, where the caller named them; else empty
    """

    form: str
    grammar: str
    text: str = ""
    texts: tuple[bytes, ...] = ()


def grammar_source(params: StructuredOutputsParams) -> GrammarSource:
    """The grammar of ``params``. Raises ParameterError for one that is too long or cannot be read."""
    if params.json is not None:
        return _json_source(params.json)
    if params.json_object:
        return GrammarSource("json_object", _json_grammar('{"type": "object"}'))
    if params.regex is not None:
        _check_size("regex", params.regex)
        return GrammarSource("regex", LLMatcher.grammar_from_regex(_unanchored(params.regex)), params.regex)
    if params.choice is not None:
        return _choice_source(tuple(params.choice))
    assert params.grammar is not None
    _check_size("grammar", params.grammar)
    lark = gbnf_to_lark(params.grammar) if is_gbnf(params.grammar) else params.grammar
    return GrammarSource("grammar", LLMatcher.grammar_from_lark(lark), lark)


def form_of(params: StructuredOutputsParams) -> str:
    """The caller's name for the kind of a form."""
    names = ("json", "regex", "choice", "grammar")
    return next((name for name in names if getattr(params, name) is not None), "json_object")


def portable(params: StructuredOutputsParams) -> StructuredOutputsParams:
    """The same form with its schema as text, so that it can travel. Raises ParameterError for one that is too long or
    no Unicode text."""
    if params.json is not None and not isinstance(params.json, str):
        params = StructuredOutputsParams(json=_schema_text(params.json))
    form = form_of(params)
    if form != "json_object":
        text = getattr(params, form)
        _check_size(form, text if isinstance(text, str) else "".join(text))
    return params


def _schema_text(schema: str | Mapping[str, Any]) -> str:
    try:
        return schema if isinstance(schema, str) else json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise impossible("json", f"is not JSON: {_line(error)}", "Send a JSON schema.") from error
    except RecursionError as error:
        raise impossible("json", "is nested too deeply", "Use $defs and $ref for what repeats.") from error


def _json_grammar(schema: str) -> str:
    """Strings may hold escapes of any character, as ASCII-only JSON writes them; never half a surrogate pair."""
    return LLMatcher.grammar_from_json_schema(schema, {"json_allow_general_unicode_escapes": True})


def impossible(form: str, why: str, hint: str) -> ParameterError:
    """The error for a grammar that cannot be used."""
    return ParameterError(f"The structured output's {form} {why}.", param=f"structured_outputs.{form}", hint=hint)


def _check_size(form: str, text: str) -> None:
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise impossible(form, "holds a lone surrogate, which is not Unicode text", "Send it as UTF-8.") from error
    if size > MAX_SOURCE_BYTES:
        raise impossible(form, f"takes {size} bytes, at most {MAX_SOURCE_BYTES} are possible", "Make it smaller.")
    if "\0" in text:
        raise impossible(form, "holds a NUL character", "Write it as an escape.")


def _choice_source(choice: tuple[str, ...]) -> GrammarSource:
    _check_size("choice", "".join(choice))
    lark = "start: " + " | ".join(json.dumps(text, ensure_ascii=False) for text in choice)
    texts = tuple(dict.fromkeys(text.encode() for text in choice))
    return GrammarSource("choice", LLMatcher.grammar_from_lark(lark), texts=texts)


def _json_source(schema: str | Mapping[str, Any]) -> GrammarSource:
    try:
        text = _schema_text(schema)
        _check_size("json", text)
        value = json.loads(text)
        if not isinstance(value, dict | bool):
            raise impossible("json", "is not a JSON schema, which is an object", 'Write {"type": …}.')
        if value is False:
            raise impossible("json", "is false, which no answer satisfies", "Write a schema, or true for any value.")
        if isinstance(value, dict) and (closed := closed_schema(value)) != value:
            text = json.dumps(closed)
        return GrammarSource("json", _json_grammar("{}" if value is True else text), text)
    except (TypeError, ValueError) as error:
        raise impossible("json", f"is not JSON: {_line(error)}", "Send a JSON schema.") from error
    except RecursionError as error:
        raise impossible("json", "is nested too deeply", "Use $defs and $ref for what repeats.") from error


def _line(error: Exception) -> str:
    return str(error).split("\n")[0][:120]


def _unanchored(regex: str) -> str:
    """The regex without the anchors around it: the whole answer has to match anyway."""
    body = regex.removeprefix("^")
    escapes = len(body) - 1 - len(body[:-1].rstrip("\\"))
    return body[:-1] if body.endswith("$") and escapes % 2 == 0 else body


class OutputConstraint(TokenConstraint, Protocol):
    """The constraint of a structured output: there is always a mask."""

    def mask(self) -> memoryview:
        """``TokenConstraint.mask``."""
        ...

    def fork(self) -> OutputConstraint:
        """``TokenConstraint.fork``."""
        ...


class OutputGrammar(Protocol):
    """A compiled grammar. ``min_tokens``: a valid output of this many tokens is known."""

    @property
    def min_tokens(self) -> int: ...

    def start(self, max_tokens: int) -> OutputConstraint:
        """The constraint of one completion of at most ``max_tokens`` tokens, which is valid whenever it ends.

        Raises ParameterError if the grammar needs more tokens than that.
        """
        ...
