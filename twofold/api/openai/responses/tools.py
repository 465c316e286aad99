"""Tools of the Responses API: functions, and the choice among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from twofold.api.conversation import NamedTool, ToolChoice
from twofold.api.fields import FieldError, Fields, impossible
from twofold.api.openai.tools import MAX_NAME_CHARS, MAX_TOOLS, is_function
from twofold.core.errors import named, quoted
from twofold.engine.prompts import Message

WORDS: Final = ("auto", "none", "required")


@dataclass(frozen=True, slots=True)
class Tools:
    """The tools that may be called, in the shape that templates read, and what the reply says about them.

    told, told_choice   all tools and the choice, as the API tells them
    """

    shown: tuple[Message, ...]
    choice: ToolChoice
    told: tuple[dict[str, Any], ...]
    told_choice: str | dict[str, Any]

    @classmethod
    def read(cls, fields: Fields) -> Self:
        told = _read_tools(fields.take("tools"))
        given = fields.take("tool_choice")
        shown = tuple(map(_shown, told))
        if given is None or given in WORDS:
            word: Any = given or "auto"
            return cls(shown, word, told, word)
        choice = Fields(_object(given), "tool_choice")
        kind = choice.choice("type", ("function", "allowed_tools"))
        if kind == "function":
            named = _name(choice)
            choice.close()
            return cls(shown, NamedTool(named), told, {"type": "function", "name": named})
        mode, names = _allowed(choice, [tool["name"] for tool in told])
        some = tuple(tool for tool in shown if tool["function"]["name"] in names)
        echo = {"type": kind, "mode": mode, "tools": [{"type": "function", "name": name} for name in names]}
        return cls(some, "required" if mode == "required" else "auto", told, echo)


def _object(given: object) -> object:
    if isinstance(given, str):
        raise FieldError(
            f"tool_choice {named(given)} is unknown.",
            param="tool_choice",
            hint=f'Possible: {", ".join(WORDS)}, {{"type": "function", "name": …}}.',
        )
    return given


def _read_tools(given: object) -> tuple[dict[str, Any], ...]:
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > MAX_TOOLS:
        raise impossible("tools", given, f"a list of at most {MAX_TOOLS} tools")
    tools = tuple(_tool(tool) for tool in _functions(given, "tools"))
    names = [tool["name"] for tool in tools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise FieldError(f"tools holds {quoted(twice)} twice.", param="tools", hint="Give each function its own name.")
    return tools


def _functions(tools: list[Any], where: str) -> Iterator[Fields]:
    """The tools that can be offered to a model; built-in ones and others are left out."""
    for index, one in enumerate(tools):
        tool = Fields(one, f"{where}[{index}]")
        if is_function(tool, 'A tool is {"type": "function", "name": …, "parameters": {…}}.'):
            yield tool


def _tool(fields: Fields) -> dict[str, Any]:
    name, parameters = _name(fields), fields.take("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise impossible(fields.name("parameters"), parameters, "a JSON schema")
    for refused in ("async", "defer_loading"):
        fields.only(refused, False)
    fields.only("allowed_callers", ["direct"])
    tool = {
        "type": "function",
        "name": name,
        "description": fields.text("description"),
        "parameters": parameters,
        "strict": fields.flag("strict"),
    }
    fields.only("output_schema")
    fields.close()
    return tool


def _name(fields: Fields) -> str:
    name = fields.require("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise impossible(fields.name("name"), name, f"a name of 1 to {MAX_NAME_CHARS} characters")
    return name


def _shown(tool: dict[str, Any]) -> Message:
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool[name] is not None}
    return {"type": "function", "function": function | ({"strict": True} if tool["strict"] else {})}


def _allowed(choice: Fields, known: Sequence[str]) -> tuple[str, list[str]]:
    """The mode and the names of the tools that may be called."""
    mode, given = choice.choice("mode", ("auto", "required")), choice.require("tools")
    choice.close()
    if not isinstance(given, list) or not given:
        raise impossible("tool_choice.tools", given, "a list of tools")
    names = []
    for tool in _functions(given, "tool_choice.tools"):
        names.append(tool.choice("name", known))
        tool.close()
    return mode, names
