"""Anthropic's tools and ``tool_choice``, in the shape that chat templates read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from twofold.api.anthropic.settings import CacheControl, CacheControls
from twofold.api.body import Path, RequestObject, kind_of, nullable, only
from twofold.api.cache_points import CachePoint
from twofold.api.conversation import NamedTool, ToolChoice
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import JsonSchema
from twofold.api.openai.chat import MAX_TOOLS, ToolName
from twofold.core.errors import quoted
from twofold.engine.prompts import Message

DESCRIBE: Final = "Describe the tool by its name, description and input_schema."


class AnthropicTool(RequestObject):
    """A tool that the caller runs. ``eager_input_streaming``: arguments are always sent as they are sampled."""

    name: ToolName
    input_schema: JsonSchema
    type: Annotated[Literal["custom"], Meta(extra={"offered": True, "hint": DESCRIBE})] = "custom"
    description: str = ""
    strict: bool = False
    eager_input_streaming: Literal[True] = True
    defer_loading: Literal[False] = False
    allowed_callers: Annotated[Any, only(["direct"])] = None
    input_examples: Annotated[Any, only([])] = None
    cache_control: CacheControl | None = None

    @property
    def is_omitted(self) -> bool:
        return not self.name

    def message(self) -> Message:
        """The tool in the form that templates read."""
        function = {"name": self.name, "description": self.description, "parameters": self.input_schema}
        return {"type": "function", "function": function | ({"strict": True} if self.strict else {})}


def omitted_tool(given: dict[str, Any], path: Path) -> AnthropicTool:
    """A tool of Anthropic's own, which nothing here can run or describe to a model: only its cache control counts."""
    control = given.get("cache_control")
    read = None if control is None else kind_of(CacheControl).read(control, (path, "cache_control"))
    return AnthropicTool(name="", input_schema={}, cache_control=read)


AnthropicTools: TypeAlias = Annotated[
    list[AnthropicTool],
    Meta(
        max_length=MAX_TOOLS,
        extra={
            "omits": True,
            "omitted": omitted_tool,
            "omitted_properties": {"cache_control": nullable(kind_of(CacheControl).form)},
        },
    ),
]


class ToolKindChoice(RequestObject):
    """Whether tools may or must be called."""

    type: Literal["auto", "any", "none"]
    disable_parallel_tool_use: bool = False


class ToolNameChoice(RequestObject):
    """The one tool that must be called."""

    type: Literal["tool"]
    name: str
    disable_parallel_tool_use: bool = False


KINDS: Final[Mapping[str, ToolChoice]] = {"auto": "auto", "any": "required", "none": "none"}


def tool_choice(choice: ToolKindChoice | ToolNameChoice | None) -> ToolChoice:
    """Which tools may be called."""
    if choice is None:
        return "auto"
    return NamedTool(choice.name) if isinstance(choice, ToolNameChoice) else KINDS[choice.type]


def read_tools(given: Sequence[AnthropicTool], controls: CacheControls) -> tuple[list[Message], list[CachePoint]]:
    """The tools that the model is shown, and the cache points after some of them. That of an omitted tool lies after
    the last one before it. Raises FieldError for two tools of one name."""
    tools: list[Message] = []
    points: list[CachePoint] = []
    names: set[str] = set()
    for index, tool in enumerate(given):
        where = f"tools[{index}]"
        if tool.name in names:
            message = f"{where}.name {quoted(tool.name)} is the name of two tools."
            raise FieldError(message, param=f"{where}.name")
        if not tool.is_omitted:
            names.add(tool.name)
            tools.append(tool.message())
        ttl = controls.take(tool.cache_control, where)
        if ttl is not None and tools:
            points.append(CachePoint(ttl=ttl, tool=len(tools) - 1))
    return tools, points
