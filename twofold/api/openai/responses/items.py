"""Items of the Responses API: as requests have them, and as replies and the store have them.

An item is a message, a call of a function, the output of a call, or a model's reasoning. A client may
send the items of a response back unchanged, or refer to an item by its id.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType, field, structs

from twofold.api.body import IGNORED, OFFERED, NonEmptyText, ReplyObject, RequestObject, missing, only
from twofold.api.fields import FieldError
from twofold.api.openai.chat import MarkedObject
from twofold.api.openai.logprobs import ChatTokenLogprob

MAX_ITEMS: Final = 4096
MAX_ID_CHARS: Final = 256
SEALED: Final = "twofold1:"
"""Start of Twofold's ``encrypted_content``: base64 of reasoning, for clients that send back only this field."""


ItemStatus: TypeAlias = Literal["in_progress", "completed", "incomplete"]
ItemId: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_ID_CHARS)]
Direct: TypeAlias = Annotated[Any, only({"type": "direct"})]
Phase: TypeAlias = Literal["commentary", "final_answer"]
Breakpoint: TypeAlias = dict[str, str]


class SummaryText(RequestObject):
    """A part of a summary."""

    type: Literal["summary_text"]
    text: str


class ReasoningText(RequestObject):
    """A part of the reasoning."""

    type: Literal["reasoning_text"]
    text: str


class InputTextContent(ReplyObject, kw_only=True, tag_field="type", tag="input_text"):
    """Text that was sent."""

    text: str
    prompt_cache_breakpoint: Breakpoint | UnsetType = UNSET


class OutputTextContent(ReplyObject, kw_only=True, tag_field="type", tag="output_text"):
    """Text of the model."""

    text: str
    annotations: Annotated[list[str], Meta(max_length=0)] = field(default_factory=list)
    logprobs: Sequence[ChatTokenLogprob] = ()
    prompt_cache_breakpoint: Breakpoint | UnsetType = UNSET


class RefusalContent(ReplyObject, kw_only=True, tag_field="type", tag="refusal"):
    """A refusal that was sent."""

    refusal: str


ItemContent: TypeAlias = InputTextContent | OutputTextContent | RefusalContent


class MessageItem(ReplyObject, kw_only=True, tag_field="type", tag="message"):
    """A message."""

    id: str = ""
    role: Literal["user", "assistant", "system", "developer"]
    status: ItemStatus = "completed"
    content: list[ItemContent]
    phase: Phase | UnsetType = UNSET


class CallItem(ReplyObject, kw_only=True, tag_field="type", tag="function_call"):
    """A call of a function."""

    id: str = ""
    status: ItemStatus = "completed"
    call_id: str
    name: str
    arguments: str = ""


class CallOutputItem(ReplyObject, kw_only=True, tag_field="type", tag="function_call_output"):
    """The output of a call."""

    id: str = ""
    status: ItemStatus = "completed"
    call_id: str
    output: str | list[ItemContent]


class ThoughtItem(ReplyObject, kw_only=True, tag_field="type", tag="reasoning"):
    """The model's reasoning."""

    id: str = ""
    status: ItemStatus | UnsetType = UNSET
    summary: list[SummaryText] = field(default_factory=list)
    content: list[ReasoningText] = field(default_factory=list)
    encrypted_content: str | UnsetType = UNSET


Item: TypeAlias = MessageItem | CallItem | CallOutputItem | ThoughtItem
PREFIXES: Final[Mapping[type[Item], str]] = {
    MessageItem: "msg",
    CallItem: "fc",
    CallOutputItem: "fco",
    ThoughtItem: "rs",
}
"""Prefixes of item ids."""


class ResponseTextPart(MarkedObject, kw_only=True):
    """Text that was sent, or that the model generated."""

    type: Annotated[Literal["input_text", "output_text"], OFFERED]
    text: str
    annotations: Annotated[Any, IGNORED] = None
    logprobs: Annotated[Any, IGNORED] = None

    def part(self, role: str) -> ItemContent:
        part, point = text_part(role, self.text), self.mark
        if point is not None:
            part.prompt_cache_breakpoint = {"mode": point.mode} | ({} if point.ttl is None else {"ttl": point.ttl})
        return part


class ResponseRefusalPart(RequestObject):
    """A refusal of the model."""

    type: Annotated[Literal["refusal"], OFFERED]
    refusal: str

    def part(self, role: str) -> ItemContent:  # noqa: ARG002 - it is the assistant's
        return RefusalContent(refusal=self.refusal)


class LabelledItem(RequestObject):
    """The labels of an item."""

    id: ItemId | None = None
    status: ItemStatus | None = None

    def labels(self) -> dict[str, Any]:
        """The labels that were given."""
        return {name: value for name in ("id", "status") if (value := getattr(self, name)) is not None}


class InputMessage(LabelledItem, kw_only=True):
    """A message to the model."""

    role: Literal["user", "system", "developer"]
    content: str | Annotated[list[ResponseTextPart], Meta(min_length=1)]
    type: Annotated[Literal["message"], OFFERED] = "message"
    phase: Phase | None = None

    def item(self, where: str) -> Item:  # noqa: ARG002 - it has no errors of its own
        return _message(self)


class OutputMessage(LabelledItem, kw_only=True):
    """A message of the model."""

    role: Literal["assistant"]
    content: str | Annotated[list[ResponseTextPart | ResponseRefusalPart], Meta(min_length=1)]
    type: Annotated[Literal["message"], OFFERED] = "message"
    phase: Phase | None = None

    def item(self, where: str) -> Item:  # noqa: ARG002
        return _message(self)


class FunctionCallItem(LabelledItem, kw_only=True):
    """A call of a function."""

    type: Annotated[Literal["function_call"], OFFERED]
    call_id: NonEmptyText
    name: NonEmptyText
    arguments: str
    namespace: None = None
    caller: Direct = None
    is_async: Literal[False] = field(default=False, name="async")

    def item(self, where: str) -> Item:  # noqa: ARG002
        return CallItem(call_id=self.call_id, name=self.name, arguments=self.arguments, **self.labels())


class FunctionOutputItem(LabelledItem, kw_only=True):
    """The output of a call."""

    type: Annotated[Literal["function_call_output"], OFFERED]
    call_id: NonEmptyText
    output: str | Annotated[list[ResponseTextPart], Meta(min_length=1)]
    caller: Direct = None
    name: Annotated[str, IGNORED] | None = None
    created_by: Annotated[str, IGNORED] | None = None

    def item(self, where: str) -> Item:  # noqa: ARG002
        output = self.output if isinstance(self.output, str) else [part.part("user") for part in self.output]
        return CallOutputItem(call_id=self.call_id, output=output, **self.labels())


class ReasoningItem(LabelledItem, kw_only=True):
    """The model's reasoning. ``encrypted_content`` of a response counts if there is no content."""

    type: Annotated[Literal["reasoning"], OFFERED]
    summary: list[SummaryText] | None = None
    content: list[ReasoningText] | None = None
    encrypted_content: str | None = None

    def item(self, where: str) -> Item:
        content = self.content or []
        if not content and self.encrypted_content is not None:
            content = [ReasoningText("reasoning_text", _unsealed(self.encrypted_content, f"{where}.encrypted_content"))]
        return ThoughtItem(summary=self.summary or [], content=content, **self.labels())


class ItemReference(RequestObject):
    """An item of a response, by its id."""

    id: NonEmptyText
    type: Annotated[Literal["item_reference"], OFFERED] = "item_reference"

    def item(self, where: str) -> ItemReference:  # noqa: ARG002
        return self


ResponseItem: TypeAlias = (
    InputMessage | OutputMessage | FunctionCallItem | FunctionOutputItem | ReasoningItem | ItemReference
)


def input_items(given: str | Sequence[ResponseItem] | None, *, needed: bool) -> tuple[Item | ItemReference, ...]:
    """The items of ``input``; a text is a message of the user. Raises FieldError if ``needed`` ones are missing."""
    if needed and (given is None or given == []):
        raise missing((None, "input"))
    if isinstance(given, str):
        return (MessageItem(role="user", content=[text_part("user", given)]),)
    return tuple(item.item(f"input[{index}]") for index, item in enumerate(given or ()))


def named_items(items: Iterable[Item], response: str) -> list[Item]:
    """The items with an id each. Items without one get an id made from that of the response they were sent for."""
    return [
        item if item.id else structs.replace(item, id=f"{PREFIXES[type(item)]}_{response}_i{index}")
        for index, item in enumerate(items)
    ]


def output_id(kind: type[Item], response: str, index: int) -> str:
    """The id of the ``index``-th output item of a response."""
    return f"{PREFIXES[kind]}_{response}_{index}"


def owner_of(item_id: str) -> str | None:
    """The id of the response that has this item; None for an id of another server."""
    prefix, _, rest = item_id.partition("_")
    response, _, place = rest.rpartition("_")
    known = prefix in PREFIXES.values() and response and place.removeprefix("i").isdigit()
    return f"resp_{response}" if known else None


def sealed(item: ThoughtItem) -> ThoughtItem:
    """A reasoning item with its text in ``encrypted_content`` too, for clients that send back nothing else."""
    text = "".join(part.text for part in item.content)
    return structs.replace(item, encrypted_content=SEALED + b64encode(text.encode()).decode())


def text_part(role: str, text: str) -> InputTextContent | OutputTextContent:
    """A text of the role, as replies have it."""
    return OutputTextContent(text=text) if role == "assistant" else InputTextContent(text=text)


def _message(given: InputMessage | OutputMessage) -> MessageItem:
    role, content = given.role, given.content
    parts: list[ItemContent] = []
    if isinstance(content, str):
        parts.append(text_part(role, content))
    else:
        parts += [part.part(role) for part in content]
    return MessageItem(role=role, content=parts, phase=given.phase or UNSET, **given.labels())


def _unsealed(hidden: str, name: str) -> str:
    """The text of ``sealed`` reasoning. Raises FieldError for other text."""
    try:
        if hidden.startswith(SEALED):
            return b64decode(hidden.removeprefix(SEALED), validate=True).decode()
    except ValueError:  # not base64, or not UTF-8
        pass
    raise FieldError(f"{name} is not from this server.", param=name, hint="Send the item's content, or remove it.")
