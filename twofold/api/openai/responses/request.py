"""/v1/responses: bodies read, replies told.

A response may go on from a stored one. Where it stands is not known here: ``ResponsesRequest.known`` takes what came
before, and the items that references stand for, from whoever keeps them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from twofold.api.base import AskedTier, Job, ModelFacts, ReplyHead
from twofold.api.extras import read_explain
from twofold.api.fields import Fields, impossible
from twofold.api.openai.bodies import Limits, read_model, read_options, read_tier
from twofold.api.openai.responses.items import Item, named_items
from twofold.api.openai.responses.logprobs import drawn_logprobs, token_by_token
from twofold.api.openai.responses.output import OutputItems
from twofold.api.openai.responses.reply import begun, ended, item_status
from twofold.api.openai.responses.settings import (
    SEALED_REASONING,
    TextForm,
    read_include,
    read_logprobs,
    read_metadata,
)
from twofold.api.openai.responses.stream import ResponsesStreamer
from twofold.api.openai.responses.turn import ResponseTurn
from twofold.core.params import MAX_TOKEN_ID, SamplingParams
from twofold.core.request import RequestOptions
from twofold.core.sampling_defaults import NAMES
from twofold.engine.outputs import RequestOutput
from twofold.text.parsers.base import SectionParser

LIMITS: Final[Limits] = {
    "access_programs": (),
    "background": (False,),
    "background_options": (),
    "context_management": ([],),
    "image": (),
    "moderation": (),
    "prompt": (),
}
LABELS: Final = ("user", "safety_identifier", "prompt_cache_key")
"""Texts by which OpenAI's customers sort their requests; they are told again."""
MAX_LABEL_CHARS: Final = 512
DRAWN: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields that ``SamplingParams`` knows by the same name and checks itself; OpenAI has the first two."""


class HasTurn:
    """A request whose ``turn`` may go on from a kept response. Its classes are frozen dataclasses."""

    __slots__ = ()
    turn: ResponseTurn

    @property
    def previous(self) -> str | None:
        """The id of the response that it goes on from."""
        return self.turn.previous

    @property
    def references(self) -> Sequence[str]:
        """Ids of items that are still to be found."""
        return self.turn.references

    def known(self, history: Sequence[Item], found: Mapping[str, Item]) -> Self:
        """With the items of the conversation so far, and with those that references stand for."""
        return replace(self, turn=self.turn.known(history, found))  # type: ignore[type-var]  # as its docstring says


@dataclass(frozen=True, slots=True)
class ResponsesRequest(HasTurn):
    """A turn of a conversation, and how it is answered.

    store   whether the response shall be kept, so that others can go on from it
    asked   the fields of the reply that say again what was asked for
    sampling  sampling parameters that the body gave itself
    seal    whether reasoning is told in ``encrypted_content`` too
    """

    model: str | None
    stream: bool
    tier: AskedTier
    explain: bool
    store: bool
    turn: ResponseTurn
    asked: Mapping[str, Any]
    seal: bool
    params: SamplingParams
    options: RequestOptions
    sampling: frozenset[str] = frozenset()

    @classmethod
    def read(cls, body: object) -> Self:
        """Reads a body. Raises ParameterError for an impossible, unknown or unsupported field."""
        fields = Fields(body)
        for name, possible in LIMITS.items():
            fields.only(name, *possible)
        turn, form, include = ResponseTurn.read(fields), TextForm.read(fields), read_include(fields)
        params = SamplingParams(
            **{name: value for name in DRAWN if (value := fields.take(name)) is not None},
            max_tokens=fields.whole("max_output_tokens", 1, MAX_TOKEN_ID),
            logprobs=read_logprobs(fields, include),
            structured_outputs=form.form,
        )
        store = fields.flag("store", True)
        request = cls(
            model=read_model(fields),
            stream=_stream(fields),
            tier=read_tier(fields),
            explain=read_explain(fields),
            store=store,
            turn=turn,
            asked=_labels(fields) | _asked(turn, form, params) | {"store": store},
            seal=SEALED_REASONING in include,
            params=params,
            options=read_options(fields),
            sampling=fields.given(NAMES),
        )
        fields.close()
        return request

    def new_items(self, head: ReplyHead) -> list[Item]:
        """The items that this request brought, with an id each, as they are kept and listed."""
        return named_items(self.turn.items, head.id)

    def prepare(self, model: ModelFacts) -> Sequence[Job]:
        return [self.turn.prepare(model, model.sampling.fill(self.params, self.sampling), self.options)]

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
        params = model.sampling.fill(self.params, self.sampling)
        return {**self.asked, "temperature": params.temperature, "top_p": params.top_p}

    def _parser(self, model: ModelFacts) -> SectionParser:
        return self.turn.conversation(()).parser(model)


@dataclass(frozen=True, slots=True)
class InputTokensRequest(HasTurn):
    """The body of /v1/responses/input_tokens: a turn whose prompt is only counted."""

    model: str | None
    turn: ResponseTurn

    @classmethod
    def read(cls, body: object) -> Self:
        """Reads a body. Raises ParameterError for an impossible, unknown or unsupported field."""
        fields = Fields(body)
        fields.only("personality")
        turn = ResponseTurn.read(fields)
        TextForm.read(fields)  # a form changes no prompt, but it must be possible
        request = cls(read_model(fields), turn)
        fields.close()
        return request

    def count(self, model: ModelFacts) -> dict[str, Any]:
        """The reply. It may take a while: the chat template is rendered and the text tokenised.

        Raises TemplateError where the chat template refuses the messages.
        """
        job = self.turn.prepare(
            model if self.turn.truncate else model.unbounded(), SamplingParams(max_tokens=1), RequestOptions()
        )
        return {"object": "response.input_tokens", "input_tokens": len(job.token_ids)}


def _stream(fields: Fields) -> bool:
    options = fields.inner("stream_options")
    if options is not None:
        options.only("include_obfuscation", False)
        options.close()
    return fields.flag("stream")


def _labels(fields: Fields) -> dict[str, Any]:
    """What only sorts requests, or limits what cannot happen: max_tool_calls counts calls of built-in tools alone.
    ``client_metadata`` is Codex's, and not told again."""
    labels: dict[str, Any] = {name: fields.text(name) for name in LABELS}
    for name, value in labels.items():
        if value is not None and len(value) > MAX_LABEL_CHARS:
            raise impossible(name, value, f"text of at most {MAX_LABEL_CHARS} characters")
    client = fields.take("client_metadata")
    if client is not None and not isinstance(client, dict):
        raise impossible("client_metadata", client, "an object")
    return labels | {
        "max_tool_calls": fields.whole("max_tool_calls", 1, MAX_TOKEN_ID),
        "metadata": read_metadata(fields) or {},
    }


def _asked(turn: ResponseTurn, form: TextForm, params: SamplingParams) -> dict[str, Any]:
    return {
        "instructions": turn.instructions,
        "max_output_tokens": params.max_tokens,
        "parallel_tool_calls": turn.parallel,
        "previous_response_id": turn.previous,
        "reasoning": {"effort": turn.reasoning.effort, "summary": None},
        "temperature": params.temperature,
        "text": {"format": form.told, "verbosity": "medium"},
        "tool_choice": turn.tools.told_choice,
        "tools": list(turn.tools.told),
        "top_logprobs": params.logprobs or 0,
        "top_p": params.top_p,
        "truncation": "auto" if turn.truncate else "disabled",
    }
