"""Families whose calls are JSON objects. Their differences are data.

Sources: the chat templates of Hermes 2 Pro and Qwen 2.5, of Llama 3.1, and of Mistral 7B v0.3.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from twofold.text.parsers.base import SectionParser
from twofold.text.parsers.calls import CallParser, CallSyntax
from twofold.text.parsers.family import Call, Term, Tool, dumped, name_of, one_of, schema_of, spaced
from twofold.text.parsers.json_calls import JsonCallReader


@dataclass(frozen=True, slots=True)
class JsonFamily:
    """Calls are objects with ``name`` and ``key``.

    pairs    marks before calls and after them, where calls are found
    first    texts and marks before all calls, ``last`` after them, ``between`` two of them
    before   texts and marks before each call, ``after`` behind it
    """

    name: str
    key: str
    pairs: tuple[tuple[str, str], ...]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    between: tuple[str, ...] = ()

    @property
    def marks(self) -> tuple[str, ...]:
        """``ToolFamily.marks``."""
        return tuple(mark for pair in self.pairs for mark in pair if mark)

    @property
    def stops(self) -> tuple[str, ...]:
        """``ToolFamily.stops``."""
        return ()

    def parser(self, tools: Sequence[Tool], *, parallel: bool) -> SectionParser:
        """``ToolFamily.parser``."""
        syntax = CallSyntax(dict(self.pairs), re.compile("{"), "{[", JsonCallReader)
        return CallParser(syntax, map(name_of, tools), parallel=parallel)

    def rules(self, tools: Sequence[Tool], term: Term, *, parallel: bool) -> str:
        """``ToolFamily.rules``."""

        def terms(*texts: str) -> str:
            return " ".join(map(term, texts))

        more = f" ({terms(*self.between)} call)*" if parallel else ""
        calls = one_of([f"call_{index}" for index in range(len(tools))])
        rules = [
            f"start: {terms(*self.first)} call{more} {terms(*self.last)}",
            f"""call: {terms(*self.before, '{"name": "')} ({calls}) {terms("}", *self.after)}""",
        ]
        for index, tool in enumerate(tools):
            head = terms(f'{dumped(name_of(tool))[1:]}, "{self.key}": ')
            rules.append(f"call_{index}: {head} arguments_{index}\narguments_{index}: {spaced(tool, schema_of(tool))}")
        return "\n".join(rules)

    def written(self, calls: Sequence[Call]) -> str:
        """``ToolFamily.written``."""
        texts = (
            "".join((*self.before, dumped({"name": call.name, self.key: call.arguments}), *self.after))
            for call in calls
        )
        return "".join(self.first) + "".join(self.between).join(texts) + "".join(self.last)

    def instructions(self, tools: Sequence[Tool]) -> str:
        """``ToolFamily.instructions``."""
        example = self.written([Call("function_name", {"argument": "value"})])
        lines = "\n".join(dumped(tool["function"]) for tool in tools)
        return (
            f"# Tools\n\nYou can call functions. These are the functions, one in each line:\n{lines}\n\n"
            f"To call a function, write its name and its arguments in exactly this form:\n{example}\n"
            "What it returns is told to you between <tool_response> and </tool_response>. "
            "Where no function is needed, answer in plain words."
        )


HERMES: Final = JsonFamily(
    "hermes",
    "arguments",
    (("<tool_call>", "</tool_call>"),),
    before=("<tool_call>", "\n"),
    after=("\n", "</tool_call>"),
    between=("\n",),
)
LLAMA3: Final = JsonFamily("llama3", "parameters", (("<|python_tag|>", ""),), between=("; ",))
MISTRAL: Final = JsonFamily(
    "mistral", "arguments", (("[TOOL_CALLS]", ""),), first=("[TOOL_CALLS]", "["), last=("]",), between=(", ",)
)
