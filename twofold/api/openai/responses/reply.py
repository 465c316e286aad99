"""The ``response`` object, and the events of its stream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType, structs

from twofold.api.answers import CacheUsage, reasoning_tokens
from twofold.api.base import ModelFacts, ReplyHead, TierName
from twofold.api.body import Explanation, NonNegativeInt, ReplyObject
from twofold.api.openai.bodies import PlainFormat
from twofold.api.openai.chat import Effort
from twofold.api.openai.errors import error_message
from twofold.api.openai.logprobs import ChatTokenLogprob
from twofold.api.openai.responses.items import Item, OutputTextContent, ReasoningText
from twofold.api.openai.responses.settings import Metadata, ResponseSchemaFormat, ResponseToolChoice
from twofold.api.openai.usage import OutputDetails, PromptDetails, ResponseUsage
from twofold.core.errors import ParameterError, QuotaError, TwofoldError, UsageError
from twofold.core.step import FinishReason
from twofold.engine.outputs import RequestOutput

State: TypeAlias = Literal["in_progress", "completed", "incomplete", "cancelled", "failed"]
IncompleteReason: TypeAlias = Literal["max_output_tokens"]


class ResponseFailure(ReplyObject, kw_only=True):
    """Why a response failed."""

    code: Annotated[str, Meta(min_length=1)]
    message: Annotated[str, Meta(min_length=1)]
    param: str | UnsetType = UNSET


class IncompleteDetails(ReplyObject):
    """Why a response is incomplete; null for a deadline."""

    reason: IncompleteReason | None


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
    "abort": "cancelled",
}
"""The state of a response, by the finish reason of its completion."""
REASONS: Final[Mapping[FinishReason | None, IncompleteReason]] = {"length": "max_output_tokens"}
"""Why a response is incomplete, in OpenAI's words, which have none for a deadline."""


def item_status(finish: FinishReason | None) -> Literal["completed", "incomplete"]:
    """The status of the last item."""
    return "completed" if finish == "stop" else "incomplete"


def response_tier(head: ReplyHead) -> TierName | UnsetType:
    """The service tier in OpenAI's words, which have none for batches."""
    return "default" if head.service_tier == "batch" else head.service_tier or UNSET


def ended(
    response: ResponseReply,
    items: Sequence[Item],
    output: RequestOutput,
    model: ModelFacts,
    extra: Explanation | UnsetType = UNSET,
) -> ResponseReply:
    """The ``response`` with its output. ``extra`` goes under ``twofold``."""
    (answer,) = output.outputs
    state = STATES[answer.finish_reason]
    took = round(output.metrics.finished - output.metrics.arrival)
    return structs.replace(
        response,
        status=state,
        output=list(items),
        usage=response_usage(output, model),
        twofold=extra,
        completed_at=response.created_at + took if state == "completed" else None,
        incomplete_details=IncompleteDetails(REASONS.get(answer.finish_reason)) if state == "incomplete" else None,
    )


def failed(response: ResponseReply, items: Sequence[Item], error: TwofoldError) -> ResponseReply:
    """The ``response`` that ends with an error, with the items that were complete."""
    param = error.param if isinstance(error, ParameterError) else None
    failure = ResponseFailure(code=_failure(error), message=error_message(error), param=param or UNSET)
    return structs.replace(response, status="failed", output=list(items), error=failure)


def response_usage(output: RequestOutput, model: ModelFacts) -> ResponseUsage:
    """Tokens of the prompt, cached ones included, and of the completion, its thinking included."""
    prompt, completion = len(output.prompt_token_ids), output.metrics.output_tokens
    cache = CacheUsage.of([output])
    return ResponseUsage(
        input_tokens=prompt,
        input_tokens_details=PromptDetails(cached_tokens=cache.read, cache_write_tokens=cache.written),
        output_tokens=completion,
        output_tokens_details=OutputDetails(reasoning_tokens([output], model)),
        total_tokens=prompt + completion,
    )


def _failure(error: TwofoldError) -> str:
    """The code of a failed response."""
    if isinstance(error, QuotaError):
        return "rate_limit_exceeded"
    return "invalid_prompt" if isinstance(error, UsageError) else "server_error"
