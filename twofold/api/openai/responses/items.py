"""Input items of the Responses API, checked and brought to the one form in which they are kept and told again.

An item is plain data: a message, a call of a function, what came of a call, or a model's reasoning. Items that a
response gave may be sent back as they are. An item reference stands for one of those by its id.
"""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, field, structs

from twofold.api.body import OFFERED, RequestObject, missing, only
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import FullText
from twofold.api.openai.chat import CacheBreakpoint

Item: TypeAlias = dict[str, Any]

MAX_ITEMS: Final = 4096
MAX_ID_CHARS: Final = 256
PREFIXES: Final = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
"""What ids begin with, by the item's type."""
SEALED: Final = "twofold1:"
"""What ``encrypted_content`` of ours begins with. It spares clients a field, it keeps no secret."""


ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]
ItemId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS)]
Direct: TypeAlias = Annotated[Any, only({"type": "direct"})]


class ResponseTextPart(RequestObject):
    """Text that was sent, or that the model made."""

    type: Annotated[Literal["input_text", "output_text"], OFFERED]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None
    annotations: Any = None
    logprobs: Any = None

    def part(self, role: str) -> Item:
        point = self.prompt_cache_breakpoint
        if point is None:
            return text_part(role, self.text)
        marked = {"mode": point.mode} | ({} if point.ttl is None else {"ttl": point.ttl})
        return text_part(role, self.text) | {"prompt_cache_breakpoint": marked}


class ResponseRefusalPart(RequestObject):
    """A refusal of the model's."""

    type: Annotated[Literal["refusal"], OFFERED]
    refusal: str

    def part(self, role: str) -> Item:  # noqa: ARG002 - it is the assistant's
        return {"type": "refusal", "refusal": self.refusal}


class LabelledItem(RequestObject):
    """The labels of an item."""

    id: ItemId | None = None
    status: ItemStatus | None = None

    def labels(self) -> Item:
        """Those that were given."""
        return {name: value for name in ("id", "status") if (value := getattr(self, name)) is not None}


class InputMessage(LabelledItem, kw_only=True):
    """A message to the model."""

    role: Literal["user", "system", "developer"]
    content: str | Annotated[list[ResponseTextPart], Meta(min_length=1)]
    type: Annotated[Literal["message"], OFFERED] = "message"
    phase: Literal["commentary", "final_answer"] | None = None

    def item(self, where: str) -> Item:  # noqa: ARG002 - it has no errors of its own
        return _message(self.role, self.content) | self.labels() | ({"phase": self.phase} if self.phase else {})


class OutputMessage(LabelledItem, kw_only=True):
    """A message of the model's."""

    role: Literal["assistant"]
    content: str | Annotated[list[ResponseTextPart | ResponseRefusalPart], Meta(min_length=1)]
    type: Annotated[Literal["message"], OFFERED] = "message"
    phase: Literal["commentary", "final_answer"] | None = None

    def item(self, where: str) -> Item:  # noqa: ARG002
        return _message(self.role, self.content) | self.labels() | ({"phase": self.phase} if self.phase else {})


class FunctionCallItem(LabelledItem, kw_only=True):
    """A call of a function."""

    type: Annotated[Literal["function_call"], OFFERED]
    call_id: FullText
    name: FullText
    arguments: str
    namespace: None = None
    caller: Direct = None
    is_async: Literal[False] = field(default=False, name="async")

    def item(self, where: str) -> Item:  # noqa: ARG002
        call = {"type": self.type, "call_id": self.call_id, "name": self.name, "arguments": self.arguments}
        return call | {"status": "completed"} | self.labels()


class FunctionOutputItem(LabelledItem, kw_only=True):
    """What came of a call."""

    type: Annotated[Literal["function_call_output"], OFFERED]
    call_id: FullText
    output: str | Annotated[list[ResponseTextPart], Meta(min_length=1)]
    caller: Direct = None
    name: str | None = None
    created_by: str | None = None

    def item(self, where: str) -> Item:  # noqa: ARG002
        output = self.output if isinstance(self.output, str) else _parts("user", self.output)
        return {"type": self.type, "call_id": self.call_id, "output": output, "status": "completed"} | self.labels()


class SummaryText(RequestObject):
    """A part of a summary."""

    type: Literal["summary_text"]
    text: str


class ReasoningText(RequestObject):
    """A part of the reasoning."""

    type: Literal["reasoning_text"]
    text: str


class ReasoningItem(LabelledItem, kw_only=True):
    """The model's reasoning. ``encrypted_content``, as a response had it, counts where there is no content."""

    type: Annotated[Literal["reasoning"], OFFERED]
    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None

    def item(self, where: str) -> Item:
        content = [structs.asdict(part) for part in self.content or ()]
        if not content and self.encrypted_content is not None:
            text = _opened(self.encrypted_content, f"{where}.encrypted_content")
            content = [{"type": "reasoning_text", "text": text}]
        summary = [structs.asdict(part) for part in self.summary or ()]
        return {"type": self.type, "summary": summary, "content": content} | self.labels()


class ItemReference(RequestObject):
    """An item of a response, by its id."""

    id: FullText
    type: Annotated[Literal["item_reference"], OFFERED] = "item_reference"

    def item(self, where: str) -> Item:  # noqa: ARG002
        return {"type": self.type, "id": self.id}


ResponseItem: TypeAlias = (
    InputMessage | OutputMessage | FunctionCallItem | FunctionOutputItem | ReasoningItem | ItemReference
)


def input_items(given: str | Sequence[ResponseItem] | None, *, needed: bool) -> tuple[Item, ...]:
    """The items of ``input``; a text is a message of the user. Raises FieldError if ``needed`` ones are missing."""
    if needed and (given is None or given == []):
        raise missing((None, "input"))
    if isinstance(given, str):
        return (_message("user", given),)
    return tuple(item.item(f"input[{index}]") for index, item in enumerate(given or ()))


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


def text_part(role: str, text: str) -> Item:
    """A text of the role, as replies have it."""
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    return {"type": "input_text", "text": text}


def _message(role: str, content: str | Sequence[ResponseTextPart | ResponseRefusalPart]) -> Item:
    parts = [text_part(role, content)] if isinstance(content, str) else _parts(role, content)
    return {"type": "message", "role": role, "status": "completed", "content": parts}


def _parts(role: str, given: Sequence[ResponseTextPart | ResponseRefusalPart]) -> list[Item]:
    return [part.part(role) for part in given]


def _opened(hidden: str, name: str) -> str:
    """The reasoning that ``sealed`` put there."""
    try:
        if hidden.startswith(SEALED):
            return b64decode(hidden.removeprefix(SEALED), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        pass
    raise FieldError(f"{name} is not from this server.", param=name, hint="Send the item's content, or remove it.")
