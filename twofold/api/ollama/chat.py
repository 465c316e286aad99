"""/api/chat; without messages a request only loads the model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from twofold.api.base import ModelFacts
from twofold.api.body import RequestObject, only
from twofold.api.conversation import Conversation
from twofold.api.ollama.common import OllamaRequest
from twofold.api.ollama.replies import MakePart, chat_part
from twofold.api.openai.bodies import FullText
from twofold.api.openai.chat import MAX_INDEX, ChatTools
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.prompts import Message
from twofold.text.parsers.base import SectionParser
from twofold.text.templates.messages import MAX_MESSAGES

TEXTS: Final = {"thinking": "reasoning_content", "tool_name": "name", "tool_call_id": "tool_call_id"}
"""Names of fields in the form that chat templates read."""


class OllamaCalledFunction(RequestObject):
    """A function with its arguments."""

    name: FullText
    arguments: dict[str, Any] | None = None
    index: Annotated[int, Meta(ge=0, le=MAX_INDEX)] | None = None


class OllamaCall(RequestObject):
    """A call that the assistant made."""

    function: OllamaCalledFunction
    id: str | None = None
    type: Literal["function"] = "function"

    def message(self, number: int) -> Message:
        function = {"name": self.function.name, "arguments": self.function.arguments or {}}
        return {"id": self.id or f"call_{number}", "type": "function", "function": function}


class OllamaMessage(RequestObject):
    """One message of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: Annotated[Any, only([])] = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None

    def message(self) -> Message:
        """The message in the form that chat templates read."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        message |= {ours: value for theirs, ours in TEXTS.items() if (value := getattr(self, theirs))}
        if self.tool_calls:
            message["tool_calls"] = [call.message(number) for number, call in enumerate(self.tool_calls)]
        return message


class OllamaChatRequest(OllamaRequest):
    """A chat. A last message of the assistant's is continued."""

    messages: Annotated[list[OllamaMessage], Meta(max_length=MAX_MESSAGES)] | None = None
    tools: ChatTools | None = None

    @property
    def make_part(self) -> MakePart:
        return chat_part

    @cached_property
    def conversation(self) -> Conversation:
        messages = [message.message() for message in self.messages or ()]
        last = messages[-1] if messages else {"role": "none"}
        return Conversation(
            messages=messages,
            tools=tuple(tool.message() for tool in self.tools or ()),
            thinking=self.thinking,
            continues=bool(last["role"] == "assistant" and last["content"] and "tool_calls" not in last),
        )

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        if not self.messages:
            return []
        return [self.within(self.conversation.prepare(model, self.filled(model), RequestOptions()))]

    def parser(self, model: ModelFacts) -> SectionParser:
        return self.conversation.parser(model)
