"""Which tools and calls a chat template shows, and messages adapted to the template.

A template is tested by rendering small conversations: it supports the parts that the prompt contains.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from twofold.core.errors import TemplateError, TemplateLimitError, UsageError
from twofold.text.parsers.family import Call, ToolFamily
from twofold.text.templates.messages import Message
from twofold.text.tokenizers.tokenizer import Tokenizer


class TemplateProber:
    """Renders a tokenizer's template. After it exceeded a limit, which takes a second, it is not rendered again.

    ``source`` is empty without a template.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._exceeded = not tokenizer.has_chat_template
        self.source = tokenizer.chat_template or ""

    def rendered(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt, or "" if the template refuses or fails. Raises ResourceError if no process can be started."""
        if self._exceeded:
            return ""
        try:
            return self._tokenizer.apply_chat_template(
                messages, tools=tools, tokenize=False, chat_template_kwargs=variables
            )
        except TemplateLimitError:
            self._exceeded = True
        except UsageError:
            pass
        return ""


_ID: Final = "call00001"
"""Nine letters and digits, which Mistral's templates require."""
_TOOL: Final = "probe_tool"
_KEY: Final = "probe_key"
_RESULT: Final = "probe_result"
_PARAMETERS: Final = {"type": "object", "properties": {_KEY: {"type": "string", "description": "x"}}, "required": []}
_TOOLS: Final = ({"type": "function", "function": {"name": _TOOL, "description": "x", "parameters": _PARAMETERS}},)
_USER: Final = {"role": "user", "content": "x"}


@dataclass(frozen=True, slots=True)
class TemplateSupport:
    """Whether a template shows tools, calls with their results, system and developer messages.

    ``text_arguments``: the template expects the arguments of calls as JSON text, not as an object.
    """

    tools: bool
    calls: bool
    system: bool
    developer: bool
    text_arguments: bool

    @classmethod
    def of(cls, prober: TemplateProber) -> Self:
        """Tests a template."""
        as_object, as_text = (_shows_calls(prober, arguments) for arguments in ({_KEY: 1}, '{"probe_key": 1}'))
        return cls(
            tools=_TOOL in prober.rendered([_USER], _TOOLS),
            calls=as_object or as_text,
            system="probe" in prober.rendered([{"role": "system", "content": "probe"}, _USER]),
            developer="developer" in prober.source,
            text_arguments=as_text and not as_object,
        )


def _shows_calls(prober: TemplateProber, arguments: object) -> bool:
    call = {"id": _ID, "type": "function", "function": {"name": _TOOL, "arguments": arguments}}
    messages: list[Message] = [
        _USER,
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "name": _TOOL, "tool_call_id": _ID, "content": _RESULT},
    ]
    texts = (prober.rendered(messages), prober.rendered(messages, _TOOLS))
    return any(all(part in text for part in (_TOOL, _KEY, _RESULT)) for text in texts)


def with_instructions(messages: Sequence[Message], text: str, support: TemplateSupport) -> list[Message]:
    """Adds ``text`` at the start of the system message, or of the first message if there is no system role."""
    if not messages:
        return []
    first = messages[0]
    if first.get("role") in ("system", "developer") or not support.system:
        return [{**first, "content": _after(text, first.get("content"))}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def _after(text: str, content: object) -> object:
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [{"type": "text", "text": text + "\n"}, *content]
    return f"{text}\n\n{content}" if content else text


def for_template(messages: Sequence[Message], family: ToolFamily, support: TemplateSupport) -> list[Message]:
    """Messages that the template shows completely: calls and results in the template's form, or as text."""
    known = [_known_role(message, support) for message in messages]
    if support.calls:
        return [_with_arguments(message, support) for message in known]
    return _merged([_as_text(message, family) for message in known])


def _known_role(message: Message, support: TemplateSupport) -> Message:
    if message.get("role") == "developer" and not support.developer:
        return {**message, "role": "system"}
    return message


def _with_arguments(message: Message, support: TemplateSupport) -> Message:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_with_call(call, support) for call in calls]} if calls else message


def _with_call(call: Mapping[str, Any], support: TemplateSupport) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    changed: object = _text(arguments) if support.text_arguments else _object(arguments)
    return {**call, "function": {**function, "arguments": changed}}


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _object(arguments: object) -> object:
    """Arguments as an object. Raises TemplateError for other text."""
    if not isinstance(arguments, str):
        return arguments or {}
    try:
        value = json.loads(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError) as error:
        raise _not_json() from error
    if not isinstance(value, dict):
        raise _not_json()
    return value


def _not_json() -> TemplateError:
    return TemplateError(
        "The arguments of a tool call are not the JSON text of an object.",
        hint="Send back the arguments unchanged, or remove the call.",
    )


def _as_text(message: Message, family: ToolFamily) -> Message:
    """A call as text of the assistant, a result as text of the user."""
    calls = message.get("tool_calls")
    content = message.get("content")
    if calls:
        made = [Call(call["function"]["name"], _mapping(call["function"].get("arguments"))) for call in calls]
        written = family.written(made)
        left = {name: value for name, value in message.items() if name != "tool_calls"}
        return {**left, "content": f"{_plain(content)}\n{written}" if content else written}
    if message.get("role") in ("tool", "function"):
        return {"role": "user", "content": f"<tool_response>\n{_plain(content)}\n</tool_response>"}
    return message


def _mapping(arguments: object) -> Mapping[str, Any]:
    value = _object(arguments)
    return value if isinstance(value, Mapping) else {}


def _plain(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, Sequence) else ()
    return "\n".join(part.get("text", "") if isinstance(part, Mapping) else str(part) for part in parts)


def _merged(messages: Sequence[Message]) -> list[Message]:
    """Joins adjacent messages of the user, because templates require user and assistant to alternate."""
    merged: list[Message] = []
    for message in messages:
        if merged and message.get("role") == merged[-1].get("role") == "user":
            content = f"{_plain(merged[-1].get('content'))}\n{_plain(message.get('content'))}"
            merged[-1] = {**merged[-1], "content": content}
        else:
            merged.append(message)
    return merged
