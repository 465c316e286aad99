"""The tools of a chat, and which of them may or must be called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta, structs

from twofold.api.body import OFFERED, OMITTING, RequestObject
from twofold.api.conversation import NamedTool, ToolChoice
from twofold.api.fields import FieldError
from twofold.api.openai.sampling import JsonSchema
from twofold.engine.prompts import Message

MAX_TOOLS: Final = 128
MAX_NAME_CHARS: Final = 128


ToolName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]


class ChatFunction(RequestObject):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool = False


class ChatTool(RequestObject):
    """A tool; only functions can be offered to a model."""

    type: Annotated[Literal["function"], OFFERED]
    function: ChatFunction

    def message(self) -> Message:
        """The tool in the form that templates read."""
        function = structs.asdict(self.function) | {"strict": self.function.strict or None}
        return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}


class FunctionName(RequestObject):
    """The function that is meant."""

    name: str


class ChatNamedTool(RequestObject):
    """The one tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class SomeChatTools(RequestObject):
    """Some of the tools: the model is shown these alone."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ChatTool], OMITTING]


class ChatAllowedTools(RequestObject):
    """The choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: SomeChatTools


ChatTools: TypeAlias = Annotated[list[ChatTool], Meta(max_length=MAX_TOOLS), OMITTING]
ChatToolChoice: TypeAlias = Literal["auto", "none", "required"] | ChatNamedTool | ChatAllowedTools


def chosen_tools(given: Sequence[ChatTool], choice: ChatToolChoice) -> tuple[tuple[Message, ...], ToolChoice]:
    """The tools that the model is shown, and the choice among them. Raises FieldError."""
    tools = tuple(tool.message() for tool in given)
    if isinstance(choice, str):
        return tools, choice
    if isinstance(choice, ChatNamedTool):
        return tools, NamedTool(choice.function.name)
    known = {tool["function"]["name"]: tool for tool in tools}
    names = [tool.function.name for tool in choice.allowed_tools.tools]
    if not known.keys() >= set(names):
        where = "tool_choice.allowed_tools.tools"
        raise FieldError(f"{where} holds a tool that is not in tools.", param=where)
    return tuple(known[name] for name in names), choice.allowed_tools.mode
