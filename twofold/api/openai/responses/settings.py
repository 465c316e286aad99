"""Settings of a response: reasoning, the format of the text, optional parts of the reply, and tools."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, field

from twofold.api.body import CHOOSING, IGNORED, OFFERED, OMITTING, RequestObject, only
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import JsonSchema, PlainFormat
from twofold.api.openai.chat import EFFORTS, Effort, PromptCacheOptions, ToolName
from twofold.api.prompts import DEFAULT_THINKING, NamedTool, Thinking, ToolChoice, function_tool
from twofold.core.errors import closest_match, quoted
from twofold.core.params import StructuredOutputsParams
from twofold.engine.prompts import Message

LOGPROBS: Final = "message.output_text.logprobs"
SEALED_REASONING: Final = "reasoning.encrypted_content"

Includable: TypeAlias = Annotated[Literal["message.output_text.logprobs", "reasoning.encrypted_content"], OFFERED]


class ReasoningSettings(RequestObject):
    """How the model thinks. A summary "auto" is the most detailed that a model can give; here the reply has the
    thinking itself, and no summary."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None

    @property
    def thinking(self) -> Thinking:
        chosen = DEFAULT_THINKING if self.effort is None else EFFORTS[self.effort]
        return chosen if chosen.needed_by is None else replace(chosen, needed_by="reasoning.effort")


class ResponseSchemaFormat(RequestObject, kw_only=True):
    """JSON that follows a schema. The output follows the schema even if ``strict`` is false."""

    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema: JsonSchema
    strict: bool = False


class TextSettings(RequestObject):
    """The format of the text."""

    format: PlainFormat | ResponseSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None

    @property
    def structured_outputs(self) -> StructuredOutputsParams | None:
        if isinstance(self.format, ResponseSchemaFormat):
            return StructuredOutputsParams(json=self.format.schema)
        whole = self.format is not None and self.format.type == "json_object"
        return StructuredOutputsParams(json_object=True) if whole else None


class ResponseCacheOptions(PromptCacheOptions):
    """Cache options, with fields that only the Responses API has."""

    prewarm: Literal[False] = False
    comparison_response_id: None = None


class ResponseTool(RequestObject):
    """A function that the model may call."""

    type: Annotated[Literal["function"], OFFERED]
    name: ToolName
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool = False
    is_async: Literal[False] = field(default=False, name="async")
    defer_loading: Annotated[bool, IGNORED] = False
    allowed_callers: Annotated[Any, only(["direct"])] = None
    output_schema: Annotated[Any, IGNORED] = None

    def message(self) -> Message:
        """The tool as chat templates read it."""
        return function_tool(self.name, self.description, self.parameters, strict=self.strict)


class ResponseNamedTool(RequestObject):
    """A function, by its name."""

    type: Annotated[Literal["function"], OFFERED]
    name: ToolName


class ResponseAllowedTools(RequestObject):
    """The choice among some of the tools."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ResponseNamedTool], Meta(min_length=1), OMITTING]


ResponseToolChoice: TypeAlias = Annotated[
    Literal["auto", "none", "required"] | ResponseNamedTool | ResponseAllowedTools, CHOOSING
]


def shown_tools(given: Sequence[ResponseTool], choice: ResponseToolChoice) -> tuple[tuple[Message, ...], ToolChoice]:
    """The tools that may be called, as chat templates read them, and the choice among them.

    Raises FieldError if two tools have the same name, or if ``tools`` lacks an allowed tool.
    """
    names = [tool.name for tool in given]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        message = f"tools holds {quoted(twice)} twice."
        raise FieldError(message, param="tools", hint="Give each function its own name.")
    shown = tuple(tool.message() for tool in given)
    if isinstance(choice, str):
        return shown, choice
    if isinstance(choice, ResponseNamedTool):
        return shown, NamedTool(choice.name)
    allowed = [tool.name for tool in choice.tools]
    unknown = next((name for name in allowed if name not in names), None)
    if unknown is not None:
        close = closest_match(unknown, names)
        hint = f"Did you mean {close!r}?" if close else None
        message = f"tool_choice.tools holds {quoted(unknown)}, which is not in tools."
        raise FieldError(message, param="tool_choice.tools", hint=hint)
    return tuple(tool for tool in shown if tool["function"]["name"] in allowed), choice.mode
