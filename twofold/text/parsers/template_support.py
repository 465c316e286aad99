"""What a chat template can show, and conversations adapted to it.

A template is tested by rendering small conversations: it has a place for the parts that the prompt contains.

Laws: what the template shows is left as it is. Every message keeps its place, so that a longer conversation begins as
the shorter one did; only messages that are next to each other are joined.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from hashlib import blake2b
from itertools import product
from typing import Any, Final, Self, TypeAlias

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
        self.has_tool_template = tokenizer.tool_template is not None

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
                messages, tools=tools, tokenize=False, exact_content=True, chat_template_kwargs=variables
            )
        except TemplateLimitError:
            self._exceeded = True
        except UsageError:
            pass
        return ""


SHORT_ID: Final = 9
"""Letters and digits of a call's id, which Mistral's templates require."""
_LONG_ID: Final = "call_0123456789abcdef01234567_0_0"
_TOOL: Final = "probe_tool"
_KEY: Final = "probe_key"
_PARAMETERS: Final = {"type": "object", "properties": {_KEY: {"type": "string", "description": "x"}}, "required": []}
_TOOLS: Final = ({"type": "function", "function": {"name": _TOOL, "description": "x", "parameters": _PARAMETERS}},)
SYSTEMS: Final = ("system", "developer")
RESULTS: Final = ("tool", "function", "ipython")

Note: TypeAlias = Callable[[str], None]
"""Receives a sentence for the caller about a change of the conversation."""


@dataclass(frozen=True, slots=True)
class TemplateSupport:
    """What a template shows.

    tools              tools that are offered
    calls              calls with their results
    system             a first system message; ``system_alone``: one that nothing follows
    systems            several first ones; ``late_system``: a single later one; ``systems_apart``: a first and a later
    developer          messages of that role
    users, assistants  several messages of that role in a row
    assistant_first    a conversation that the assistant begins
    empty              messages of the assistant without text and calls; assumed, not tested
    results_first      results without a call
    several_calls      several calls in one message
    long_ids           ids of calls that are not nine letters and digits
    text_arguments     the arguments of calls must be JSON text, not an object
    null_content       a message with calls and without text must have the content null
    parts              lists of text parts are shown as text
    needs_parts        roles whose content must be a list of parts
    """

    tools: bool = True
    calls: bool = True
    system: bool = True
    system_alone: bool = True
    systems: bool = True
    late_system: bool = True
    systems_apart: bool = True
    developer: bool = True
    users: bool = True
    assistants: bool = True
    assistant_first: bool = True
    empty: bool = True
    results_first: bool = True
    several_calls: bool = True
    long_ids: bool = True
    text_arguments: bool = False
    null_content: bool = False
    parts: bool = False
    needs_parts: frozenset[str] = frozenset()

    @classmethod
    def of(cls, prober: TemplateProber, *, with_tools: bool = False) -> Self:
        """Tests a template, with up to 30 renderings, of which most templates need about 15; ``with_tools`` tests the
        one for conversations with tools."""
        return cls(**_Probes(prober, with_tools).turns())

    @property
    def stricter(self) -> Iterator[Self]:
        """For conversations that the template refuses nevertheless: calls and results are texts, and the user's and the
        assistant's messages alternate; then without a system message, too."""
        alternating = replace(
            self,
            calls=False,
            results_first=False,
            systems=False,
            late_system=False,
            systems_apart=False,
            users=False,
            assistants=False,
            assistant_first=False,
            empty=False,
        )
        yield alternating
        yield replace(alternating, system=False)


def _said(role: str, text: str) -> Message:
    return {"role": role, "content": text}


class _Probes:
    """Small conversations with one template."""

    def __init__(self, prober: TemplateProber, with_tools: bool) -> None:
        self._prober = prober
        self._needs_parts: set[str] = set()
        self._tools: Sequence[Message] | None = _TOOLS if with_tools else None
        self._offered = _TOOLS if with_tools or not prober.has_tool_template else None
        """Tools for each rendering, if the template renders nothing without them."""

    def turns(self) -> dict[str, Any]:
        """Values of ``TemplateSupport``."""
        user, assistant = _said("user", "probe_user"), _said("assistant", "probe_assistant")
        system, again, last = (
            _said("system", "probe_system"),
            _said("assistant", "probe_again"),
            _said("user", "probe_last"),
        )
        late = _said("system", "probe_late")
        parts = self._parts()
        if not self._shows([user]) and self._prober.rendered(self._ready([user]), self._offered):
            self._tools = self._offered
        has_system = self._shows_role([system, user])
        self._shows_role([assistant, user]) or self._shows_role([user, assistant])
        users = assistants = assistant_first = self._shows([again, assistant, user, last])
        if not users:
            users, assistants = self._shows([user, last]), self._shows([user, assistant, again, last])
            assistant_first = self._shows([assistant, last])
        return {
            "tools": _TOOL in self._prober.rendered(self._ready([_said("user", "x")]), self._offered),
            "system": has_system,
            "system_alone": has_system and self._shows([system]),
            "systems": has_system and self._shows([system, late, user]),
            "late_system": self._shows([user, assistant, late, last]),
            "systems_apart": has_system and self._shows([system, user, assistant, late, last]),
            "developer": "developer" in self._prober.source,
            "users": users,
            "assistants": assistants,
            "assistant_first": assistant_first,
            "results_first": self._shows([_result(0, _id_of(0)), user]),
            "parts": parts,
            "needs_parts": frozenset(self._needs_parts),
            **self._calls(),
        }

    def _shows_role(self, messages: Sequence[Message]) -> bool:
        """Whether these messages are shown, if need be with a list of parts as the content of the role that is not the
        user's."""
        role = next((message["role"] for message in messages if message["role"] != "user"), "user")
        if not (shown := self._shows(messages)):
            self._needs_parts.add(role)
            if not (shown := self._shows(messages)):
                self._needs_parts.remove(role)
        return shown

    def _parts(self) -> bool:
        """Whether the template shows a list of parts as it shows a text."""
        text = self._prober.rendered([_said("user", "probe")], self._tools)
        parts = self._prober.rendered([{"role": "user", "content": [_part("probe")]}], self._tools)
        if "probe" not in text and "probe" in parts and "'text'" not in parts:
            self._needs_parts.add("user")
            return True
        return bool(text) and text == parts

    def _calls(self) -> dict[str, Any]:
        """The form of calls that the template shows, with as few changes as possible."""
        for text_arguments, null_content in product((False, True), (False, True)):
            shows = partial(self._shows_calls, text_arguments=text_arguments, null_content=null_content)
            if shows(1):
                return {
                    "calls": True,
                    "text_arguments": text_arguments,
                    "null_content": null_content,
                    "several_calls": shows(2),
                    "long_ids": shows(1, call_id=_LONG_ID),
                }
        return {"calls": False}

    def _shows_calls(self, count: int, *, text_arguments: bool, null_content: bool, call_id: str = "") -> bool:
        calls, results = [], []
        for number in range(count):
            arguments: Any = {_KEY: f"probe_value_{number}"}
            arguments = json.dumps(arguments) if text_arguments else arguments
            function = {"name": _TOOL, "arguments": arguments}
            calls.append({"id": call_id or _id_of(number), "type": "function", "function": function})
            results.append(_result(number, call_id or _id_of(number)))
        calling = {"role": "assistant", "content": None if null_content else "", "tool_calls": calls}
        messages = [_said("user", "x"), calling, *results]
        shown = [_TOOL, _KEY, *(f"probe_{kind}_{number}" for kind in ("value", "result") for number in range(count))]
        return self._shows(messages, shown) or self._shows(messages, shown, self._offered)

    def _shows(
        self, messages: Sequence[Message], texts: Sequence[str] | None = None, tools: Sequence[Message] | None = None
    ) -> bool:
        text = self._prober.rendered(self._ready(messages), tools or self._tools)
        return all(part in text for part in texts or [message["content"] for message in messages])

    def _ready(self, messages: Sequence[Message]) -> list[Message]:
        support = TemplateSupport(needs_parts=frozenset(self._needs_parts))
        return [_with_content(each, support) if each["role"] in self._needs_parts else each for each in messages]


def _id_of(number: int) -> str:
    return f"call{number:05}"


def _result(number: int, call_id: str) -> Message:
    return {"role": "tool", "name": _TOOL, "tool_call_id": call_id, "content": f"probe_result_{number}"}


def with_instructions(messages: Sequence[Message], text: str) -> list[Message]:
    """Adds ``text`` at the start of the system message, which is made if there is none."""
    if messages and messages[0].get("role") in SYSTEMS:
        first = messages[0]
        return [{**first, "content": _joined(text, first.get("content"), "\n\n")}, *messages[1:]]
    return [{"role": "system", "content": text}, *messages]


def for_template(
    messages: Sequence[Message], family: ToolFamily, support: TemplateSupport, note: Note = lambda _: None
) -> list[Message]:
    """Messages that the template shows completely.

    Calls and results have the template's form, or are texts. Where the template has no place for a system message, it
    joins the user's next message, or is one if none follows it directly. Messages of one role in a row are joined if
    the template refuses them. ``note`` is told of changes that callers would not expect.
    """
    known = [
        {**message, "role": "system"} if message.get("role") == "developer" and not support.developer else message
        for message in messages
    ]
    calls = any(message.get("tool_calls") for message in known)
    native = support.calls or (support.results_first and not calls)
    shown = _with_calls(known, support, note) if native else _with_texts(known, family)
    shown = [message for message in shown if support.empty or _plain(message.get("content"))]
    turns = _alternating(_with_systems(shown, support), support, note)
    return [_with_content(message, support) for message in turns]


def moves_system(messages: Sequence[Message], support: TemplateSupport) -> bool:
    """Whether a system message joins a message of the user, or becomes one."""
    leading, late = _systems(messages)
    return bool(leading and not _keeps_leading(messages, support)) or bool(late and not _keeps_late(messages, support))


def _systems(messages: Sequence[Message]) -> tuple[int, int]:
    """Numbers of system messages at the start, and of later ones."""
    leading = next((i for i, message in enumerate(messages) if message.get("role") not in SYSTEMS), len(messages))
    return leading, sum(message.get("role") in SYSTEMS for message in messages[leading:])


def _keeps_leading(messages: Sequence[Message], support: TemplateSupport) -> bool:
    return support.system and (support.system_alone or _systems(messages)[0] < len(messages))


def _keeps_late(messages: Sequence[Message], support: TemplateSupport) -> bool:
    return support.late_system and (support.systems_apart or sum(_systems(messages)) == 1)


def _with_systems(messages: Sequence[Message], support: TemplateSupport) -> list[Message]:
    """System messages where the template has a place for them, the others with the user's next message."""
    leading, _ = _systems(messages)
    keeps_leading, keeps_late = _keeps_leading(messages, support), _keeps_late(messages, support)
    ready: list[Message] = list(messages[:leading])
    if leading > 1 and not (support.systems and keeps_leading):
        ready = [_merge(ready, "\n\n")]
    if not keeps_leading:
        ready = [{**message, "role": "user"} for message in ready]
    moved = bool(ready) and not keeps_leading
    for message in messages[leading:]:
        late = message.get("role") in SYSTEMS and not keeps_late
        if moved and (late or message.get("role") == "user"):
            ready[-1] = _merge([ready[-1], message], "\n\n")
        else:
            ready.append({**message, "role": "user"} if late else message)
        moved = late
    return ready


def _alternating(messages: Sequence[Message], support: TemplateSupport, note: Note) -> list[Message]:
    """Joins messages of one role in a row where the template refuses them; a user's message without text precedes an
    assistant's first one."""
    apart = {"user": support.users, "assistant": support.assistants}
    turns: list[Message] = []
    for message in messages:
        role = message.get("role")
        if not apart.get(str(role), True) and turns and turns[-1].get("role") == role and _is_text(turns[-1]):
            turns[-1] = _merge([turns[-1], message], "\n")
            note("messages of one role in a row were joined")
        else:
            turns.append(message)
    first = next((index for index, message in enumerate(turns) if message.get("role") not in SYSTEMS), None)
    if first is not None and turns[first].get("role") == "assistant" and not support.assistant_first:
        turns.insert(first, {"role": "user", "content": ""})
    return turns


def _is_text(message: Message) -> bool:
    return not message.get("tool_calls")


def _merge(messages: Sequence[Message], between: str) -> Message:
    """One message with the role of the first, and everything else that any of them has."""
    whole: dict[str, Any] = {}
    for message in messages:
        texts = {name for name in ("content", "reasoning_content") if name in message or name in whole}
        joined = {name: _joined(whole.get(name), message.get(name), between) for name in texts}
        whole = {**message, **whole, **joined}
    return whole


def _joined(first: object, second: object, between: str) -> str:
    return between.join(text for text in (_plain(first), _plain(second)) if text)


def _with_content(message: Message, support: TemplateSupport) -> Message:
    """The message with its content as the template reads it: a text, a list of parts, or null beside calls."""
    content = message.get("content")
    if message.get("role") in support.needs_parts:
        one = isinstance(content, list | tuple) and len(content) == 1
        return message if one else {**message, "content": [_part(_plain(content))]}  # it may read the first part only
    if _is_list(content) and support.parts:
        return message
    text = _plain(content)
    return {**message, "content": None if support.null_content and not text and message.get("tool_calls") else text}


def _is_list(content: object) -> bool:
    return isinstance(content, Sequence) and not isinstance(content, str)


def _part(text: str) -> dict[str, str]:
    return {"type": "text", "text": text}


def _with_calls(messages: Sequence[Message], support: TemplateSupport, note: Note) -> list[Message]:
    """Calls and results in the template's form."""
    ready: list[Message] = []
    called = support.results_first
    for message, results in _runs(messages):
        calls = (message or {}).get("tool_calls") or ()
        called = called or bool(calls)
        if message is not None and len(calls) > 1 and not support.several_calls:
            ready += _split(message, results)
            note("calls of one message were split into several messages")
            continue
        if calls and message is not None and support.null_content and _plain(message.get("content")):
            said = {name: value for name, value in message.items() if name != "tool_calls"}
            ready += [said, {"role": "assistant", "content": None, "tool_calls": calls}]
        else:
            ready += [] if message is None else [message]
        ready += results if called or not results else [_result_text(results)]
    return [_in_form(message, support) for message in ready]


def _runs(messages: Sequence[Message]) -> Iterator[tuple[Message | None, list[Message]]]:
    """Each message with the results that follow it; None with results at the start."""
    message: Message | None = None
    results: list[Message] = []
    for each in messages:
        if each.get("role") in RESULTS:
            results.append(each)
            continue
        if message is not None or results:
            yield message, results
        message, results = each, []
    yield message, results


def _split(message: Message, results: Sequence[Message]) -> Iterator[Message]:
    """A message for each call, followed by the call's results."""
    left = list(results)
    for number, call in enumerate(message["tool_calls"]):
        yield {**(message if not number else {"role": "assistant", "content": ""}), "tool_calls": [call]}
        same = [result for result in left if result.get("tool_call_id") == call.get("id")]
        same = same or ([] if any(result.get("tool_call_id") for result in left) else left[:1])
        left = [result for result in left if all(result is not other for other in same)]
        yield from same
    yield from left


def _in_form(message: Message, support: TemplateSupport) -> Message:
    if message.get("tool_call_id") and not support.long_ids:
        message = {**message, "tool_call_id": _short(message["tool_call_id"])}
    calls = message.get("tool_calls")
    return {**message, "tool_calls": [_with_call(call, support) for call in calls]} if calls else message


def _short(call_id: str) -> str:
    """An id of nine letters and digits, the same for the same id."""
    fits = len(call_id) == SHORT_ID and call_id.isascii() and call_id.isalnum()
    return call_id if fits else blake2b(call_id.encode(errors="replace")).hexdigest()[:SHORT_ID]


def _with_call(call: Mapping[str, Any], support: TemplateSupport) -> dict[str, Any]:
    function = call["function"]
    arguments = function.get("arguments")
    changed: object = _text(arguments) if support.text_arguments else _object(arguments)
    named = {"id": _short(call["id"])} if call.get("id") and not support.long_ids else {}
    return {**call, **named, "function": {**function, "arguments": changed}}


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


def _with_texts(messages: Sequence[Message], family: ToolFamily) -> list[Message]:
    """Calls as texts of the assistant; results in a row as one text of the user."""
    ready: list[Message] = []
    for message, results in _runs(messages):
        ready += [] if message is None else [_call_text(message, family)]
        ready += [_result_text(results)] if results else []
    return ready


def _result_text(results: Sequence[Message]) -> Message:
    texts = (f"<tool_response>\n{_plain(result.get('content'))}\n</tool_response>" for result in results)
    return {"role": "user", "content": "\n".join(texts)}


def _call_text(message: Message, family: ToolFamily) -> Message:
    calls = message.get("tool_calls")
    if not calls:
        return message
    made = [Call(call["function"]["name"], _mapping(call["function"].get("arguments"))) for call in calls]
    left = {name: value for name, value in message.items() if name != "tool_calls"}
    return {**left, "content": _joined(message.get("content"), family.written(made), "\n")}


def _mapping(arguments: object) -> Mapping[str, Any]:
    value = _object(arguments)
    return value if isinstance(value, Mapping) else {}


def _plain(content: object) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    parts = content if isinstance(content, Sequence) else ()
    return "\n".join(part.get("text", "") if isinstance(part, Mapping) else str(part) for part in parts)
