"""Tools of the Responses API: functions, and the choice among them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Self, TypeAlias

from msgspec import Meta, field, structs, to_builtins

from twofold.api.body import OFFERED, OMITTING, RequestObject, only
from twofold.api.conversation import NamedTool, ToolChoice
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import JsonSchema
from twofold.api.openai.chat import ToolName
from twofold.core.errors import closest_match, quoted
from twofold.engine.prompts import Message


class ResponseTool(RequestObject):
    """A function that the model may call."""

    type: Annotated[Literal["function"], OFFERED]
    name: ToolName
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool = False
    is_async: Literal[False] = field(default=False, name="async")
    defer_loading: Literal[False] = False
    allowed_callers: Annotated[Any, only(["direct"])] = None
    output_schema: None = None

    def told(self) -> dict[str, Any]:
        """The tool as replies have it."""
        return {name: getattr(self, name) for name in ("type", "name", "description", "parameters", "strict")}


class ResponseNamedTool(RequestObject):
    """A function, by its name."""

    type: Annotated[Literal["function"], OFFERED]
    name: ToolName


class ResponseAllowedTools(RequestObject):
    """The choice among some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ResponseNamedTool], Meta(min_length=1), OMITTING]


ResponseToolChoice: TypeAlias = Literal["auto", "none", "required"] | ResponseNamedTool | ResponseAllowedTools


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
    def of(cls, given: Sequence[ResponseTool], choice: ResponseToolChoice) -> Self:
        """Raises FieldError for two tools of one name, and for an allowed tool that is none of them."""
        told = tuple(tool.told() for tool in given)
        names = [tool.name for tool in given]
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            message = f"tools holds {quoted(twice)} twice."
            raise FieldError(message, param="tools", hint="Give each function its own name.")
        shown = tuple(map(_shown, told))
        if isinstance(choice, str):
            return cls(shown, choice, told, choice)
        if isinstance(choice, ResponseNamedTool):
            return cls(shown, NamedTool(choice.name), told, structs.asdict(choice))
        allowed = [tool.name for tool in choice.tools]
        unknown = next((name for name in allowed if name not in names), None)
        if unknown is not None:
            close = closest_match(unknown, names)
            hint = f"Did you mean {close!r}?" if close else None
            message = f"tool_choice.tools holds {quoted(unknown)}, which is not in tools."
            raise FieldError(message, param="tool_choice.tools", hint=hint)
        some = tuple(tool for tool in shown if tool["function"]["name"] in allowed)
        return cls(some, choice.mode, told, to_builtins(choice))


def _shown(tool: dict[str, Any]) -> Message:
    function = {name: tool[name] for name in ("name", "description", "parameters") if tool[name] is not None}
    return {"type": "function", "function": function | ({"strict": True} if tool["strict"] else {})}
