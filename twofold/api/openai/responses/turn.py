"""What a request of the Responses API shows to the model: the history, the new items, instructions and tools."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self, TypeGuard

from twofold.api.base import Job, ModelFacts
from twofold.api.cache_points import CachePoint
from twofold.api.conversation import Conversation
from twofold.api.fields import Fields
from twofold.api.openai.responses.items import Item, optional_choice, read_input, references, resolved
from twofold.api.openai.responses.messages import chat_messages
from twofold.api.openai.responses.settings import CacheOptions, ReasoningSettings
from twofold.api.openai.responses.tools import Tools
from twofold.core.errors import ContextLengthError
from twofold.core.params import SamplingParams
from twofold.core.request import MAX_PINS, RequestOptions

MAX_ID_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class ResponseTurn:
    """One turn of a conversation.

    items      what is new
    history    what came before it, from ``previous`` and the responses before that one
    truncate   whether the oldest items may be left away where all of them do not fit into the context
    """

    items: tuple[Item, ...]
    instructions: str | None
    previous: str | None
    tools: Tools
    parallel: bool
    reasoning: ReasoningSettings
    cache: CacheOptions
    truncate: bool
    history: tuple[Item, ...] = ()

    @classmethod
    def read(cls, fields: Fields) -> Self:
        previous = fields.text("previous_response_id")
        fields.only("conversation")
        return cls(
            items=read_input(fields, needed=previous is None),
            instructions=fields.text("instructions"),
            previous=previous,
            tools=Tools.read(fields),
            parallel=fields.flag("parallel_tool_calls", True),
            reasoning=ReasoningSettings.read(fields),
            cache=CacheOptions.read(fields),
            truncate=optional_choice(fields, "truncation", ("auto", "disabled")) == "auto",
        )

    @property
    def references(self) -> Sequence[str]:
        """Ids of items that are still to be found."""
        return references(self.items)

    def known(self, history: Sequence[Item], found: Mapping[str, Item]) -> Self:
        """With what came before, and with the items that references stand for."""
        return replace(self, history=tuple(history), items=resolved(self.items, found))

    def conversation(self, items: Sequence[Item] | None = None) -> Conversation:
        """The chat that these items are; all of them, if none are given."""
        shown = (*self.history, *self.items) if items is None else items
        messages, points = chat_messages(self.instructions, shown, self.cache.ttl)
        if self.cache.whole:
            points = (*points, CachePoint(self.cache.ttl))
        return Conversation(
            messages=messages,
            tools=self.tools.shown,
            choice=self.tools.choice,
            parallel=self.parallel,
            thinking=self.reasoning.thinking,
            cache_points=points[-MAX_PINS:],
        )

    def prepare(self, model: ModelFacts, params: SamplingParams, options: RequestOptions) -> Job:
        """The prompt to run. With ``truncate`` as much of the end of the conversation as leaves room for an answer.

        Raises TemplateError, ContextLengthError, and ParameterError for what the model cannot do.
        """
        if not self.truncate:
            return self.conversation().prepare(model, params, options)

        def attempt(items: Sequence[Item] | None = None) -> Job | ContextLengthError:
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


def _fits(job: Job | ContextLengthError, model: ModelFacts) -> TypeGuard[Job]:
    """Whether the answer has the room that it may take, or half of the context."""
    if isinstance(job, ContextLengthError):
        return False
    assert isinstance(job.params, SamplingParams)
    room = min(job.params.max_tokens or 1, model.context // 2)
    return len(job.token_ids) + room <= model.context
