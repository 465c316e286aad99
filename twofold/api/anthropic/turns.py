"""Anthropic's tools, system prompt and messages, in the shape that chat templates read.

system                     one system message, without the billing header that Claude Code puts first
text                       a part of the turn's content; turns of one role in a row are one turn
thinking                   the assistant's reasoning; redacted_thinking is encrypted and is dropped
tool_use                   a call of the assistant's turn
tool_result                a turn of its own, of role "tool"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from twofold.api.anthropic.settings import CacheControls
from twofold.api.body import IGNORED, OFFERED, Path, RequestObject, kind_of, nullable, only
from twofold.api.cache_points import CachePoint
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import CacheControl, JsonSchema
from twofold.api.openai.chat import MAX_TOOLS, ToolName
from twofold.api.prompts import DraftMessage, NamedTool, ToolChoice, function_call, function_tool, unbilled
from twofold.core.errors import closest_match, quoted
from twofold.core.request import TimeToLive
from twofold.engine.prompts import Message


class AnthropicTool(RequestObject):
    """A tool that the caller runs. Arguments are always sent as they are sampled, and tools loaded at once."""

    name: ToolName
    input_schema: JsonSchema
    type: Annotated[Literal["custom"], OFFERED] = "custom"
    description: str = ""
    strict: bool = False
    eager_input_streaming: Annotated[bool, IGNORED] = True
    defer_loading: Annotated[bool, IGNORED] = False
    allowed_callers: Annotated[Any, only(["direct"])] = None
    input_examples: Annotated[list[Any], IGNORED] | None = None
    cache_control: CacheControl | None = None

    @property
    def is_omitted(self) -> bool:
        return not self.name

    def message(self) -> Message:
        """The tool as chat templates read it."""
        return function_tool(self.name, self.description, self.input_schema, strict=self.strict)


def omitted_tool(given: dict[str, Any], path: Path) -> AnthropicTool:
    """Stands for a tool of Anthropic's own, which Twofold can neither run nor describe. Its cache control counts."""
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
            "omitted_properties": {"cache_control": nullable(kind_of(CacheControl).schema)},
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
    """The tools that the model is shown, and the cache points after some of them. The cache point of an omitted tool
    lies after the last shown tool before it. Raises FieldError for two tools of one name."""
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


FAILED: Final = "Error: "
"""Prefix of the result of a tool that failed; chat templates have no field for that."""
Role = Literal["user", "assistant", "system", "tool"]
TEXT_ONLY: Final = Meta(extra={"offered": True, "hint": "The loaded models are text only."})


class TextBlock(RequestObject):
    """Text."""

    type: Annotated[Literal["text"], TEXT_ONLY]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[Any, IGNORED] = None


class ThinkingBlock(RequestObject):
    """Reasoning of the assistant; its signature is not checked here."""

    type: Annotated[Literal["thinking"], OFFERED]
    thinking: str
    signature: str | None = None


class RedactedBlock(RequestObject):
    """Reasoning that only Anthropic can read: it is dropped."""

    type: Annotated[Literal["redacted_thinking"], OFFERED]
    data: Annotated[str, IGNORED] | None = None


class ToolUseBlock(RequestObject):
    """A call of a tool."""

    type: Annotated[Literal["tool_use"], OFFERED]
    id: str
    name: str
    input: dict[str, Any]
    caller: Annotated[Any, only({"type": "direct"})] = None
    toolset_name: None = None
    cache_control: CacheControl | None = None


class ToolResultBlock(RequestObject):
    """The result of a call."""

    type: Annotated[Literal["tool_result"], OFFERED]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool = False
    toolset_name: None = None
    cache_control: CacheControl | None = None


class UserMessage(RequestObject):
    """Text of the user, and results of tools."""

    role: Literal["user"]
    content: str | list[TextBlock | ToolResultBlock]
    type: Literal["message"] = "message"


class AssistantMessage(RequestObject):
    """Text, thinking and tool calls of the assistant."""

    role: Literal["assistant"]
    content: str | list[TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock]
    type: Literal["message"] = "message"


class SystemMessage(RequestObject):
    """Instructions among the messages."""

    role: Literal["system"]
    content: str | list[TextBlock]


Block: TypeAlias = TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock
AnthropicMessage: TypeAlias = UserMessage | AssistantMessage | SystemMessage


class TurnReader:
    """Reads a body's ``system`` and then its ``messages`` into turns. Raises FieldError for impossible messages."""

    def __init__(self, controls: CacheControls) -> None:
        self._controls = controls
        self._called: set[str] = set()
        self.turns: list[DraftMessage] = []
        self.continues = False
        """Whether the completion continues the last turn."""

    def system(self, given: str | Sequence[TextBlock] | None) -> None:
        """Reads the system prompt."""
        blocks = [TextBlock(type="text", text=given)] if isinstance(given, str) else given or ()
        for index, block in enumerate(blocks):
            text = unbilled(block.text)
            if text or not block.text:
                self._add_text("system", text, self._controls.take(block.cache_control, f"system[{index}]"))

    def messages(self, given: Sequence[AnthropicMessage]) -> None:
        """Reads all messages, in order."""
        for index, message in enumerate(given):
            where = f"messages[{index}].content"
            if isinstance(message.content, str):
                self._add_text(message.role, message.content, None)
                continue
            if not message.content:
                self._turn(message.role)
            for number, block in enumerate(message.content):
                self._block(block, message.role, f"{where}[{number}]")
        if given[-1].role == "assistant":
            self._continue(f"messages[{len(given) - 1}].content")

    def _continue(self, where: str) -> None:
        """Lets the completion continue the last turn, which is the assistant's; an empty turn is dropped."""
        turn = self.turns[-1]
        text = "\n".join(turn.texts)  # as templates get the parts
        if turn.calls or text != text.rstrip():
            fault, hint = "white space", "Remove the white space, or the empty block."
            if turn.calls:
                fault, hint = "a call of a tool", "Send the call's tool_result after it."
            message = f"{where} is the last message, the assistant's: it cannot end with {fault}."
            raise FieldError(message, param=where, hint=hint)
        self.continues = bool(text)
        if not text:
            self.turns.pop()

    def _block(self, block: Block, role: Role, where: str) -> None:
        match block:
            case TextBlock():
                self._add_text(role, block.text, self._controls.take(block.cache_control, where))
            case ThinkingBlock():
                turn = self._turn(role)
                turn.reasoning = block.thinking if turn.reasoning is None else f"{turn.reasoning}\n{block.thinking}"
            case RedactedBlock():
                self._turn(role)
            case ToolUseBlock():
                turn = self._turn("assistant")
                turn.calls.append(function_call(block.id, block.name, block.input))
                turn.hold("call", self._controls.take(block.cache_control, where))
                self._called.add(block.id)
            case ToolResultBlock():
                self._result(block, where)

    def _result(self, block: ToolResultBlock, where: str) -> None:
        identity, name = block.tool_use_id, f"{where}.tool_use_id"
        if identity not in self._called:
            close = closest_match(identity, self._called)
            raise FieldError(
                f"{name} {quoted(identity)} matches no earlier tool_use.",
                param=name,
                hint=f"Did you mean {close!r}?" if close else None,
            )
        turn = DraftMessage("tool", result_of=identity)
        self.turns.append(turn)
        if isinstance(block.content, str):
            turn.texts.append(block.content)
        else:
            for index, part in enumerate(block.content or ()):
                turn.texts.append(part.text)
                turn.hold("text", self._controls.take(part.cache_control, f"{where}.content[{index}]"))
        if block.is_error:
            turn.texts[:1] = [FAILED + "".join(turn.texts[:1])]
        turn.hold("text", self._controls.take(block.cache_control, where))

    def _add_text(self, role: Role, text: str, ttl: TimeToLive | None) -> None:
        turn = self._turn(role)
        turn.texts.append(text)
        turn.hold("text", ttl)

    def _turn(self, role: Role) -> DraftMessage:
        """The last turn if it has this role, else a new one."""
        if not self.turns or self.turns[-1].role != role:
            self.turns.append(DraftMessage(role))
        return self.turns[-1]
