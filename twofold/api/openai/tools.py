"""The tools of a chat, and which of them may or must be called."""

from __future__ import annotations

from typing import Any, Final

from twofold.api.conversation import NamedTool, ToolChoice
from twofold.api.fields import FieldError, Fields, impossible, leave_out
from twofold.core.errors import named
from twofold.engine.prompts import Message

MAX_TOOLS: Final = 128
MAX_NAME_CHARS: Final = 128


def read_tools(fields: Fields) -> tuple[tuple[Message, ...], ToolChoice]:
    """The tools that may be called, and the choice among them."""
    tools = tool_list(fields.take("tools"))
    given = fields.take("tool_choice")
    if given is None:
        return tools, "auto"
    if isinstance(given, str):
        return tools, _word(given)
    choice = Fields(given, "tool_choice")
    kind = choice.choice("type", ("function", "allowed_tools"))
    if kind == "function":
        named = _named(choice)
        choice.close()
        return tools, named
    return _allowed(choice, tools)


def tool_list(tools: Any) -> tuple[Message, ...]:
    """The tools of a list that a caller gave. Raises FieldError."""
    if tools is None:
        return ()
    if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
        raise impossible("tools", tools, f"a list of at most {MAX_TOOLS} tools")
    return _functions(tools, "tools")


def _functions(tools: list[Any], where: str) -> tuple[Message, ...]:
    given = (Fields(tool, f"{where}[{index}]") for index, tool in enumerate(tools))
    return tuple(_tool(tool) for tool in given if is_function(tool, 'A tool is {"type": "function", "function": {…}}.'))


def is_function(tool: Fields, hint: str) -> bool:
    """Whether a tool is a function; one of another kind, which nothing here can offer to a model, is left out. The
    choice of a tool that was left out is an error of its own. Raises FieldError, with ``hint``, as ``leave_out``."""
    kind, where = tool.require("type"), tool.name("type")
    if kind == "function":
        return True
    error = FieldError(f"{where} {named(kind)} is not supported.", param=where, code="unsupported_value", hint=hint)
    if not isinstance(kind, str):
        raise error
    leave_out(tool.path, kind, error)
    return False


def _tool(tool: Fields) -> Message:
    function = Fields(tool.require("function"), tool.name("function"))
    name = function.require("name")
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_CHARS:
        raise impossible(function.name("name"), name, f"a name of 1 to {MAX_NAME_CHARS} characters")
    description, parameters = function.text("description"), function.take("parameters")
    if parameters is not None and not isinstance(parameters, dict):
        raise impossible(function.name("parameters"), parameters, "a JSON schema")
    strict = function.flag("strict")
    function.close()
    tool.close()
    parts = {"name": name, "description": description, "parameters": parameters, "strict": strict or None}
    return {"type": "function", "function": {key: value for key, value in parts.items() if value is not None}}


def _word(given: str) -> ToolChoice:
    match given:
        case "auto" | "none" | "required":
            return given
    raise FieldError(
        f"tool_choice {named(given)} is unknown.",
        param="tool_choice",
        hint='Possible: "auto", "none", "required", {"type": "function", "function": {"name": …}}.',
    )


def _named(choice: Fields) -> NamedTool:
    function = Fields(choice.require("function"), choice.name("function"))
    name = function.require("name")
    function.close()
    if not isinstance(name, str):
        raise impossible(function.name("name"), name, "a tool's name")
    return NamedTool(name)


def _allowed(choice: Fields, tools: tuple[Message, ...]) -> tuple[tuple[Message, ...], ToolChoice]:
    """Some of the tools: the model is shown these alone."""
    allowed = Fields(choice.require("allowed_tools"), "tool_choice.allowed_tools")
    choice.close()
    mode = allowed.choice("mode", ("auto", "required"))
    given = allowed.require("tools")
    allowed.close()
    where = "tool_choice.allowed_tools.tools"
    if not isinstance(given, list):
        raise impossible(where, given, "a list of tools")
    names = [tool["function"]["name"] for tool in _functions(given, where)]
    known = {tool["function"]["name"]: tool for tool in tools}
    if not known.keys() >= set(names):
        raise FieldError(f"{where} holds a tool that is not in tools.", param=where)
    return tuple(known[name] for name in names), "required" if mode == "required" else "auto"
