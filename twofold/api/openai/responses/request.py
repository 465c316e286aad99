"""/v1/responses: request bodies and their replies.

A response may continue a stored one. ``ResponsesRequest.known`` takes the items of the conversation so far, and those
that references stand for; the caller reads them from its store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, TypeGuard, cast

from msgspec import UNSET, Meta

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import OMITTING, ModelName, OwnFields, RequestObject, only
from twofold.api.cache_points import CachePoint
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import (
    CacheSalt,
    Count,
    HandlingFields,
    MinP,
    PlainFormat,
    Priority,
    Repetition,
    Temperature,
    Tier,
    TopK,
    TopLogprobs,
    TopP,
)
from twofold.api.openai.chat import DEFAULT_TTL, MAX_TOOLS
from twofold.api.openai.responses.items import (
    MAX_ITEMS,
    CallItem,
    CallOutputItem,
    InputTextContent,
    Item,
    ItemContent,
    ItemReference,
    MessageItem,
    RefusalContent,
    ResponseItem,
    ThoughtItem,
    input_items,
    named_items,
)
from twofold.api.openai.responses.reply import (
    InputTokensReply,
    OutputItems,
    ReplyReasoning,
    ReplyText,
    ReplyTool,
    ResponseReply,
    ResponsesStreamer,
    ended,
    item_status,
    response_tier,
    sampled_logprobs,
    token_by_token,
)
from twofold.api.openai.responses.settings import (
    LOGPROBS,
    SEALED_REASONING,
    Includable,
    Metadata,
    ReasoningSettings,
    ResponseCacheOptions,
    ResponseTool,
    ResponseToolChoice,
    TextSettings,
    Tools,
)
from twofold.api.prompts import AS_BEFORE, Conversation, Thinking
from twofold.core.errors import ContextLengthError, quoted
from twofold.core.params import SamplingParams
from twofold.core.request import MAX_PINS, EngineRequest, RequestOptions, TimeToLive
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import Message
from twofold.text.parsers.base import SectionParser


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


SAMPLED: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Fields that ``SamplingParams`` knows by the same name; OpenAI has the first two."""
REPEATED: Final = (
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
"""Fields that the reply repeats."""

ResponseLabel: TypeAlias = Annotated[str, Meta(max_length=512, description="Sorts requests; it changes no answer.")]


class TurnRequest(RequestObject, dict=True):
    """A request whose turn may continue a stored response."""

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
        """The id of the response that it continues."""
        return self.previous_response_id

    @property
    def references(self) -> Sequence[str]:
        """Ids of items that the caller must find."""
        return [item.id for item in self.turn.items if isinstance(item, ItemReference)]

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
        """Whether reasoning is also in ``encrypted_content``."""
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
        """The items of this request, with an id each, as they are stored and listed."""
        return named_items(self.turn.resolved, head.id)

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        return [self.turn.prepare(model, self._filled(model), self.request_options)]

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> ResponseReply:
        (output,) = outputs
        (answer,) = output.outputs
        entries = (
            () if self.params.logprobs is None else sampled_logprobs(answer, model.tokenizer, self.params.logprobs)
        )
        made = OutputItems(head.id, self._parser(model), seal=self.seal)
        for text, logprobs in token_by_token(answer.text, entries):
            deque(made.take(text, logprobs), maxlen=0)  # a whole reply has no events
        deque(made.close(item_status(answer.finish_reason)), maxlen=0)
        return ended(self._begun(head, model), made.items, output, model)

    def streamer(self, head: ReplyHead, model: ModelFacts) -> ResponsesStreamer:
        top, parser = self.params.logprobs, self._parser(model)
        return ResponsesStreamer(self._begun(head, model), head, model, parser, top_logprobs=top, seal=self.seal)

    def _begun(self, head: ReplyHead, model: ModelFacts) -> ResponseReply:
        """The response before its first token, with the parameters that tokens are sampled with."""
        params = self._filled(model)
        return ResponseReply(
            id=f"resp_{head.id}",
            created_at=head.created,
            model=head.model,
            service_tier=response_tier(head),
            **{name: getattr(self, name) for name in REPEATED},
            metadata=self.metadata or {},
            reasoning=ReplyReasoning(effort=None if self.reasoning is None else self.reasoning.effort),
            temperature=params.temperature,
            text=ReplyText(format=(self.text or TextSettings()).format or PlainFormat("text")),
            tool_choice=self.tool_choice,
            tools=[
                ReplyTool(name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict)
                for tool in self.tools or ()
            ],
            top_logprobs=params.logprobs or 0,
            top_p=params.top_p,
        )

    def _filled(self, model: ModelFacts) -> SamplingParams:
        """The parameters, with the server's defaults where the request says nothing."""
        return model.sampling.fill(self.params, self._sampling())

    def _parser(self, model: ModelFacts) -> SectionParser:
        return self.turn.conversation(()).parser(model)


class InputTokensRequest(TurnRequest):
    """The body of /v1/responses/input_tokens: a turn whose prompt is only counted."""

    personality: None = None

    def count(self, model: ModelFacts) -> InputTokensReply:
        """The reply. It may take a while: the chat template is rendered and the text tokenised.

        Raises TemplateError where the chat template refuses the messages.
        """
        job = self.turn.prepare(
            model if self.turn.truncate else model.unbounded(), SamplingParams(max_tokens=1), RequestOptions()
        )
        return InputTokensReply(input_tokens=len(job.token_ids))
