"""Calls written as Python: ``[weather(city="Paris", days=3), time()]``. They are never executed.

Sources: Llama 4's chat template, and "Function calling with Gemma" in Google's documentation of Gemma 3, which shows
such lists, and calls in ``tool_code`` fences.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from twofold.text.parsers.base import SectionParser, skip
from twofold.text.parsers.calls import CallParser, CallSyntax
from twofold.text.parsers.family import Call, Term, Tool, argument_rules, dumped, name_of, one_of, properties_of, spaced
from twofold.text.parsers.literal_calls import (
    PYTHON,
    LiteralCallReader,
    LiteralSyntax,
    NotLiteralError,
    PythonSpan,
    read_value,
)

MARKS: Final = {"<|python_start|>": "<|python_end|>", "```tool_code": "```"}
_KEY: Final = re.compile(r"([^\s=(),\"']++)\s*+=")


def _arguments(text: str) -> dict[str, Any]:
    """Keyword arguments in brackets. Raises NotLiteralError for anything else."""
    text = text[1:-1]
    found: dict[str, Any] = {}
    at = skip(text, 0)
    while at < len(text):
        key = _KEY.match(text, at)
        if key is None:
            raise NotLiteralError
        found[key[1]], at = read_value(PYTHON, text, key.end())
        at = skip(text, at)
        if at < len(text):
            if text[at] != ",":
                raise NotLiteralError
            at = skip(text, at + 1)
    return found


_SYNTAX: Final = LiteralSyntax(re.compile(r"[A-Za-z0-9_.]*+"), "(", lambda head: head, PythonSpan, _arguments)


class PythonicFamily:
    """``ToolFamily`` of models that write calls as Python."""

    name = "pythonic"
    marks = ("<|python_start|>", "<|python_end|>")
    stops = ()

    def parser(self, tools: Sequence[Tool], *, parallel: bool) -> SectionParser:
        syntax = CallSyntax(MARKS, re.compile("[A-Za-z_]"), "[", partial(LiteralCallReader, _SYNTAX))
        return CallParser(syntax, map(name_of, tools), parallel=parallel)

    def rules(self, tools: Sequence[Tool], term: Term, *, parallel: bool) -> str:
        calls = one_of([f"call_{index}" for index in range(len(tools))])
        more = f" ({term(', ')} call)*" if parallel else ""
        rules = [f"start: {term('[')} call{more} {term(']')}", f"call: {calls}"]
        for index, tool in enumerate(tools):
            rules.append(f"call_{index}: {term(name_of(tool) + '(')} arguments_{index} {term(')')}")
            values = {name: spaced(tool, schema) for name, schema in properties_of(tool).items()}
            rules += argument_rules(index, tool, values, term, head="{}=".format, comma=", ")
        return "\n".join(rules)

    def written(self, calls: Sequence[Call]) -> str:
        return f"[{', '.join(map(_written, calls))}]"

    def instructions(self, tools: Sequence[Tool]) -> str:
        lines = "\n".join(dumped(tool["function"]) for tool in tools)
        return (
            f"You can call functions. These are the functions, one in each line:\n{lines}\n\n"
            'To call functions, answer with nothing but a list such as [first(name="value", count=2), second()]. '
            "You receive their results between <tool_response> and </tool_response>. "
            "Where no function is needed, answer in plain words."
        )


def _written(call: Call) -> str:
    return f"{call.name}({', '.join(f'{name}={_literal(value)}' for name, value in call.arguments.items())})"


def _literal(value: Any) -> str:
    """A value as Python writes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{dumped(key)}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return str(value) if value is None or isinstance(value, bool) else dumped(value)


PYTHONIC: Final = PythonicFamily()
