"""/v1/responses: request bodies and their replies.

The prompt is made of the history, the new items, instructions and tools, as messages that chat templates read. Several
items of a model's turn (reasoning, a message, calls) become one message of the assistant, as templates expect it.
System messages at the start become one, because many templates accept no second.

A response may continue a stored one. ``ResponsesRequest.known`` takes the items of the conversation so far, and those
that references stand for; the caller reads them from its store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias, TypeGuard, cast

from msgspec import UNSET, Meta

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import IGNORED, OMITTING, ModelName, OwnFields, RequestObject, only
from twofold.api.cache_points import CachePoint
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import (
    CacheSalt,
    Count,
    GeneratingFields,
    Metadata,
    MinP,
    Penalty,
    PlainFormat,
    Priority,
    Repetition,
    Speculation,
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
    ended_response,
    item_status,
    response_tier,
    sampled_logprobs,
    token_by_token,
)
from twofold.api.openai.responses.settings import (
    LOGPROBS,
    SEALED_REASONING,
    Includable,
    ReasoningSettings,
    ResponseCacheOptions,
    ResponseTool,
    ResponseToolChoice,
    TextSettings,
    shown_tools,
)
from twofold.api.prompts import (
    DEFAULT_THINKING,
    Conversation,
    DraftMessage,
    ToolChoice,
    check_choice,
    function_call,
    unbilled,
)
from twofold.core.errors import ContextLengthError, quoted
from twofold.core.params import SamplingParams
from twofold.core.request import MAX_PINS, STORED_TTL, EngineRequest, RequestOptions, TimeToLive
from twofold.core.sampling_defaults import NAMES
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import Message
from twofold.text.parsers.base import SectionParser

SAMPLED: Final = (*NAMES, "presence_penalty", "frequency_penalty")
"""Fields that ``SamplingParams`` knows by the same name. OpenAI has the first two, Open Responses the last two, too."""
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

ResponseLabel: TypeAlias = Annotated[
    str, Meta(max_length=512, description="A label of the caller, which the reply repeats; it changes no completion.")
]


def _is_message(item: Item, *roles: str) -> bool:
    return isinstance(item, MessageItem) and item.role in roles


def _fits(job: EngineRequest | ContextLengthError, model: ModelFacts) -> TypeGuard[EngineRequest]:
    """Whether the prompt leaves room for ``max_tokens``; half of the context is always enough."""
    if isinstance(job, ContextLengthError):
        return False
    assert isinstance(job.params, SamplingParams)
    room = min(job.params.max_tokens or 1, model.context // 2)
    return len(job.token_ids) + room <= model.context


class _MessageReader:
    """Reads items into ``drafts`` of messages. Prefixes that a prompt_cache_breakpoint marks stay cached for ``ttl``
    unless they have their own ttl."""

    def __init__(self, instructions: str | None, ttl: TimeToLive) -> None:
        self.drafts: list[DraftMessage] = []
        if instructions:
            self._add(self._begin("system"), instructions)
        self._ttl = ttl
        self._called: set[str] = set()

    def read(self, item: Item) -> None:
        """Raises FieldError for the output of a call that was not read before it."""
        match item:
            case MessageItem():
                self._add(self._draft_of(item.role), item.content)
            case ThoughtItem():
                draft = self._assistant(new=True)
                if text := "".join(part.text for part in item.content or item.summary):
                    draft.reasoning = (draft.reasoning or "") + text
            case CallItem():
                self._called.add(item.call_id)
                self._assistant(new=False).calls.append(function_call(item.call_id, item.name, item.arguments))
            case CallOutputItem():
                if item.call_id not in self._called:
                    raise FieldError(
                        f"There is no call for the function call output with call_id {quoted(item.call_id)}.",
                        param="input",
                        hint="Send the function_call item before it, or previous_response_id.",
                    )
                self._add(self._begin("tool", item.call_id), item.output)

    def _add(self, draft: DraftMessage, content: str | Sequence[ItemContent]) -> None:
        for part in [InputTextContent(text=content)] if isinstance(content, str) else content:
            if isinstance(part, RefusalContent):
                draft.texts.append(part.refusal)
                continue
            text = unbilled(part.text) if draft.role == "system" else part.text
            if part.text and not text:
                continue
            draft.texts.append(text)
            if part.prompt_cache_breakpoint is not UNSET:
                draft.hold("text", cast("TimeToLive", part.prompt_cache_breakpoint.get("ttl", self._ttl)))

    def _draft_of(self, role: str) -> DraftMessage:
        """The message to which a message item of this role belongs."""
        role = "system" if role == "developer" else role
        if role == "assistant":
            return self._assistant(new=True)
        if role == "system" and len(self.drafts) == 1 and self.drafts[0].role == "system":
            return self.drafts[0]
        return self._begin(role)

    def _assistant(self, *, new: bool) -> DraftMessage:
        """The assistant's message that continues; a ``new`` one if it already has text or calls."""
        last = self.drafts[-1] if self.drafts else None
        if last is not None and last.role == "assistant" and not (new and (last.texts or last.calls)):
            return last
        return self._begin("assistant")

    def _begin(self, role: str, result_of: str | None = None) -> DraftMessage:
        self.drafts.append(DraftMessage(role, result_of=result_of))
        return self.drafts[-1]


class TurnRequest(RequestObject, dict=True):
    """A turn of a conversation, which may continue a stored response."""

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
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: ResponseCacheOptions | None = None

    history: ClassVar[tuple[Item, ...]] = ()
    """Items of the response that the request continues, and of earlier ones."""

    def __post_init__(self) -> None:
        self.items  # noqa: B018 - both raise FieldError for impossible values
        self.shown_tools  # noqa: B018

    @cached_property
    def items(self) -> tuple[Item | ItemReference, ...]:
        """The new items."""
        return input_items(self.input, needed=self.previous_response_id is None)

    @cached_property
    def shown_tools(self) -> tuple[tuple[Message, ...], ToolChoice]:
        """The tools that may be called, and the choice among them."""
        tools, choice = shown_tools(self.tools or (), self.tool_choice)
        check_choice(tools, choice)
        return tools, choice

    @property
    def references(self) -> Sequence[str]:
        """Ids of items that the caller must find."""
        return [item.id for item in self.items if isinstance(item, ItemReference)]

    @property
    def resolved(self) -> tuple[Item, ...]:
        """The new items, once references are resolved."""
        return tuple(item for item in self.items if not isinstance(item, ItemReference))

    def known(self, history: Sequence[Item], found: Mapping[str, Item]) -> Self:
        """The request with the items of the conversation so far, and those that its references stand for."""
        items = tuple(found.get(item.id, item) if isinstance(item, ItemReference) else item for item in self.items)
        known = copy(self)
        known.__dict__.update(history=tuple(history), items=items)
        return known

    def chat(self, items: Sequence[Item] | None = None) -> Conversation:
        """These items as a chat; by default all of them. Raises FieldError for the output of an unknown call."""
        cache = self.prompt_cache_options
        ttl = DEFAULT_TTL if cache is None else cache.ttl
        reader = _MessageReader(self.instructions, ttl)
        for item in (*self.history, *self.resolved) if items is None else items:
            reader.read(item)
        drafts = [draft for draft in reader.drafts if draft.texts or draft.role != "system"]
        points = [point for index, draft in enumerate(drafts) for point in draft.points(index)]
        if cache is not None and cache.mode != "explicit":
            points.append(CachePoint(ttl))
        if self.prompt_cache_retention == STORED_TTL:
            points.append(CachePoint(STORED_TTL))
        tools, choice = self.shown_tools
        return Conversation(
            messages=[draft.message() for draft in drafts],
            tools=tools,
            choice=choice,
            parallel=self.parallel_tool_calls,
            thinking=DEFAULT_THINKING if self.reasoning is None else self.reasoning.thinking,
            cache_points=tuple(points[-MAX_PINS:]),
        )

    def job(self, model: ModelFacts, params: SamplingParams, options: RequestOptions) -> EngineRequest:
        """The prompt to run. If truncation is allowed, the end of the conversation that leaves room for a completion.

        Raises TemplateError, ContextLengthError, and ParameterError for a feature that the model does not support.
        """
        if self.truncation != "auto":
            return self.chat().prepare(model, params, options)

        def attempt(items: Sequence[Item] | None = None) -> EngineRequest | ContextLengthError:
            try:
                return self.chat(items).prepare(model, params, options)
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


class ResponseStreamOptions(RequestObject):
    """Additions to a stream."""

    include_obfuscation: Literal[False] = False


class ResponsesRequest(TurnRequest, GeneratingFields):
    """A turn of a conversation, and how its completion is sampled. ``max_tool_calls`` counts calls of built-in tools
    alone, and ``client_metadata`` is Codex's: both have no effect."""

    service_tier: Tier = "auto"
    priority: Priority = 0
    cache_salt: CacheSalt = ""
    speculation: Speculation = True
    twofold: OwnFields | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: Repetition | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Count | None = None
    top_logprobs: TopLogprobs | None = None
    include: list[Includable] | None = None
    store: bool = True
    stream: bool = False
    stream_options: ResponseStreamOptions | None = None
    metadata: Metadata | None = None
    client_metadata: Annotated[dict[str, Any], IGNORED] | None = None
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
        self.params  # noqa: B018 - raises FieldError for impossible values

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
            structured_outputs=(self.text or TextSettings()).structured_outputs,
        )

    def _sampling(self) -> dict[str, Any]:
        """Keywords of ``SamplingParams`` that the body gives."""
        return {name: value for name in SAMPLED if (value := getattr(self, name)) is not None}

    def new_items(self, head: ReplyHead) -> list[Item]:
        """The items of this request, with an id each, as they are stored and listed."""
        return named_items(self.resolved, head.id)

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        return [self.job(model, self._filled(model), self.request_options)]

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> ResponseReply:
        (output,) = outputs
        (completion,) = output.outputs
        entries = (
            () if self.params.logprobs is None else sampled_logprobs(completion, model.tokenizer, self.params.logprobs)
        )
        made = OutputItems(head.id, self._parser(model), seal=self.seal)
        for text, logprobs in token_by_token(completion.text, entries):
            deque(made.take(text, logprobs), maxlen=0)  # a whole reply has no events
        deque(made.close(item_status(completion.finish_reason)), maxlen=0)
        return ended_response(self._begun(head, model), made.items, output, model)

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
            presence_penalty=params.presence_penalty,
            frequency_penalty=params.frequency_penalty,
        )

    def _filled(self, model: ModelFacts) -> SamplingParams:
        """The parameters, with the server's defaults for those that are not given."""
        limited = ["max_tokens"] if self.max_output_tokens is not None else []
        return model.sampling.fill(self.params, [*self._sampling(), *limited])

    def _parser(self, model: ModelFacts) -> SectionParser:
        return self.chat(()).parser(model)


class InputTokensRequest(TurnRequest):
    """The body of /v1/responses/input_tokens: a turn whose prompt is only counted."""

    personality: None = None

    def count(self, model: ModelFacts) -> InputTokensReply:
        """The reply. It may take a while: the chat template is rendered and the text tokenised.

        Raises TemplateError if the chat template refuses the messages.
        """
        limit = model if self.truncation == "auto" else model.unbounded()
        job = self.job(limit, SamplingParams(max_tokens=1), RequestOptions())
        return InputTokensReply(input_tokens=len(job.token_ids))
