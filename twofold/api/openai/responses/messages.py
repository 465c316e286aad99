"""From items of the Responses API to the messages that chat templates read.

What a model did in one turn stands in several items (reasoning, a message, calls) and becomes one message of the
assistant, as templates expect it. System messages at the beginning become one, for many templates know no second.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from twofold.api.cache_points import CachePoint
from twofold.api.fields import FieldError
from twofold.api.openai.responses.items import Item
from twofold.core.errors import quoted
from twofold.core.request import TimeToLive
from twofold.engine.prompts import Message


@dataclass(slots=True)
class _Draft:
    """A message while it is put together; ``points`` are the parts up to which the prompt shall stay cached."""

    role: str
    parts: list[str] = field(default_factory=list)
    points: list[tuple[int, TimeToLive | None]] = field(default_factory=list)
    reasoning: str = ""
    calls: list[Message] = field(default_factory=list)
    call_id: str | None = None

    @property
    def spoken(self) -> bool:
        return bool(self.parts or self.calls)

    def add(self, content: str | Sequence[Item]) -> None:
        parts: Sequence[Item] = [{"text": content}] if isinstance(content, str) else content
        for part in parts:
            self.parts.append(part.get("text") or part.get("refusal") or "")
            if point := part.get("prompt_cache_breakpoint"):
                self.points.append((len(self.parts) - 1, point.get("ttl")))

    def message(self) -> Message:
        content: Any = [{"type": "text", "text": part} for part in self.parts]
        message: dict[str, Any] = {"role": self.role, "content": content}
        if len(self.parts) < 2:
            message["content"] = "".join(self.parts)
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        if self.call_id is not None:
            message["tool_call_id"] = self.call_id
        return message


def chat_messages(
    instructions: str | None, items: Iterable[Item], ttl: TimeToLive
) -> tuple[list[Message], tuple[CachePoint, ...]]:
    """The messages, and the points up to which the prompt shall stay cached; for ``ttl`` where they do not say it.

    Raises FieldError for what came of a call that is not among the items.
    """
    drafts = _Drafts(instructions)
    for item in items:
        drafts.add(item)
    points = (
        CachePoint(own or ttl, message=index, part=part)
        for index, draft in enumerate(drafts.made)
        for part, own in draft.points
    )
    return [draft.message() for draft in drafts.made], tuple(points)


class _Drafts:
    """The messages so far."""

    def __init__(self, instructions: str | None) -> None:
        self.made = [_Draft("system", [instructions])] if instructions else []
        self._called: set[str] = set()

    def add(self, item: Item) -> None:
        match item["type"]:
            case "message":
                self._said(item)
            case "reasoning":
                thought = "".join(part["text"] for part in item["content"] or item["summary"])
                self._turn(new=True).reasoning += thought
            case "function_call":
                self._called.add(item["call_id"])
                self._turn(new=False).calls.append(_call(item))
            case "function_call_output":
                self._returned(item)

    def _said(self, item: Item) -> None:
        role = "system" if item["role"] == "developer" else item["role"]
        if role == "assistant":
            draft = self._turn(new=True)
        elif role == "system" and len(self.made) == 1 and self.made[0].role == "system":
            draft = self.made[0]
        else:
            draft = self._begin(_Draft(role))
        draft.add(item["content"])

    def _returned(self, item: Item) -> None:
        if item["call_id"] not in self._called:
            raise FieldError(
                f"There is no call for the function call output with call_id {quoted(item['call_id'])}.",
                param="input",
                hint="Send the function_call item before it, or previous_response_id.",
            )
        self._begin(_Draft("tool", call_id=item["call_id"])).add(item["output"])

    def _turn(self, *, new: bool) -> _Draft:
        """The assistant's message that goes on; a ``new`` one where it has said or called something already."""
        last = self.made[-1] if self.made else None
        if last is not None and last.role == "assistant" and not (new and last.spoken):
            return last
        return self._begin(_Draft("assistant"))

    def _begin(self, draft: _Draft) -> _Draft:
        self.made.append(draft)
        return draft


def _call(item: Item) -> Message:
    function = {"name": item["name"], "arguments": item["arguments"]}
    return {"id": item["call_id"], "type": "function", "function": function}
