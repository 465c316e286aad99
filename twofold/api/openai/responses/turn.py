"""The prompt of a turn: the history, the new items, instructions and tools, as messages that chat templates read.

Several items of a model's turn (reasoning, a message, calls) become one message of the assistant, as templates expect
it. System messages at the start become one, because many templates accept no second.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeGuard, cast

from msgspec import UNSET

from twofold.api.base import ModelFacts
from twofold.api.cache_points import CachePoint
from twofold.api.conversation import Conversation, Thinking
from twofold.api.fields import FieldError
from twofold.api.openai.responses.items import (
    CallItem,
    CallOutputItem,
    InputTextContent,
    Item,
    ItemContent,
    ItemReference,
    MessageItem,
    RefusalContent,
    ThoughtItem,
)
from twofold.api.openai.responses.settings import Tools
from twofold.core.errors import ContextLengthError, quoted
from twofold.core.params import SamplingParams
from twofold.core.request import MAX_PINS, EngineRequest, RequestOptions, TimeToLive
from twofold.engine.prompts import Message


@dataclass(frozen=True, slots=True)
class ResponseTurn:
    """One turn of a conversation.

    items      the new ones
    history    those of the response that it continues, and of earlier ones
    ttl        how long the prefixes that ``prompt_cache_breakpoint`` marks stay cached; ``whole``: the whole prompt too
    truncate   whether the oldest items may be dropped where all of them do not fit into the context
    """

    items: tuple[Item | ItemReference, ...]
    instructions: str | None
    tools: Tools
    parallel: bool
    thinking: Thinking
    ttl: TimeToLive
    whole: bool
    truncate: bool
    history: tuple[Item, ...] = ()

    def known(self, history: Sequence[Item], found: Mapping[str, Item]) -> Self:
        """With earlier items, and with the items that references stand for."""
        items = tuple(found.get(item.id, item) if isinstance(item, ItemReference) else item for item in self.items)
        return replace(self, history=tuple(history), items=items)

    @property
    def resolved(self) -> tuple[Item, ...]:
        """The new items, once references are resolved."""
        return tuple(item for item in self.items if not isinstance(item, ItemReference))

    def conversation(self, items: Sequence[Item] | None = None) -> Conversation:
        """These items as a chat; by default all of them."""
        shown = (*self.history, *self.resolved) if items is None else items
        messages, points = chat_messages(self.instructions, shown, self.ttl)
        if self.whole:
            points = (*points, CachePoint(self.ttl))
        return Conversation(
            messages=messages,
            tools=self.tools.shown,
            choice=self.tools.choice,
            parallel=self.parallel,
            thinking=self.thinking,
            cache_points=points[-MAX_PINS:],
        )

    def prepare(self, model: ModelFacts, params: SamplingParams, options: RequestOptions) -> EngineRequest:
        """The prompt to run. With ``truncate`` as much of the end of the conversation as leaves room for a completion.

        Raises TemplateError, ContextLengthError, and ParameterError for what the model cannot do.
        """
        if not self.truncate:
            return self.conversation().prepare(model, params, options)

        def attempt(items: Sequence[Item] | None = None) -> EngineRequest | ContextLengthError:
            try:
                return self.conversation(items).prepare(model, params, options)
            except ContextLengthError as error:
                return error

        best = whole = attempt()
        if _fits(whole, model):
            return whole
        items = (*self.history, *self.resolved)
        system = [item for item in items if _is_message(item, "system", "developer")]
        rest = [item for item in items if not _is_message(item, "system", "developer")]
        cuts = [index for index, item in enumerate(rest) if index and _is_message(item, "user")]
        low, high = 0, len(cuts) - 1
        while low <= high:  # the first cut after which all fits: the texts get shorter from cut to cut
            middle = (low + high) // 2
            job = attempt([*system, *rest[cuts[middle] :]])
            if fits := _fits(job, model):
                high = middle - 1
            else:
                low = middle + 1
            if fits or best is whole or isinstance(best, ContextLengthError):
                best = job
        if isinstance(best, ContextLengthError):
            raise best
        return best


def _is_message(item: Item, *roles: str) -> bool:
    return isinstance(item, MessageItem) and item.role in roles


def _fits(job: EngineRequest | ContextLengthError, model: ModelFacts) -> TypeGuard[EngineRequest]:
    """Whether there is room for all output tokens, or for half of the context."""
    if isinstance(job, ContextLengthError):
        return False
    assert isinstance(job.params, SamplingParams)
    room = min(job.params.max_tokens or 1, model.context // 2)
    return len(job.token_ids) + room <= model.context


@dataclass(slots=True)
class _Draft:
    """A message under construction; ``points`` are the parts up to which the prompt shall stay cached."""

    role: str
    parts: list[str] = field(default_factory=list)
    points: list[tuple[int, TimeToLive | None]] = field(default_factory=list)
    reasoning: str = ""
    calls: list[Message] = field(default_factory=list)
    call_id: str | None = None

    def add(self, content: str | Sequence[ItemContent]) -> None:
        parts = [InputTextContent(text=content)] if isinstance(content, str) else content
        for part in parts:
            if isinstance(part, RefusalContent):
                self.parts.append(part.refusal)
                continue
            self.parts.append(part.text)
            if part.prompt_cache_breakpoint is not UNSET:
                ttl = cast("TimeToLive | None", part.prompt_cache_breakpoint.get("ttl"))
                self.points.append((len(self.parts) - 1, ttl))

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
    """The messages, and the points up to which the prompt shall stay cached; by default for ``ttl``.

    Raises FieldError for the output of a call that is not among the items.
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
        match item:
            case MessageItem():
                self._message(item)
            case ThoughtItem():
                self._turn(new=True).reasoning += "".join(part.text for part in item.content or item.summary)
            case CallItem():
                self._called.add(item.call_id)
                function = {"name": item.name, "arguments": item.arguments}
                self._turn(new=False).calls.append({"id": item.call_id, "type": "function", "function": function})
            case CallOutputItem():
                self._output(item)

    def _message(self, item: MessageItem) -> None:
        role = "system" if item.role == "developer" else item.role
        if role == "assistant":
            draft = self._turn(new=True)
        elif role == "system" and len(self.made) == 1 and self.made[0].role == "system":
            draft = self.made[0]
        else:
            draft = self._begin(_Draft(role))
        draft.add(item.content)

    def _output(self, item: CallOutputItem) -> None:
        if item.call_id not in self._called:
            raise FieldError(
                f"There is no call for the function call output with call_id {quoted(item.call_id)}.",
                param="input",
                hint="Send the function_call item before it, or previous_response_id.",
            )
        self._begin(_Draft("tool", call_id=item.call_id)).add(item.output)

    def _turn(self, *, new: bool) -> _Draft:
        """The assistant's message that continues; a ``new`` one if it already has text or calls."""
        last = self.made[-1] if self.made else None
        if last is not None and last.role == "assistant" and not (new and (last.parts or last.calls)):
            return last
        return self._begin(_Draft("assistant"))

    def _begin(self, draft: _Draft) -> _Draft:
        self.made.append(draft)
        return draft
