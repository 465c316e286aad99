"""Anthropic's system prompt and messages, as turns of a chat in the shape that chat templates read.

system                     one system message, without the billing header that Claude Code puts first
text                       a part of the turn's content; turns of one role in a row are one turn
thinking                   what the assistant thought; redacted_thinking, which nobody can read, is dropped
tool_use                   a call of the assistant's turn
tool_result                a turn of its own, of role "tool"
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from twofold.api.anthropic.caching import CacheControls
from twofold.api.cache_points import CachePoint
from twofold.api.fields import FieldError, Fields, impossible
from twofold.core.errors import named, nearest, quoted
from twofold.core.request import TimeToLive
from twofold.engine.prompts import Message
from twofold.text.templates.messages import MAX_MESSAGES

BILLING_HEADER: Final = "x-anthropic-billing-header:"
"""Begins a line whose number changes with each request: no prefix behind it could ever be found in a cache."""
FAILED: Final = "Error: "
"""Stands before the result of a tool that failed; chat templates know no other way to tell it."""
ROLES: Final = ("user", "assistant", "system")
KINDS: Final = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "thinking", "redacted_thinking", "tool_use"),
    "system": ("text",),
}
"""Blocks that each role may have."""

Role = Literal["user", "assistant", "system", "tool"]


@dataclass(slots=True)
class MessageTurn:
    """One message of the chat while it is read. ``answers`` is the call whose result it is.

    held   times to live, each with what it reaches to: a text or a call, and which one
    """

    role: Role
    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    answers: str | None = None
    held: list[tuple[TimeToLive, Literal["text", "call"], int]] = field(default_factory=list)

    def message(self) -> Message:
        message: dict[str, Any] = {"role": self.role, "content": self._content()}
        if self.thoughts:
            message["reasoning_content"] = "\n".join(self.thoughts)
        if self.calls:
            message["tool_calls"] = self.calls
        if self.answers is not None:
            message["tool_call_id"] = self.answers
        return message

    def points(self, index: int) -> Iterator[CachePoint]:
        """Where its controls lie, for the ``index``-th message."""
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
    """Reads a body's ``system`` and then its ``messages``. Raises FieldError where they cannot be."""

    def __init__(self, controls: CacheControls) -> None:
        self._controls = controls
        self._called: set[str] = set()
        self.turns: list[MessageTurn] = []
        self.continues = False
        """Whether the answer goes on from the last turn."""

    def system(self, given: object) -> None:
        """The system prompt: text, or a list of text blocks."""
        blocks = [{"type": "text", "text": given}] if isinstance(given, str) else given
        if blocks is None:
            return
        if not isinstance(blocks, list):
            raise impossible("system", given, "text or a list of text blocks")
        for index, block in enumerate(blocks):
            self._system_block(Fields(block, f"system[{index}]"))

    def messages(self, given: object) -> None:
        """All messages, in order."""
        if not isinstance(given, list) or not 0 < len(given) <= MAX_MESSAGES:
            raise impossible("messages", given, f"a list of 1 to {MAX_MESSAGES} messages")
        for index, message in enumerate(given):
            self._message(Fields(message, f"messages[{index}]"))
        if given[-1]["role"] == "assistant":
            self._begin_answer(f"messages[{len(given) - 1}].content")

    def _begin_answer(self, where: str) -> None:
        """Takes the last turn, the assistant's, as the beginning of the answer; an empty one says nothing."""
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

    def _system_block(self, block: Fields) -> None:
        block.choice("type", ("text",))
        text = _text(block)
        unbilled = _unbilled(text)
        if unbilled or not text:
            self._add_text("system", unbilled, self._controls.take(block))
        else:
            block.take("cache_control")
        block.close()

    def _message(self, message: Fields) -> None:
        role = message.choice("role", ROLES)
        content = message.require("content")
        message.close()
        if isinstance(content, str):
            self._add_text(role, content, None)
            return
        if not isinstance(content, list):
            raise impossible(message.name("content"), content, "text or a list of blocks")
        if not content:
            self._turn(role)
        for index, block in enumerate(content):
            self._block(Fields(block, f"{message.name('content')}[{index}]"), role)

    def _block(self, block: Fields, role: str) -> None:
        kind = block.require("type")
        if kind not in KINDS[role]:
            raise _unknown_kind(block.name("type"), kind, role)
        match kind:
            case "text":
                self._add_text(role, _text(block), self._controls.take(block))
            case "thinking":
                block.text("signature")
                self._turn(role).thoughts.append(_required_text(block, "thinking"))
            case "redacted_thinking":
                block.text("data")
                self._turn(role)
            case "tool_use":
                self._call(block)
            case "tool_result":
                self._result(block)
        block.close()

    def _call(self, block: Fields) -> None:
        identity, name, given = _required_text(block, "id"), _required_text(block, "name"), block.require("input")
        if not isinstance(given, dict):
            raise impossible(block.name("input"), given, "an object")
        block.only("caller", {"type": "direct"})
        block.only("toolset_name")
        turn = self._turn("assistant")
        turn.calls.append({"id": identity, "type": "function", "function": {"name": name, "arguments": given}})
        self._hold(turn, "call", self._controls.take(block))
        self._called.add(identity)

    def _result(self, block: Fields) -> None:
        identity = _required_text(block, "tool_use_id")
        if identity not in self._called:
            close = nearest(identity, self._called)
            raise FieldError(
                f"{block.name('tool_use_id')} {quoted(identity)} is the id of no tool_use before it.",
                param=block.name("tool_use_id"),
                hint=f"Did you mean {close!r}?" if close else None,
            )
        block.only("toolset_name")
        turn = MessageTurn("tool", answers=identity)
        self.turns.append(turn)
        self._result_content(turn, block)
        if block.flag("is_error"):
            turn.texts[:1] = [FAILED + "".join(turn.texts[:1])]
        self._hold(turn, "text", self._controls.take(block))

    def _result_content(self, turn: MessageTurn, block: Fields) -> None:
        content = block.take("content")
        if isinstance(content, str):
            turn.texts.append(content)
            return
        if content is not None and not isinstance(content, list):
            raise impossible(block.name("content"), content, "text or a list of text blocks")
        for index, given in enumerate(content or ()):
            part = Fields(given, f"{block.name('content')}[{index}]")
            if (kind := part.require("type")) != "text":
                raise _unknown_kind(part.name("type"), kind, "system")
            turn.texts.append(_text(part))
            self._hold(turn, "text", self._controls.take(part))
            part.close()

    def _add_text(self, role: str, text: str, ttl: TimeToLive | None) -> None:
        turn = self._turn(role)
        turn.texts.append(text)
        self._hold(turn, "text", ttl)

    def _hold(self, turn: MessageTurn, kind: Literal["text", "call"], ttl: TimeToLive | None) -> None:
        if ttl is not None:
            last = len(turn.texts) if kind == "text" else len(turn.calls)
            turn.held.append((ttl, kind, max(0, last - 1)))

    def _turn(self, role: str) -> MessageTurn:
        """The turn that goes on, or a new one."""
        if not self.turns or self.turns[-1].role != role:
            known: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}
            self.turns.append(MessageTurn(known[role]))
        return self.turns[-1]


def _text(block: Fields) -> str:
    """The text of a text block; citations, which only other blocks could give it, are none."""
    block.only("citations", [])
    return _required_text(block, "text")


def _required_text(block: Fields, name: str) -> str:
    value = block.require(name)
    if not isinstance(value, str):
        raise impossible(block.name(name), value, "text")
    return value


def _unbilled(text: str) -> str:
    """The text without the lines of Claude Code's billing header that it begins with."""
    while text.lstrip().startswith(BILLING_HEADER):
        text = text.lstrip().partition("\n")[2].lstrip("\n")
    return text


def _unknown_kind(name: str, kind: object, role: str) -> FieldError:
    possible = KINDS[role]
    return FieldError(
        f"{name} {named(kind)} is not supported here.",
        param=name,
        code="unsupported_value",
        hint=f"Supported: {', '.join(possible)}. The loaded models are text only.",
    )
