"""Calls written as Python: ``[weather(city="Paris", days=3), time()]``. Nothing of it is ever run.

Sources: Llama 4's chat template, and "Function calling with Gemma" in Google's documentation of Gemma 3, which shows
such lists, and calls in ``tool_code`` fences.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from twofold.text.parsers.base import SectionParser
from twofold.text.parsers.calls import CallParser, CallSyntax
from twofold.text.parsers.family import Call, Term, Tool, arguments_of, dumped, name_of, one_of, schema_of, spaced
from twofold.text.parsers.literals import PYTHON, NotLiteralError, read_value, skip
from twofold.text.parsers.pieces import PieceWriter
from twofold.text.parsers.span import PythonSpan

MAX_NAME: Final = 128
MAX_CALL: Final = 1 << 20
MARKS: Final = {"<|python_start|>": "<|python_end|>", "```tool_code": "```"}
_NAME: Final = re.compile(r"[A-Za-z0-9_.]*+")
_KEY: Final = re.compile(r"([^\s=(),\"']++)\s*+=")


class PythonCallReader:
    """A ``CallReader``. The call leaves when it is whole: only then its arguments can be read."""

    def __init__(self, out: PieceWriter, known: frozenset[str] | None) -> None:
        self._out = out
        self._known = known
        self._name = ""
        self._span: PythonSpan | None = None
        self._read: list[str] = []
        self._length = 0
        self.done = self.broken = self.left = False

    def read(self, text: str, at: int) -> int:
        """``CallReader.read``."""
        at = self._head(text, at)
        if self._span is None or self.broken:
            return at
        end = self._span.read(text, at)
        self._read.append(text[at:end])
        self._length += end - at
        if self._span.done:
            self._tell("".join(self._read))
        self.broken = self.broken or self._length > MAX_CALL
        return end

    def end(self) -> None:
        """``CallReader.end``: half a call is none."""

    def _head(self, text: str, at: int) -> int:
        """The name, up to the bracket."""
        if self._span is not None:
            return at
        end = _NAME.match(text, at).end()  # type: ignore[union-attr]
        self._name += text[at:end][: MAX_NAME + 1]
        known = self._known is None or self._name in self._known
        if len(self._name) > MAX_NAME or (end < len(text) and (text[end] != "(" or not known)):
            self.broken = True
        elif end < len(text):
            self._span = PythonSpan()
        return end

    def _tell(self, text: str) -> None:
        try:
            arguments = _arguments(text[1:-1])
        except NotLiteralError:
            self.broken = True
            return
        self._out.call(self._name)
        self._out.arguments(dumped(arguments))
        self.done = self.left = True


def _arguments(text: str) -> dict[str, Any]:
    """Keyword arguments. Raises NotLiteralError for anything else."""
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


class PythonicFamily:
    """``ToolFamily`` of models that call as Python does."""

    name = "pythonic"
    marks = ("<|python_start|>", "<|python_end|>")
    stops = ()

    def parser(self, tools: Sequence[Tool], *, parallel: bool) -> SectionParser:
        """``ToolFamily.parser``."""
        syntax = CallSyntax(MARKS, re.compile("[A-Za-z_]"), "[", PythonCallReader)
        return CallParser(syntax, map(name_of, tools), parallel=parallel)

    def rules(self, tools: Sequence[Tool], term: Term, *, parallel: bool) -> str:
        """``ToolFamily.rules``."""
        calls = one_of([f"call_{index}" for index in range(len(tools))])
        more = f" ({term(', ')} call)*" if parallel else ""
        rules = [f"start: {term('[')} call{more} {term(']')}", f"call: {calls}"]
        for index, tool in enumerate(tools):
            rules.append(f"call_{index}: {term(name_of(tool) + '(')} arguments_{index} {term(')')}")
            values = {name: spaced(tool, schema) for name, schema in properties_of(tool).items()}
            rules += argument_rules(index, tool, values, term, head="{}=".format, comma=", ")
        return "\n".join(rules)

    def written(self, calls: Sequence[Call]) -> str:
        """``ToolFamily.written``."""
        return f"[{', '.join(map(_written, calls))}]"

    def told(self, tools: Sequence[Tool]) -> str:
        """``ToolFamily.told``."""
        lines = "\n".join(dumped(tool["function"]) for tool in tools)
        return (
            f"You can call functions. These are the functions, one in each line:\n{lines}\n\n"
            'To call functions, answer with nothing but a list such as [first(name="value", count=2), second()]. '
            "What they return is told to you between <tool_response> and </tool_response>. "
            "Where no function is needed, answer in plain words."
        )


def text_choices(schema: Mapping[str, Any]) -> list[str]:
    """The ``enum`` of a schema where it is a list of texts; else nothing."""
    choices = schema.get("enum")
    return (
        list(choices)
        if isinstance(choices, list | tuple) and all(isinstance(choice, str) for choice in choices)
        else []
    )


def properties_of(tool: Tool) -> dict[str, dict[str, Any]]:
    """The schema of each argument, required ones first, each with the definitions that it may refer to."""
    schema, arguments, required = schema_of(tool), arguments_of(tool), required_of(tool)
    shared: dict[str, Any] = {name: schema[name] for name in ("$defs", "definitions") if name in schema}
    order = [*required, *(name for name in arguments if name not in required)]
    return {name: {**shared, **arguments[name]} for name in order}


def required_of(tool: Tool) -> list[str]:
    """The names of arguments that a call must have."""
    required, arguments = schema_of(tool).get("required"), arguments_of(tool)
    names = required if isinstance(required, list | tuple) else ()
    return list(dict.fromkeys(name for name in names if isinstance(name, str) and name in arguments))


def argument_rules(
    index: int, tool: Tool, values: Mapping[str, str], term: Term, *, head: Callable[[str], str], comma: str
) -> list[str]:
    """Lark rules for the arguments of a call: required ones in order, then any of the others, each at most once.

    ``values`` are rules of the values, by name; ``head`` gives what stands before one.
    """
    names, needed = list(values), len(required_of(tool))
    rules = [
        f"argument_{index}_{place}: {term(head(name))} value_{index}_{place}\nvalue_{index}_{place}: {values[name]}"
        for place, name in enumerate(names)
    ]
    rules += [
        f"rest_{index}_{place}: ({term(comma)} argument_{index}_{place})? rest_{index}_{place + 1}"
        for place in range(needed, len(names))
    ]
    rules.append(f'rest_{index}_{len(names)}: ""')
    if needed:
        first = f" {term(comma)} ".join(f"argument_{index}_{place}" for place in range(needed))
        rules.append(f"arguments_{index}: {first} rest_{index}_{needed}")
    else:
        begins = [f"argument_{index}_{place} rest_{index}_{place + 1}" for place in range(len(names))]
        rules.append(f"arguments_{index}: " + one_of([*begins, '""']))
    return rules


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
