"""The ``response`` object, its output items, and the events of its stream.

A whole reply and a streamed one have the same items. An item is announced, grows by deltas, and ends whole; only the
last one is ever open. White space alone starts no message: models write it between their calls.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType, structs

from twofold.api.base import ModelFacts, ReplyHead, TierName
from twofold.api.body import Explanation, NonNegativeInt, ReplyObject, encode
from twofold.api.completion import NO_ARGUMENTS, CacheUsage, reasoning_tokens
from twofold.api.openai.bodies import Metadata, Penalty, PlainFormat
from twofold.api.openai.chat import Effort
from twofold.api.openai.errors import error_message
from twofold.api.openai.logprobs import ChatTokenLogprob, chat_logprobs
from twofold.api.openai.replies import OutputDetails, PromptDetails, ResponseUsage
from twofold.api.openai.responses.items import (
    CallItem,
    Item,
    MessageItem,
    OutputTextContent,
    ReasoningText,
    ThoughtItem,
    output_id,
    sealed,
)
from twofold.api.openai.responses.settings import ResponseSchemaFormat, ResponseToolChoice
from twofold.api.openai.streams import KEEP_ALIVE
from twofold.core.errors import ParameterError, QuotaError, TwofoldError, UsageError
from twofold.core.step import FinishReason
from twofold.engine.outputs import CompletionOutput, OutputDelta, RequestOutput
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, SectionParser, ToolCall
from twofold.text.tokenizers.tokenizer import Tokenizer

State: TypeAlias = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
IncompleteReason: TypeAlias = Literal["max_output_tokens"]


class ResponseFailure(ReplyObject, kw_only=True):
    """Why a response failed."""

    code: Annotated[str, Meta(min_length=1)]
    message: Annotated[str, Meta(min_length=1)]
    param: str | UnsetType = UNSET


class IncompleteDetails(ReplyObject):
    """Why a response is incomplete."""

    reason: IncompleteReason


class ReplyReasoning(ReplyObject, kw_only=True):
    """The effort of the request; there are no summaries."""

    effort: Effort | None
    summary: None = None


class ReplyText(ReplyObject, kw_only=True):
    """The format of the text."""

    format: PlainFormat | ResponseSchemaFormat
    verbosity: Literal["medium"] = "medium"


class ReplyTool(ReplyObject, kw_only=True):
    """A function that the model may call."""

    type: Literal["function"] = "function"
    name: str
    description: str | None
    parameters: dict[str, Any] | None
    strict: bool


class ResponseReply(ReplyObject, kw_only=True):
    """A response: its state and its output, and the settings that it was generated with."""

    id: str
    object: Literal["response"] = "response"
    created_at: NonNegativeInt
    status: State = "in_progress"
    background: Literal[False] = False
    completed_at: NonNegativeInt | None = None
    error: ResponseFailure | None = None
    incomplete_details: IncompleteDetails | None = None
    model: str
    output: Sequence[Item] = ()
    usage: ResponseUsage | None = None
    instructions: str | None
    max_output_tokens: NonNegativeInt | None
    max_tool_calls: NonNegativeInt | None
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    safety_identifier: str | None
    store: bool
    truncation: Literal["auto", "disabled"]
    user: str | None
    metadata: Metadata
    reasoning: ReplyReasoning
    temperature: Annotated[float, Meta(ge=0)]
    text: ReplyText
    tool_choice: ResponseToolChoice
    tools: Sequence[ReplyTool]
    top_logprobs: NonNegativeInt
    top_p: Annotated[float, Meta(ge=0, le=1)]
    presence_penalty: Penalty
    frequency_penalty: Penalty
    service_tier: TierName | UnsetType = UNSET
    twofold: Explanation | UnsetType = UNSET


class OutputEvent(ReplyObject, kw_only=True):
    """An event of a stream; events are numbered from 0."""

    type: str
    sequence_number: NonNegativeInt = 0


class ResponseStateEvent(OutputEvent, kw_only=True):
    """The response so far, or at its end."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseReply


class OutputItemEvent(OutputEvent, kw_only=True):
    """An item begins, or is complete."""

    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: NonNegativeInt
    item: Item


class ItemEvent(OutputEvent, kw_only=True):
    """An event of the last item."""

    item_id: str
    output_index: NonNegativeInt


class PartEvent(ItemEvent, kw_only=True):
    """An event of an item's only part."""

    content_index: NonNegativeInt = 0


class ContentPartEvent(PartEvent, kw_only=True):
    """A part begins, or is complete."""

    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputTextContent | ReasoningText


class OutputTextDelta(PartEvent, kw_only=True):
    """More text of a message."""

    type: Literal["response.output_text.delta"] = "response.output_text.delta"
    delta: str
    logprobs: Sequence[ChatTokenLogprob]


class OutputTextDone(PartEvent, kw_only=True):
    """The text of a message."""

    type: Literal["response.output_text.done"] = "response.output_text.done"
    text: str
    logprobs: Sequence[ChatTokenLogprob]


class ReasoningTextDelta(PartEvent, kw_only=True):
    """More reasoning."""

    type: Literal["response.reasoning_text.delta"] = "response.reasoning_text.delta"
    delta: str


class ReasoningTextDone(PartEvent, kw_only=True):
    """The reasoning of an item."""

    type: Literal["response.reasoning_text.done"] = "response.reasoning_text.done"
    text: str


class CallArgumentsDelta(ItemEvent, kw_only=True):
    """More of the arguments' JSON text."""

    type: Literal["response.function_call_arguments.delta"] = "response.function_call_arguments.delta"
    delta: str


class CallArgumentsDone(ItemEvent, kw_only=True):
    """The arguments of a call."""

    type: Literal["response.function_call_arguments.done"] = "response.function_call_arguments.done"
    name: str
    arguments: str


ResponseEvent: TypeAlias = (
    ResponseStateEvent
    | OutputItemEvent
    | ContentPartEvent
    | OutputTextDelta
    | OutputTextDone
    | ReasoningTextDelta
    | ReasoningTextDone
    | CallArgumentsDelta
    | CallArgumentsDone
)


class InputTokensReply(ReplyObject, kw_only=True):
    """Tokens of a prompt."""

    object: Literal["response.input_tokens"] = "response.input_tokens"
    input_tokens: NonNegativeInt


STATES: Final[Mapping[FinishReason | None, State]] = {
    "stop": "completed",
    "length": "incomplete",
    "deadline": "incomplete",
    "repetition": "incomplete",
    "abort": "cancelled",
}
"""The state of a response, by the finish reason of its completion."""
REASONS: Final[Mapping[FinishReason | None, IncompleteReason]] = {"length": "max_output_tokens"}
"""Why a response is incomplete, in OpenAI's words, which have none for a deadline or a repetition: its details are
null."""


def item_status(finish: FinishReason | None) -> Literal["completed", "incomplete"]:
    """The status of the last item, by the finish reason of the completion."""
    return "completed" if finish == "stop" else "incomplete"


def response_tier(head: ReplyHead) -> TierName | UnsetType:
    """The service tier in OpenAI's words, which have none for batches."""
    return "default" if head.service_tier == "batch" else head.service_tier or UNSET


def ended_response(
    response: ResponseReply,
    items: Sequence[Item],
    output: RequestOutput,
    model: ModelFacts,
    extra: Explanation | UnsetType = UNSET,
) -> ResponseReply:
    """The ``response`` with its output. ``extra`` goes under ``twofold``."""
    (completion,) = output.outputs
    state, reason = STATES[completion.finish_reason], REASONS.get(completion.finish_reason)
    took = round(output.metrics.finished - output.metrics.arrival)
    return structs.replace(
        response,
        status=state,
        output=list(items),
        usage=response_usage(output, model),
        twofold=extra,
        completed_at=response.created_at + took if state == "completed" else None,
        incomplete_details=None if reason is None else IncompleteDetails(reason),
    )


def failed_response(response: ResponseReply, items: Sequence[Item], error: TwofoldError) -> ResponseReply:
    """The ``response`` that ends with an error, with the items that were complete."""
    param = error.param if isinstance(error, ParameterError) else None
    failure = ResponseFailure(code=_failure(error), message=error_message(error, "input"), param=param or UNSET)
    return structs.replace(response, status="failed", output=list(items), error=failure)


def response_usage(output: RequestOutput, model: ModelFacts) -> ResponseUsage:
    """Tokens of the prompt, cached ones included, and of the completion, its thinking included."""
    prompt, completion = len(output.prompt_token_ids), output.metrics.output_tokens
    cache = CacheUsage.of([output])
    return ResponseUsage(
        input_tokens=prompt,
        input_tokens_details=PromptDetails.of(cache),
        output_tokens=completion,
        output_tokens_details=OutputDetails(reasoning_tokens([output], model)),
        total_tokens=prompt + completion,
    )


def _failure(error: TwofoldError) -> str:
    """The code of a failed response."""
    if isinstance(error, QuotaError):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, UsageError) else "server_error"


OutputItem: TypeAlias = MessageItem | ThoughtItem | CallItem
EndStatus: TypeAlias = Literal["completed", "incomplete"]
Entries: TypeAlias = Sequence[ChatTokenLogprob]
"""Log-probabilities, one entry per token."""


def sampled_logprobs(sampled: CompletionOutput | OutputDelta, tokenizer: Tokenizer, top: int) -> Entries:
    """Log-probabilities of the sampled tokens, without the end-of-sequence token."""
    has_end = sampled.finish_reason == "stop" and not isinstance(sampled.stop_reason, str)
    count = len(sampled.token_ids) - has_end
    return chat_logprobs(sampled.token_ids[:count], (sampled.logprobs or ())[:count], tokenizer, top)


def token_by_token(text: str, entries: Entries) -> Iterator[tuple[str, Entries]]:
    """A text cut where its tokens end, as in a stream; uncut if tokens and text do not agree."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = [decoder.decode(bytes(entry.bytes)) for entry in entries]
    if "".join(pieces) == text:
        yield from ((piece, [entry]) for piece, entry in zip(pieces, entries, strict=True))
    elif text or entries:
        yield text, entries


def last_of(entries: Entries, text: str) -> Entries:
    """The last entries, as many as it takes to make this text."""
    missing, first = len(text.encode()), len(entries)
    while missing > 0 and first > 0:
        first -= 1
        missing -= len(entries[first].bytes)
    return entries[first:]


class OutputItems:
    """The items of a completion that ``parser`` divides. ``response`` is the response's id without its prefix.

    ``seal`` puts reasoning into ``encrypted_content``, too.
    """

    def __init__(self, response: str, parser: SectionParser, *, seal: bool = False) -> None:
        self.items: list[Item] = []
        self._response = response
        self._parser = parser
        self._seal = seal
        self._open: _OpenItem | None = None
        self._blank = ""
        self._unplaced: list[ChatTokenLogprob] = []

    def take(self, text: str, logprobs: Entries = ()) -> Iterator[ResponseEvent]:
        """The events of more text; ``logprobs`` are those of its tokens."""
        self._unplaced += logprobs
        yield from self._take(self._parser.push(text) if text else ())

    def close(self, status: EndStatus) -> Iterator[ResponseEvent]:
        """Ends the completion. A completed one without calls gets a message, even if it is empty."""
        yield from self._take(self._parser.flush())
        only_reasoning = all(isinstance(item, ThoughtItem) for item in self.items)
        if status == "completed" and only_reasoning and (self._open is None or self._is_open(ThoughtItem)):
            yield from self._grow(MessageItem(role="assistant", content=[]), self._blank)
        yield from self._end(status)

    def _take(self, pieces: Sequence[Piece]) -> Iterator[ResponseEvent]:
        for piece in pieces:
            match piece:
                case Content(text):
                    yield from self._text(text)
                case Reasoning(text):
                    yield from self._grow(ThoughtItem(), text)
                case ToolCall(_, name):
                    self._blank = ""
                    index = len(self.items) + (self._open is not None)
                    yield from self._begin(CallItem(call_id=f"call_{self._response}_{index}", name=name))
                case Arguments(_, text):
                    assert self._open is not None, "arguments follow their call"
                    assert isinstance(self._open.item, CallItem), "arguments follow their call"
                    yield from self._grow(self._open.item, text)
        if pieces:
            self._unplaced.clear()

    def _is_open(self, kind: type[OutputItem]) -> bool:
        return self._open is not None and isinstance(self._open.item, kind)

    def _text(self, text: str) -> Iterator[ResponseEvent]:
        if self._is_open(MessageItem) or (self._blank + text).strip():
            text, self._blank = self._blank + text, ""
            yield from self._grow(MessageItem(role="assistant", content=[]), text)
        else:
            self._blank += text

    def _grow(self, item: OutputItem, text: str) -> Iterator[ResponseEvent]:
        """Adds to the open item of this type, or begins ``item``."""
        if not self._is_open(type(item)):
            yield from self._begin(item)
        assert self._open is not None
        if text:
            yield self._open.add(text, last_of(self._unplaced, text))
            self._unplaced = []

    def _begin(self, item: OutputItem) -> Iterator[ResponseEvent]:
        yield from self._end("completed")
        index = len(self.items)
        item.id, item.status = output_id(type(item), self._response, index), "in_progress"
        self._open = _OpenItem(item, index)
        yield from self._open.begin()

    def _end(self, status: EndStatus) -> Iterator[ResponseEvent]:
        if self._open is not None:
            yield from self._open.end(status)
            item = self._open.item
            if self._seal and isinstance(item, ThoughtItem):
                item = sealed(item)
            yield OutputItemEvent(type="response.output_item.done", output_index=len(self.items), item=item)
            self.items.append(item)
            self._open = None


class _OpenItem:
    """An item that grows. Its content is set when it ends."""

    def __init__(self, item: OutputItem, index: int) -> None:
        self.item = item
        self._index = index
        self._texts: list[str] = []
        self._logprobs: list[ChatTokenLogprob] = []

    def begin(self) -> Iterator[ResponseEvent]:
        item = structs.replace(self.item)
        yield OutputItemEvent(type="response.output_item.added", output_index=self._index, item=item)
        if not isinstance(item, CallItem):
            yield self._part("response.content_part.added")

    def add(self, text: str, logprobs: Entries) -> ResponseEvent:
        self._texts.append(text)
        item, index = self.item, self._index
        match item:
            case MessageItem():
                self._logprobs += logprobs
                return OutputTextDelta(item_id=item.id, output_index=index, delta=text, logprobs=logprobs)
            case ThoughtItem():
                return ReasoningTextDelta(item_id=item.id, output_index=index, delta=text)
            case CallItem():
                return CallArgumentsDelta(item_id=item.id, output_index=index, delta=text)

    def end(self, status: EndStatus) -> Iterator[ResponseEvent]:
        item, index = self.item, self._index
        if isinstance(item, CallItem) and status == "completed" and not self._texts:
            yield self.add(NO_ARGUMENTS, ())
        item.status, text = status, "".join(self._texts)
        match item:
            case MessageItem():
                item.content = [OutputTextContent(text=text, logprobs=self._logprobs)]
                yield OutputTextDone(item_id=item.id, output_index=index, text=text, logprobs=self._logprobs)
            case ThoughtItem():
                item.content = [ReasoningText("reasoning_text", text)]
                yield ReasoningTextDone(item_id=item.id, output_index=index, text=text)
            case CallItem():
                item.arguments = text
                yield CallArgumentsDone(item_id=item.id, output_index=index, name=item.name, arguments=text)
        if not isinstance(item, CallItem):
            yield self._part("response.content_part.done")

    def _part(self, kind: Literal["response.content_part.added", "response.content_part.done"]) -> ContentPartEvent:
        """The event of the item's only part."""
        text = "".join(self._texts)
        part: OutputTextContent | ReasoningText = OutputTextContent(text=text, logprobs=self._logprobs)
        if isinstance(self.item, ThoughtItem):
            part = ReasoningText("reasoning_text", text)
        return ContentPartEvent(type=kind, item_id=self.item.id, output_index=self._index, part=part)


class ResponsesStreamer:
    """``Streamer`` of a response; ``begun`` is the reply before its first token, ``top_logprobs`` is None without
    log-probabilities."""

    keep_alive = KEEP_ALIVE

    def __init__(
        self,
        begun: ResponseReply,
        head: ReplyHead,
        model: ModelFacts,
        parser: SectionParser,
        *,
        top_logprobs: int | None,
        seal: bool,
    ) -> None:
        self._model = model
        self._begun = begun
        self._output = OutputItems(head.id, parser, seal=seal)
        self._top_logprobs = top_logprobs
        self._number = 0

    def open(self) -> bytes:
        return self._events(
            ResponseStateEvent(type=kind, response=self._begun) for kind in ("response.created", "response.in_progress")
        )

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - a response is one job
        top = self._top_logprobs
        entries = () if top is None else sampled_logprobs(delta, self._model.tokenizer, top)
        return b"".join(self._events(self._output.take(text, own)) for text, own in token_by_token(delta.text, entries))

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        (output,) = outputs
        status = item_status(output.outputs[0].finish_reason)
        end = self._events(self._output.close(status))
        response = ended_response(self._begun, self._output.items, output, self._model, extra)
        kind: Literal["response.completed", "response.incomplete"] = (
            "response.completed" if status == "completed" else "response.incomplete"
        )
        return end + self._events([ResponseStateEvent(type=kind, response=response)])

    def fail(self, error: TwofoldError, request_id: str) -> bytes:  # noqa: ARG002 - it is in a header
        response = failed_response(self._begun, self._output.items, error)
        return self._events([ResponseStateEvent(type="response.failed", response=response)])

    def _events(self, events: Iterable[ResponseEvent]) -> bytes:
        return b"".join(b"event: %b\ndata: %b\n\n" % (event.type.encode(), self._numbered(event)) for event in events)

    def _numbered(self, event: ResponseEvent) -> bytes:
        event.sequence_number = self._number
        self._number += 1
        return encode(event)
