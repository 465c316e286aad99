"""/api/chat: bodies read; without messages a request only loads the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from twofold.api.base import Job, ModelFacts
from twofold.api.conversation import Conversation
from twofold.api.fields import FieldError, Fields, impossible
from twofold.api.ollama.common import OllamaFields, OllamaRequest
from twofold.api.ollama.fields import read_think
from twofold.api.ollama.replies import as_message
from twofold.api.openai.tools import tool_list
from twofold.core.request import RequestOptions
from twofold.engine.prompts import Message
from twofold.text.parsers.base import SectionParser
from twofold.text.templates.messages import MAX_MESSAGES

ROLES: Final = ("system", "user", "assistant", "tool")
MAX_INDEX: Final = 2**31 - 1


@dataclass(frozen=True, slots=True)
class OllamaChatRequest(OllamaRequest):
    """A chat. A last message of the assistant's is continued."""

    common: OllamaFields
    conversation: Conversation

    shape = staticmethod(as_message)

    @classmethod
    def read(cls, body: object) -> Self:
        """Reads a body. Raises ParameterError for an impossible, unknown or unsupported field."""
        fields = Fields(body)
        messages = read_messages(fields)
        request = cls(
            common=OllamaFields.read(fields),
            conversation=Conversation(
                messages=messages,
                tools=tool_list(fields.take("tools")),
                thinking=read_think(fields),
                continues=bool(messages) and _is_begun(messages[-1]),
            ),
        )
        fields.close()
        return request

    def prepare(self, model: ModelFacts) -> Sequence[Job]:
        if not self.conversation.messages:
            return []
        sampling = self.common.sampling
        return [sampling.within(self.conversation.prepare(model, sampling.filled(model), RequestOptions()))]

    def parser(self, model: ModelFacts) -> SectionParser:
        return self.conversation.parser(model)


def read_messages(fields: Fields) -> tuple[Message, ...]:
    """The messages in the shape that chat templates read. Raises FieldError."""
    given = fields.take("messages")
    if given is None:
        return ()
    if not isinstance(given, list) or len(given) > MAX_MESSAGES:
        raise impossible("messages", given, f"a list of at most {MAX_MESSAGES} messages")
    return tuple(_message(Fields(message, f"messages[{index}]")) for index, message in enumerate(given))


def _is_begun(message: Message) -> bool:
    """Whether this is the beginning of an answer."""
    return bool(message["role"] == "assistant" and message["content"] and "tool_calls" not in message)


def _message(fields: Fields) -> Message:
    role = fields.choice("role", ROLES)
    message: dict[str, Any] = {"role": role, "content": fields.text("content") or ""}
    fields.only("images", [])
    named = {"thinking": "reasoning_content", "tool_name": "name", "tool_call_id": "tool_call_id"}
    message |= {ours: value for theirs, ours in named.items() if (value := fields.text(theirs))}
    calls = fields.take("tool_calls")
    fields.close()
    if calls is not None and not isinstance(calls, list):
        raise impossible(fields.name("tool_calls"), calls, "a list of calls")
    if calls:
        where = fields.name("tool_calls")
        message["tool_calls"] = [_call(Fields(call, f"{where}[{number}]"), number) for number, call in enumerate(calls)]
    return message


def _call(call: Fields, number: int) -> Message:
    identity = call.text("id") or f"call_{number}"
    call.only("type", "function")
    function = Fields(call.require("function"), call.name("function"))
    call.close()
    name, arguments = function.require("name"), function.take("arguments")
    function.whole("index", 0, MAX_INDEX)
    function.close()
    if not isinstance(name, str) or not name:
        raise impossible(function.name("name"), name, "the name of a tool")
    if arguments is not None and not isinstance(arguments, dict):
        raise FieldError(f"{function.name('arguments')} must be an object.", param=function.name("arguments"))
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments or {}}}
