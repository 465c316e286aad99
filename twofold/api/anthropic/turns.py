"""Anthropic's system prompt and messages, as turns of a chat in the shape that chat templates read.

system                     one system message, without the billing header that Claude Code puts first
text                       a part of the turn's content; turns of one role in a row are one turn
thinking                   the assistant's reasoning; redacted_thinking is encrypted and is dropped
tool_use                   a call of the assistant's turn
tool_result                a turn of its own, of role "tool"
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from twofold.api.anthropic.settings import CacheControl, CacheControls
from twofold.api.body import RequestObject, only
from twofold.api.cache_points import CachePoint
from twofold.api.fields import FieldError
from twofold.core.errors import closest_match, quoted
from twofold.core.request import TimeToLive
from twofold.engine.prompts import Message

BILLING_HEADER: Final = "x-anthropic-billing-header:"
"""Starts a line with a number that changes with each request, so that no prefix after it is ever in a cache."""
FAILED: Final = "Error: "
"""Prefix of the result of a tool that failed; chat templates have no field for that."""
Role = Literal["user", "assistant", "system", "tool"]
TEXT_ONLY: Final = Meta(extra={"offered": True, "hint": "The loaded models are text only."})


class TextBlock(RequestObject):
    """Text; citations, which only other blocks could give it, are empty."""

    type: Annotated[Literal["text"], TEXT_ONLY]
    text: str
    cache_control: CacheControl | None = None
    citations: Annotated[Any, only([])] = None


class ThinkingBlock(RequestObject):
    """Reasoning of the assistant; its signature is not checked here."""

    type: Annotated[Literal["thinking"], TEXT_ONLY]
    thinking: str
    signature: str | None = None


class RedactedBlock(RequestObject):
    """Reasoning that only Anthropic can read: it is dropped."""

    type: Annotated[Literal["redacted_thinking"], TEXT_ONLY]
    data: str | None = None


class ToolUseBlock(RequestObject):
    """A call of a tool."""

    type: Annotated[Literal["tool_use"], TEXT_ONLY]
    id: str
    name: str
    input: dict[str, Any]
    caller: Annotated[Any, only({"type": "direct"})] = None
    toolset_name: None = None
    cache_control: CacheControl | None = None


class ToolResultBlock(RequestObject):
    """The result of a call."""

    type: Annotated[Literal["tool_result"], TEXT_ONLY]
    tool_use_id: str
    content: str | list[TextBlock] | None = None
    is_error: bool = False
    toolset_name: None = None
    cache_control: CacheControl | None = None


class UserMessage(RequestObject):
    """Text of the user, and results of tools."""

    role: Literal["user"]
    content: str | list[TextBlock | ToolResultBlock]


class AssistantMessage(RequestObject):
    """Text, thinking and tool calls of the assistant."""

    role: Literal["assistant"]
    content: str | list[TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock]


class SystemMessage(RequestObject):
    """Instructions among the messages."""

    role: Literal["system"]
    content: str | list[TextBlock]


Block: TypeAlias = TextBlock | ThinkingBlock | RedactedBlock | ToolUseBlock | ToolResultBlock
AnthropicMessage: TypeAlias = UserMessage | AssistantMessage | SystemMessage


@dataclass(slots=True)
class MessageTurn:
    """One message of the chat while it is read. ``result_of`` is the id of the call whose result it is.

    held   times to live, each with the text or call, by its number, up to which it holds
    """

    role: Role
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    result_of: str | None = None
    held: list[tuple[TimeToLive, Literal["text", "call"], int]] = field(default_factory=list)

    def message(self) -> Message:
        message: dict[str, Any] = {"role": self.role, "content": self._content()}
        if self.thoughts:
            message["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        if self.result_of is not None:
            message["tool_call_id"] = self.result_of
        return message

    def points(self, index: int) -> Iterator[CachePoint]:
        """The cache points of its controls, as the ``index``-th message."""
        for ttl, kind, number in self.held:
            part = number if kind == "text" else self._parts + number
            yield CachePoint(ttl=ttl, message=index, part=part)

    @property
    def _parts(self) -> int:
        return len(self.texts) or (0 if self.calls else 1)

    def _content(self) -> str | list[dict[str, str]] | None:
        if len(self.texts) > 1:
            return [{"type": "text", "text": text} for text in self.texts]
        return self.texts[0] if self.texts else None if self.calls else ""


class TurnReader:
    """Reads a body's ``system`` and then its ``messages`` into turns. Raises FieldError for what no chat can have."""

    def __init__(self, controls: CacheControls) -> None:
        self._controls = controls
        self._called: set[str] = set()
        self.turns: list[MessageTurn] = []
        self.continues = False
        """Whether the completion continues the last turn."""

    def system(self, given: str | Sequence[TextBlock] | None) -> None:
        """The system prompt."""
        blocks = [TextBlock(type="text", text=given)] if isinstance(given, str) else given or ()
        for index, block in enumerate(blocks):
            unbilled = _unbilled(block.text)
            if unbilled or not block.text:
                self._add_text("system", unbilled, self._controls.take(block.cache_control, f"system[{index}]"))

    def messages(self, given: Sequence[AnthropicMessage]) -> None:
        """All messages, in order."""
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
            self._begin_answer(f"messages[{len(given) - 1}].content")

    def _begin_answer(self, where: str) -> None:
        """Takes the last turn, the assistant's, as the start of the completion; an empty one is dropped."""
        turn = self.turns[-1]
        text = "".join(turn.texts[-1:])
        if turn.calls or text != text.rstrip():
            fault = "cannot end with a call of a tool" if turn.calls else "cannot end with white space"
            raise FieldError(
                f"{where} is the last message, the assistant's: it {fault}.",
                param=where,
                hint="Strip it." if not turn.calls else "Send the call's tool_result after it.",
            )
        self.continues = bool(text)
        if not text:
            self.turns.pop()

    def _block(self, block: Block, role: Role, where: str) -> None:
        match block:
            case TextBlock():
                self._add_text(role, block.text, self._controls.take(block.cache_control, where))
            case ThinkingBlock():
                self._turn(role).thoughts.append(block.thinking)
            case RedactedBlock():
                self._turn(role)
            case ToolUseBlock():
                turn = self._turn("assistant")
                function = {"name": block.name, "arguments": block.input}
                turn.calls.append({"id": block.id, "type": "function", "function": function})
                self._hold(turn, "call", self._controls.take(block.cache_control, where))
                self._called.add(block.id)
            case ToolResultBlock():
                self._result(block, where)

    def _result(self, block: ToolResultBlock, where: str) -> None:
        identity, name = block.tool_use_id, f"{where}.tool_use_id"
        if identity not in self._called:
            close = closest_match(identity, self._called)
            raise FieldError(
                f"{name} {quoted(identity)} is the id of no tool_use before it.",
                param=name,
                hint=f"Did you mean {close!r}?" if close else None,
            )
        turn = MessageTurn("tool", result_of=identity)
        self.turns.append(turn)
        if isinstance(block.content, str):
            turn.texts.append(block.content)
        else:
            for index, part in enumerate(block.content or ()):
                turn.texts.append(part.text)
                self._hold(turn, "text", self._controls.take(part.cache_control, f"{where}.content[{index}]"))
        if block.is_error:
            turn.texts[:1] = [FAILED + "".join(turn.texts[:1])]
        self._hold(turn, "text", self._controls.take(block.cache_control, where))

    def _add_text(self, role: Role, text: str, ttl: TimeToLive | None) -> None:
        turn = self._turn(role)
        turn.texts.append(text)
        self._hold(turn, "text", ttl)

    def _hold(self, turn: MessageTurn, kind: Literal["text", "call"], ttl: TimeToLive | None) -> None:
        if ttl is not None:
            last = len(turn.texts) if kind == "text" else len(turn.calls)
            turn.held.append((ttl, kind, max(0, last - 1)))

    def _turn(self, role: Role) -> MessageTurn:
        """The last turn if it has this role, else a new one."""
        if not self.turns or self.turns[-1].role != role:
            self.turns.append(MessageTurn(role))
        return self.turns[-1]


def _unbilled(text: str) -> str:
    """The text without the leading lines of Claude Code's billing header."""
    while text.lstrip().startswith(BILLING_HEADER):
        text = text.lstrip().partition("\n")[2].lstrip("\n")
    return text
