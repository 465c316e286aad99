"""Input items of the Responses API, checked and brought to the one form in which they are kept and told again.

An item is plain data: a message, a call of a function, what came of a call, or a model's reasoning. Items that a
response gave may be sent back as they are. An item reference stands for one of those by its id.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeAlias

from twofold.api.fields import MISSING, FieldError, Fields, impossible
from twofold.core.errors import named, nearest
from twofold.core.request import TTL_SECONDS

Item: TypeAlias = dict[str, Any]

MAX_ITEMS: Final = 4096
MAX_ID_CHARS: Final = 256
STATUSES: Final = ("in_progress", "completed", "incomplete")
ROLES: Final = ("user", "assistant", "system", "developer")
PHASES: Final = ("commentary", "final_answer")
PREFIXES: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""What ids begin with, by the item's type."""
SEALED: Final = "twofold1:"
"""What ``encrypted_content`` of ours begins with. It spares clients a field, it keeps no secret."""


def read_input(fields: Fields, *, needed: bool) -> tuple[Item, ...]:
    """The field ``input``: a text, which is a message of the user, or items; none where it is not ``needed``."""
    given = fields.take("input")
    if given is None:
        if needed:
            raise FieldError("input is required.", param="input", code=MISSING)
        return ()
    if isinstance(given, str):
        return (_message("user", [_text_part("user", given)]),)
    if not isinstance(given, list) or len(given) > MAX_ITEMS or (needed and not given):
        raise impossible("input", given, f"text, or a list of 1 to {MAX_ITEMS} items")
    return tuple(_item(item, f"input[{index}]") for index, item in enumerate(given))


def named_items(items: Iterable[Item], response: str) -> list[Item]:
    """The items with an id each; those without one get theirs from the response they were sent for."""
    named = enumerate(items)
    return [{"id": f"{PREFIXES[item['type']]}_{response}_i{index}", **item} for index, item in named]


def output_id(kind: str, response: str, index: int) -> str:
    """The id of the ``index``-th output item of a response."""
    return f"{PREFIXES[kind]}_{response}_{index}"


def owner_of(item_id: str) -> str | None:
    """The id of the response whose item this is, as far as its id tells; None for ids that are not ours."""
    prefix, _, rest = item_id.partition("_")
    response, _, place = rest.rpartition("_")
    known = prefix in PREFIXES.values() and response and place.removeprefix("i").isdigit()
    return f"resp_{response}" if known else None


def references(items: Iterable[Item]) -> list[str]:
    """The ids that stand for items."""
    return [item["id"] for item in items if item["type"] == "item_reference"]


def resolved(items: Iterable[Item], found: Mapping[str, Item]) -> tuple[Item, ...]:
    """The items, with what was ``found`` for those that are references."""
    return tuple(found.get(item["id"], item) if item["type"] == "item_reference" else item for item in items)


def sealed(item: Item) -> Item:
    """A reasoning item with its text in ``encrypted_content`` too, for clients that send back nothing else."""
    text = "".join(part["text"] for part in item.get("content") or ())
    return {**item, "encrypted_content": SEALED + b64encode(text.encode()).decode()}


def optional_choice(fields: Fields, name: str, known: tuple[str, ...]) -> str | None:
    """One of the ``known`` texts, or nothing."""
    return None if fields.take(name) is None else fields.choice(name, known)


def _item(given: object, where: str) -> Item:
    fields = Fields(given, where)
    kind = fields.text("type") or _untyped(fields)
    read = READERS.get(kind)
    if read is None:
        close = nearest(kind, READERS)
        raise FieldError(
            f"{where}.type {named(kind)} is not supported.",
            param=f"{where}.type",
            code="unsupported_value",
            hint=f"Did you mean {close!r}?" if close else f"Possible: {', '.join(READERS)}.",
        )
    item = read(fields)
    fields.close()
    return item


def _untyped(fields: Fields) -> str:
    """A message may leave its type out, and so may a reference, which has an id alone."""
    return "item_reference" if fields.take("role") is None and fields.take("id") is not None else "message"


def _read_message(fields: Fields) -> Item:
    role = fields.choice("role", ROLES)
    item = _message(role, _parts(fields, "content", role)) | _labels(fields)
    phase = optional_choice(fields, "phase", PHASES)
    return item | {"phase": phase} if phase else item


def _read_call(fields: Fields) -> Item:
    fields.only("namespace")
    fields.only("caller", {"type": "direct"})
    fields.only("async", False)
    return {
        "type": "function_call",
        "call_id": _needed_text(fields, "call_id"),
        "name": _needed_text(fields, "name"),
        "arguments": _needed_text(fields, "arguments", empty=True),
        "status": "completed",
    } | _labels(fields)


def _read_output(fields: Fields) -> Item:
    fields.only("caller", {"type": "direct"})
    for label in ("name", "created_by"):
        fields.text(label)
    output = fields.require("output")
    return {
        "type": "function_call_output",
        "call_id": _needed_text(fields, "call_id"),
        "output": output if isinstance(output, str) else _parts(fields, "output", "user"),
        "status": "completed",
    } | _labels(fields)


def _read_reasoning(fields: Fields) -> Item:
    summary = _typed_texts(fields, "summary", "summary_text")
    content = _typed_texts(fields, "content", "reasoning_text")
    hidden = fields.text("encrypted_content")
    if not content and hidden is not None:
        content = [{"type": "reasoning_text", "text": _opened(hidden, fields.name("encrypted_content"))}]
    return {"type": "reasoning", "summary": summary, "content": content} | _labels(fields)


def _read_reference(fields: Fields) -> Item:
    return {"type": "item_reference", "id": _needed_text(fields, "id")}


READERS: Final[Mapping[str, Callable[[Fields], Item]]] = {
    "message": _read_message,
    "function_call": _read_call,
    "function_call_output": _read_output,
    "reasoning": _read_reasoning,
    "item_reference": _read_reference,
}


def _message(role: str, content: list[Item]) -> Item:
    return {"type": "message", "role": role, "status": "completed", "content": content}


def _labels(fields: Fields) -> Item:
    """The id and the status, where they were given."""
    identity, status = fields.text("id"), optional_choice(fields, "status", STATUSES)
    if identity is not None and not 0 < len(identity) <= MAX_ID_CHARS:
        raise impossible(fields.name("id"), identity, f"text of 1 to {MAX_ID_CHARS} characters")
    return {name: value for name, value in (("id", identity), ("status", status)) if value is not None}


def _needed_text(fields: Fields, name: str, *, empty: bool = False) -> str:
    value = fields.require(name)
    if not isinstance(value, str) or not (value or empty):
        raise impossible(fields.name(name), value, "text")
    return value


def _parts(fields: Fields, name: str, role: str) -> list[Item]:
    given = fields.require(name)
    if isinstance(given, str):
        return [_text_part(role, given)]
    if not isinstance(given, list) or not given:
        raise impossible(fields.name(name), given, "text or a list of parts")
    return [_part(part, f"{fields.name(name)}[{index}]", role) for index, part in enumerate(given)]


def _part(given: object, where: str, role: str) -> Item:
    fields = Fields(given, where)
    kind = fields.require("type")
    if kind == "refusal" and role == "assistant":
        part = {"type": "refusal", "refusal": _needed_text(fields, "refusal", empty=True)}
    elif kind in ("input_text", "output_text"):
        part = _text_part(role, _needed_text(fields, "text", empty=True)) | _breakpoint(fields)
        for list_of_labels in ("annotations", "logprobs"):
            fields.take(list_of_labels)
    else:
        raise FieldError(
            f"{where}.type {named(kind)} is not supported.",
            param=f"{where}.type",
            code="unsupported_value",
            hint='A part is {"type": "input_text", "text": …}; a model\'s own is of type "output_text".',
        )
    fields.close()
    return part


def _text_part(role: str, text: str) -> Item:
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _breakpoint(fields: Fields) -> Item:
    point = fields.inner("prompt_cache_breakpoint")
    if point is None:
        return {}
    point.choice("mode", ("explicit",))
    ttl = optional_choice(point, "ttl", tuple(TTL_SECONDS))
    point.close()
    return {"prompt_cache_breakpoint": {"mode": "explicit"} | ({"ttl": ttl} if ttl else {})}


def _typed_texts(fields: Fields, name: str, kind: str) -> list[Item]:
    given = fields.take(name) or []
    if not isinstance(given, list):
        raise impossible(fields.name(name), given, "a list of parts")
    texts = []
    for index, one in enumerate(given):
        part = Fields(one, f"{fields.name(name)}[{index}]")
        part.choice("type", (kind,))
        texts.append({"type": kind, "text": _needed_text(part, "text", empty=True)})
        part.close()
    return texts


def _opened(hidden: str, name: str) -> str:
    """The reasoning that ``sealed`` put there."""
    try:
        if hidden.startswith(SEALED):
            return b64decode(hidden.removeprefix(SEALED), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise FieldError(f"{name} is not from this server.", param=name, hint="Send the item's content, or remove it.")
