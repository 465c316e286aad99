"""The body of Anthropic's /v1/messages, and of /v1/messages/count_tokens.

Names and limits are Anthropic's. What cannot be honoured is refused by name; only labels, which concern no answer, are
taken and dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

from twofold.api.anthropic.blocks import BlockCutter, whole_blocks
from twofold.api.anthropic.caching import CacheControls
from twofold.api.anthropic.replies import message, stop_of, usage
from twofold.api.anthropic.settings import MessageSettings, read_settings
from twofold.api.anthropic.stream import MessageStreamer
from twofold.api.anthropic.tools import ToolReader, read_choice
from twofold.api.anthropic.turns import TurnReader
from twofold.api.base import AskedTier, Job, ModelFacts, ReplyHead
from twofold.api.cache_points import CachePoint
from twofold.api.conversation import Conversation
from twofold.api.extras import read_explain
from twofold.api.fields import FieldError, Fields, impossible
from twofold.core.params import MAX_STOP_CHARS, MAX_STOPS, MAX_TOKEN_ID, SamplingParams
from twofold.core.request import RequestOptions
from twofold.core.sampling_defaults import NAMES
from twofold.engine.outputs import RequestOutput


@dataclass(frozen=True, slots=True)
class MessagesRequest:
    """The body of /v1/messages.

    most            max_tokens; with 0 the prompt is read into the cache and no answer told: the one token that is
                    drawn nevertheless is dropped
    omits_thinking  the reply tells that the model thought, but not what
    diagnosed       the reply shall say why the cache missed, which is not known here
    """

    model: str
    stream: bool
    tier: AskedTier
    explain: bool
    conversation: Conversation
    params: SamplingParams
    most: int
    omits_thinking: bool
    diagnosed: bool
    asked: frozenset[str] = frozenset()

    @classmethod
    def read(cls, body: object) -> Self:
        """Raises FieldError for a field that is missing, impossible, unknown or unsupported."""
        fields = Fields(body)
        settings = read_settings(fields)
        fields.require("max_tokens")
        most = fields.whole("max_tokens", 0, MAX_TOKEN_ID) or 0
        request = cls(
            model=_model(fields),
            stream=fields.flag("stream"),
            tier=_tier(fields),
            explain=read_explain(fields),
            conversation=_conversation(fields, settings),
            params=_params(fields, settings, most),
            most=most,
            omits_thinking=settings.omits_thinking,
            diagnosed=_diagnosed(fields),
            asked=fields.given(NAMES),
        )
        fields.close()
        return request

    def prepare(self, model: ModelFacts) -> Sequence[Job]:
        params = model.sampling.fill(self.params, self.asked)
        return [self.conversation.prepare(model, params, RequestOptions())]

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> dict[str, Any]:
        (output,) = outputs
        parser = self.conversation.parser(model)
        text = output.outputs[0].text if self.most else ""
        pieces = [*parser.push(text), *parser.flush()]
        cutter = BlockCutter(head.id, self.omits_thinking)
        content = whole_blocks([*cutter.take(pieces), *cutter.finish()])
        called = any(block["type"] == "tool_use" for block in content)
        reason, sequence = stop_of(output, model, most=self.most, called=called)
        spent = usage(head, output, model, answered=self.most > 0)
        whole = message(head, content, spent, stop_reason=reason, stop_sequence=sequence)
        return whole | self._diagnostics()

    def streamer(self, head: ReplyHead, model: ModelFacts) -> MessageStreamer:
        return MessageStreamer(
            head,
            model,
            self.conversation.parser(model),
            most=self.most,
            omits_thinking=self.omits_thinking,
            extra=self._diagnostics(),
        )

    def _diagnostics(self) -> dict[str, Any]:
        return {"diagnostics": {"cache_miss_reason": {"type": "unavailable"}}} if self.diagnosed else {}


@dataclass(frozen=True, slots=True)
class CountTokensRequest:
    """The body of /v1/messages/count_tokens: what /v1/messages takes, without what concerns the answer alone."""

    model: str
    conversation: Conversation
    managed: bool

    @classmethod
    def read(cls, body: object) -> Self:
        """Raises FieldError for a field that is missing, impossible, unknown or unsupported."""
        fields = Fields(body)
        settings = read_settings(fields)
        request = cls(
            model=_model(fields),
            conversation=_conversation(fields, settings),
            managed=fields.take("context_management") is not None,
        )
        fields.close()
        return request

    def count(self, model: ModelFacts) -> int:
        """Tokens of the prompt, cached ones included. It takes as long as preparing it; raises what that raises."""
        conversation = replace(self.conversation, cache_points=())
        job = conversation.prepare(model.unbounded(), SamplingParams(max_tokens=1), RequestOptions())
        return len(job.token_ids)

    def reply(self, tokens: int) -> dict[str, Any]:
        """The body of the response."""
        managed = {"context_management": {"original_input_tokens": tokens}} if self.managed else {}
        return {"input_tokens": tokens, **managed}


def _model(fields: Fields) -> str:
    model = fields.require("model")
    if not isinstance(model, str) or not model:
        raise impossible("model", model, "the name of a model")
    return model


def _conversation(fields: Fields, settings: MessageSettings) -> Conversation:
    """Controls of the cache count in this order: tools, system, messages, and then the body's own."""
    controls = CacheControls()
    tools = ToolReader(controls)
    tools.read(fields.take("tools"))
    choice, parallel = read_choice(fields)
    turns = TurnReader(controls)
    turns.system(fields.take("system"))
    turns.messages(fields.require("messages"))
    if turns.continues and settings.thinking.mode == "on":
        raise FieldError(
            "The last message is the assistant's; a prefill cannot be combined with thinking.",
            param="messages",
            hint="End with a user message, or disable thinking.",
        )
    points = [point for index, turn in enumerate(turns.turns) for point in turn.points(index)]
    if (ttl := controls.take(fields)) is not None:
        points.append(CachePoint(ttl=ttl, message=len(turns.turns) - 1))
    return Conversation(
        messages=tuple(turn.message() for turn in turns.turns),
        tools=tuple(tools.tools),
        choice=choice,
        parallel=parallel,
        thinking=settings.thinking,
        continues=turns.continues,
        cache_points=(*tools.points, *points),
    )


def _params(fields: Fields, settings: MessageSettings, most: int) -> SamplingParams:
    top_p = fields.take("top_p")
    return SamplingParams(
        temperature=_temperature(fields),
        top_p=1.0 if top_p is None else top_p,
        top_k=fields.whole("top_k", 0, MAX_TOKEN_ID) or 0,
        max_tokens=most or 1,
        stop=_stops(fields),
        structured_outputs=settings.form,
    )


def _temperature(fields: Fields) -> float:
    """Anthropic's goes to 1 only."""
    value = fields.take("temperature")
    if value is None:
        return 1.0
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1:
        raise impossible("temperature", value, "a number from 0 to 1")
    return float(value)


def _stops(fields: Fields) -> list[str]:
    stops = fields.take("stop_sequences")
    if stops is None:
        return []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(map(_is_stop, stops)):
        raise impossible(
            "stop_sequences", stops, f"a list of at most {MAX_STOPS} texts of 1 to {MAX_STOP_CHARS} characters"
        )
    return stops


def _is_stop(value: object) -> bool:
    return isinstance(value, str) and 0 < len(value) <= MAX_STOP_CHARS


def _tier(fields: Fields) -> AskedTier:
    if fields.take("service_tier") is None:
        return "auto"
    return "auto" if fields.choice("service_tier", ("auto", "standard_only")) == "auto" else "default"


def _diagnosed(fields: Fields) -> bool:
    asked = fields.inner("diagnostics")
    if asked is None:
        return False
    previous = asked.text("previous_message_id")
    asked.close()
    return previous is not None
