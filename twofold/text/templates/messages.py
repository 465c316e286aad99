"""Chat messages from callers: checked, and converted to the one form that templates read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from twofold.core.errors import TemplateError, closest_match, describe_name

Message: TypeAlias = Mapping[str, Any]

MAX_MESSAGES = 4096
MAX_DEPTH = 192
"""Levels of objects and lists in a request; a JSON schema has two for each object in an object."""
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function", "model", "ipython"})
FIELDS = frozenset({"role", "content", "name", "tool_calls", "tool_call_id", "reasoning_content", "thinking"})

NAMES = frozenset({"name", "id", "tool_call_id", "type"})


def validated(messages: Sequence[Message], *, exact_content: bool = False) -> list[dict[str, Any]]:
    """Copies with ``content`` as one string; a list of text parts is joined by newlines. With ``exact_content`` lists
    and null stay as they are. Raises TemplateError."""
    if isinstance(messages, (str, bytes)) or not isinstance(messages, Sequence):
        raise _refused("Messages must be a list of objects with 'role' and 'content'.")
    if not messages:
        raise _refused("There must be at least one message.")
    if len(messages) > MAX_MESSAGES:
        raise _refused(f"{len(messages)} messages are too many; at most {MAX_MESSAGES} are allowed.")
    return [_message(message, f"messages[{index}]", exact_content) for index, message in enumerate(messages)]


def _message(message: Message, where: str, exact_content: bool) -> dict[str, Any]:
    if not isinstance(message, Mapping):
        raise _refused(f"{where} must be an object with 'role' and 'content'.")
    for field in message:
        if field not in FIELDS:
            raise _unknown(f"{where} has an unknown field", field, FIELDS)
    role = message.get("role")
    if not isinstance(role, str) or role not in ROLES:
        raise _unknown(f"{where} has an unknown role", role, ROLES)
    content: Any = _content(message.get("content"), where)
    if "content" not in message and not message.get("tool_calls"):
        raise _refused(f"{where} has no 'content'.")
    copied = {key: plain(value) for key, value in message.items()}
    if exact_content and isinstance(copied.get("content"), list):
        content = [{"type": "text", "text": _part(part, where)} for part in copied["content"]]
    elif exact_content and "content" in message:
        content = copied["content"]
    return {**copied, "content": content}


def _content(content: object, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence):
        raise _refused(f"{where}.content must be a string or a list of text parts.")
    return "\n".join(_part(part, f"{where}.content[{index}]") for index, part in enumerate(content))


def _part(part: object, where: str) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping) or part.get("type") != "text" or not isinstance(part.get("text"), str):
        raise _refused(f"{where} must be a text part: {{'type': 'text', 'text': '…'}}.")
    text: str = part["text"]
    return text


def plain(value: object, depth: int = 0) -> Any:
    """A copy made only of dict, list, str, int, float, bool and None. Raises TemplateError for anything else."""
    if depth > MAX_DEPTH:
        raise _refused(f"Messages and tools must not be nested deeper than {MAX_DEPTH} levels.")
    if value is None or type(value) in {str, bool, int, float}:
        return value
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {str(key): plain(item, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, depth + 1) for item in value]
    raise _refused(f"Messages and tools must be plain data, not {type(value).__name__}.")


def texts_of(value: object) -> Iterator[str]:
    """Every string in plain data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from texts_of(item)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item)


def changed(value: Any, change: Callable[[str, bool], str], *, is_name: bool = False) -> Any:
    """Plain data with ``change`` applied to every string, keys included. It is told which ones are names: keys, and
    values under the keys in NAMES."""
    if isinstance(value, str):
        return change(value, is_name)
    if isinstance(value, dict):
        return {change(key, True): changed(item, change, is_name=key in NAMES) for key, item in value.items()}
    return [changed(item, change) for item in value] if isinstance(value, list) else value


def _unknown(what: str, name: object, known: frozenset[str]) -> TemplateError:
    close = closest_match(name, known) if isinstance(name, str) else None
    return _refused(f"{what} {describe_name(name)}" + (f"; did you mean {close!r}?" if close else "."))


def _refused(message: str) -> TemplateError:
    return TemplateError(message, hint="See the OpenAI chat format: a list of {'role': …, 'content': …}.")
