"""What a chat template is able to show of tools and their use, and messages in which it shows all of it.

A template is asked by rendering a small conversation: what stands in the outcome is what it shows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from twofold.core.errors import TemplateError
from twofold.text.parsers.family import Call, ToolFamily
from twofold.text.parsers.prober import TemplateProber
from twofold.text.templates.messages import Message

_ID: Final = "call00001"
"""Nine letters and digits, as Mistral's templates want them."""
_TOOL: Final = "probe_tool"
_KEY: Final = "probe_key"
_RESULT: Final = "probe_result"
_PARAMETERS: Final = {"type": "object", "properties": {_KEY: {"type": "string", "description": "x"}}, "required": []}
_TOOLS: Final = ({"type": "function", "function": {"name": _TOOL, "description": "x", "parameters": _PARAMETERS}},)
_USER: Final = {"role": "user", "content": "x"}


@dataclass(frozen=True, slots=True)
class TemplateSupport:
    """What a template shows. ``tools``, ``calls`` with their results, a ``system`` message, a ``developer`` one.

    ``text_arguments``: it wants the arguments of calls as JSON text, not as an object.
    """

    tools: bool
    calls: bool
    system: bool
    developer: bool
    text_arguments: bool

    @classmethod
    def of(cls, prober: TemplateProber) -> Self:
        """Asks a template."""
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


def with_tools_told(messages: Sequence[Message], told: str, sight: TemplateSupport) -> list[Message]:
    """``told`` at the beginning of the system message, or of the first one where the template has no system."""
    if not messages:
        return []
    first = messages[0]
    if first.get("role") in ("system", "developer") or not sight.system:
        return [{**first, "content": _after(told, first.get("content"))}, *messages[1:]]
    return [{"role": "system", "content": told}, *messages]


def _after(told: str, content: object) -> object:
    if isinstance(content, Sequence) and not isinstance(content, str):
        return [{"type": "text", "text": told + "\n"}, *content]
    return f"{told}\n\n{content}" if content else told


def for_template(messages: Sequence[Message], family: ToolFamily, sight: TemplateSupport) -> list[Message]:
    """Messages that the template shows whole: calls and results as it reads them, or else as text."""
    known = [_known_role(message, sight) for message in messages]
    if sight.calls:
        return [_with_arguments(message, sight) for message in known]
    return _merged([_as_text(message, family) for message in known])


def _known_role(message: Message, sight: TemplateSupport) -> Message:
    if message.get("role") == "developer" and not sight.developer:
        return {**message, "role": "system"}
    return message


def _with_arguments(message: Message, sight: TemplateSupport) -> Message:
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_with_call(call, sight) for call in calls]} if calls else message


def _with_call(call: Mapping[str, Any], sight: TemplateSupport) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    changed: object = _text(arguments) if sight.text_arguments else _object(arguments)
    return {**call, "function": {**function, "arguments": changed}}


def _text(arguments: object) -> str:
    return arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)


def _object(arguments: object) -> object:
    """Arguments as an object. Raises TemplateError for text that holds none."""
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
        hint="Send back the arguments as they came, or leave the call out.",
    )


def _as_text(message: Message, family: ToolFamily) -> Message:
    """A call or a result as text of the assistant or the user."""
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
    """Neighbours of the user as one message: templates want user and assistant to take turns."""
    merged: list[Message] = []
    for message in messages:
        if merged and message.get("role") == merged[-1].get("role") == "user":
            content = f"{_plain(merged[-1].get('content'))}\n{_plain(message.get('content'))}"
            merged[-1] = {**merged[-1], "content": content}
        else:
            merged.append(message)
    return merged
