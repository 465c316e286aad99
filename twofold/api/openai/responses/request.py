"""/v1/responses: bodies read, replies told.

A response may go on from a stored one. Where it stands is not known here: ``ResponsesRequest.known`` takes what came
before, and the items that references stand for, from whoever keeps them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import OwnFields, RequestObject, only
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import (
    CacheSalt,
    Count,
    HandlingFields,
    MinP,
    Priority,
    Repetition,
    Temperature,
    Tier,
    TopK,
    TopLogprobs,
    TopP,
)
from twofold.api.openai.responses.items import Item, named_items
from twofold.api.openai.responses.logprobs import drawn_logprobs, token_by_token
from twofold.api.openai.responses.output import OutputItems
from twofold.api.openai.responses.reply import begun, ended, item_status
from twofold.api.openai.responses.settings import LOGPROBS, SEALED_REASONING, Includable, Metadata, TextSettings
from twofold.api.openai.responses.stream import ResponsesStreamer
from twofold.api.openai.responses.turn import TurnRequest
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.outputs import RequestOutput
from twofold.text.parsers.base import SectionParser

SAMPLED: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields that ``SamplingParams`` knows by the same name; OpenAI has the first two."""
TOLD: Final = (
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "parallel_tool_calls",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "store",
    "truncation",
    "user",
)
"""Fields that the reply has as they were given."""

ResponseLabel: TypeAlias = Annotated[str, Meta(max_length=512, description="Sorts requests; it changes no answer.")]


class ResponseStreamOptions(RequestObject):
    """What a stream holds beside the answer."""

    include_obfuscation: Literal[False] = False


class ResponsesRequest(TurnRequest, HandlingFields):
    """A turn of a conversation, and how it is answered. ``max_tool_calls`` counts calls of built-in tools alone, and
    ``client_metadata`` is Codex's: both have no effect."""

    service_tier: Tier = "auto"
    priority: Priority = 0
    cache_salt: CacheSalt = ""
    twofold: OwnFields | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: Repetition | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    top_logprobs: TopLogprobs | None = None
    include: list[Includable] | None = None
    store: bool = True
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    metadata: Metadata | None = None
    client_metadata: dict[str, Any] | None = None
    user: ResponseLabel | None = None
    safety_identifier: ResponseLabel | None = None
    prompt_cache_key: ResponseLabel | None = None
    access_programs: None = None
    background: Literal[False] = False
    background_options: None = None
    context_management: Annotated[Any, only([])] = None
    image: None = None
    moderation: None = None
    prompt: None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.params, "it raises for what is impossible"

    @property
    def seal(self) -> bool:
        """Whether reasoning is told in ``encrypted_content`` too."""
        return SEALED_REASONING in (self.include or ())

    @cached_property
    def params(self) -> SamplingParams:
        wanted = LOGPROBS in (self.include or ())
        if self.top_logprobs and not wanted:
            hint = f'Set "include": ["{LOGPROBS}"].'
            raise FieldError("top_logprobs needs log-probabilities.", param="top_logprobs", hint=hint)
        return SamplingParams(
            **self._sampling(),
            max_tokens=self.max_output_tokens,
            logprobs=(self.top_logprobs or 0) if wanted else None,
            structured_outputs=(self.text or TextSettings()).form,
        )

    def _sampling(self) -> dict[str, Any]:
        """Sampling parameters that the body gave itself."""
        return {name: value for name in SAMPLED if (value := getattr(self, name)) is not None}

    def new_items(self, head: ReplyHead) -> list[Item]:
        """The items that this request brought, with an id each, as they are kept and listed."""
        return named_items(self.turn.items, head.id)

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        return [self.turn.prepare(model, self._filled(model), self.request_options)]

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> dict[str, Any]:
        (output,) = outputs
        (answer,) = output.outputs
        entries = () if self.params.logprobs is None else drawn_logprobs(answer, model.tokenizer, self.params.logprobs)
        made = OutputItems(head.id, self._parser(model), seal=self.seal)
        for text, logprobs in token_by_token(answer.text, entries):
            deque(made.take(text, logprobs), maxlen=0)  # nobody hears the events
        deque(made.close(item_status(answer.finish_reason)), maxlen=0)
        return ended(begun(head, self._told(model)), made.items, output, model)

    def streamer(self, head: ReplyHead, model: ModelFacts) -> ResponsesStreamer:
        top, parser = self.params.logprobs, self._parser(model)
        return ResponsesStreamer(head, model, parser, self._told(model), top_logprobs=top, seal=self.seal)

    def _told(self, model: ModelFacts) -> Mapping[str, Any]:
        """What was asked for, with the sampling parameters that the answer is drawn with."""
        params, turn = self._filled(model), self.turn
        return {
            **{name: getattr(self, name) for name in TOLD},
            "metadata": self.metadata or {},
            "reasoning": {"effort": None if self.reasoning is None else self.reasoning.effort, "summary": None},
            "temperature": params.temperature,
            "text": {"format": (self.text or TextSettings()).told, "verbosity": "medium"},
            "tool_choice": turn.tools.told_choice,
            "tools": list(turn.tools.told),
            "top_logprobs": params.logprobs or 0,
            "top_p": params.top_p,
        }

    def _filled(self, model: ModelFacts) -> SamplingParams:
        """The parameters, with the server's defaults where the request says nothing."""
        return model.sampling.fill(self.params, self._sampling())

    def _parser(self, model: ModelFacts) -> SectionParser:
        return self.turn.conversation(()).parser(model)


class InputTokensRequest(TurnRequest):
    """The body of /v1/responses/input_tokens: a turn whose prompt is only counted."""

    personality: None = None

    def count(self, model: ModelFacts) -> dict[str, Any]:
        """The reply. It may take a while: the chat template is rendered and the text tokenised.

        Raises TemplateError where the chat template refuses the messages.
        """
        job = self.turn.prepare(
            model if self.turn.truncate else model.unbounded(), SamplingParams(max_tokens=1), RequestOptions()
        )
        return {"object": "response.input_tokens", "input_tokens": len(job.token_ids)}
