"""What a request of the Responses API shows to the model: the history, the new items, instructions and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Any, Literal, Self, TypeGuard

from msgspec import Meta

from twofold.api.base import ModelFacts
from twofold.api.body import OMITTING, ModelName, RequestObject
from twofold.api.cache_points import CachePoint
from twofold.api.conversation import AS_BEFORE, Conversation, Thinking
from twofold.api.openai.chat import DEFAULT_TTL, MAX_TOOLS
from twofold.api.openai.responses.items import MAX_ITEMS, Item, ResponseItem, input_items, references, resolved
from twofold.api.openai.responses.messages import chat_messages
from twofold.api.openai.responses.settings import ReasoningSettings, ResponseCacheOptions, TextSettings
from twofold.api.openai.responses.tools import ResponseTool, ResponseToolChoice, Tools
from twofold.core.errors import ContextLengthError
from twofold.core.params import SamplingParams
from twofold.core.request import MAX_PINS, EngineRequest, RequestOptions, TimeToLive


class TurnRequest(RequestObject, dict=True):
    """A request whose turn may go on from a kept response."""

    model: ModelName | None = None
    input: str | Annotated[list[ResponseItem], Meta(max_length=MAX_ITEMS)] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: None = None
    tools: Annotated[list[ResponseTool], Meta(max_length=MAX_TOOLS), OMITTING] | None = None
    tool_choice: ResponseToolChoice = "auto"
    parallel_tool_calls: bool = True
    reasoning: ReasoningSettings | None = None
    text: TextSettings | None = None
    truncation: Literal["auto", "disabled"] = "disabled"
    prompt_cache_retention: Literal["in_memory"] | None = None
    prompt_cache_options: ResponseCacheOptions | None = None

    def __post_init__(self) -> None:
        assert self.turn, "it raises for what is impossible"

    @property
    def previous(self) -> str | None:
        """The id of the response that it goes on from."""
        return self.previous_response_id

    @property
    def references(self) -> Sequence[str]:
        """Ids of items that are still to be found."""
        return references(self.turn.items)

    @cached_property
    def turn(self) -> ResponseTurn:
        cache = self.prompt_cache_options
        return ResponseTurn(
            items=input_items(self.input, needed=self.previous_response_id is None),
            instructions=self.instructions,
            tools=Tools.of(self.tools or (), self.tool_choice),
            parallel=self.parallel_tool_calls,
            thinking=AS_BEFORE if self.reasoning is None else self.reasoning.thinking,
            ttl=DEFAULT_TTL if cache is None else cache.ttl,
            whole=cache is not None and cache.mode != "explicit",
            truncate=self.truncation == "auto",
        )

    def known(self, history: Sequence[Item], found: Mapping[str, Item]) -> Self:
        """With the items of the conversation so far, and with those that references stand for."""
        known = copy(self)
        known.__dict__["turn"] = self.turn.known(history, found)
        return known


@dataclass(frozen=True, slots=True)
class ResponseTurn:
    """One turn of a conversation.

    items      what is new
    history    what came before it, from the response that it goes on from and those before
    ttl        how long the prefixes that ``prompt_cache_breakpoint`` marks stay cached; ``whole``: the whole prompt too
    truncate   whether the oldest items may be left away where all of them do not fit into the context
    """

    items: tuple[Item, ...]
    instructions: str | None
    tools: Tools
    parallel: bool
    thinking: Thinking
    ttl: TimeToLive
    whole: bool
    truncate: bool
    history: tuple[Item, ...] = ()

    def known(self, history: Sequence[Item], found: Mapping[str, Item]) -> Self:
        """With what came before, and with the items that references stand for."""
        return replace(self, history=tuple(history), items=resolved(self.items, found))

    def conversation(self, items: Sequence[Item] | None = None) -> Conversation:
        """The chat that these items are; all of them, if none are given."""
        shown = (*self.history, *self.items) if items is None else items
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
        """The prompt to run. With ``truncate`` as much of the end of the conversation as leaves room for an answer.

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
        items = (*self.history, *self.items)
        system = [item for item in items if _said_by(item, "system", "developer")]
        rest = [item for item in items if not _said_by(item, "system", "developer")]
        cuts = [index for index, item in enumerate(rest) if index and _said_by(item, "user")]
        low, high = 0, len(cuts) - 1
        while low <= high:  # the first cut behind which all fits: the texts get shorter from cut to cut
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


def _said_by(item: Mapping[str, Any], *roles: str) -> bool:
    return item["type"] == "message" and item["role"] in roles


def _fits(job: EngineRequest | ContextLengthError, model: ModelFacts) -> TypeGuard[EngineRequest]:
    """Whether the answer has the room that it may take, or half of the context."""
    if isinstance(job, ContextLengthError):
        return False
    assert isinstance(job.params, SamplingParams)
    room = min(job.params.max_tokens or 1, model.context // 2)
    return len(job.token_ids) + room <= model.context
