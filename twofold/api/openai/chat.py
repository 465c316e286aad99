"""Bodies of /v1/chat/completions: messages, tools, and how completions are sampled.

The chat template decides what a message means, and may refuse it. This module refuses only what is not a message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType, structs

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import OFFERED, OMITTING, NonEmptyText, OwnFields, RequestObject, only
from twofold.api.cache_points import CachePoint
from twofold.api.completion import CompletionReader, read_completion
from twofold.api.compression import ChatCompression, CompressionReply, ConversationScoring
from twofold.api.fields import UNSUPPORTED, FieldError
from twofold.api.openai.bodies import Count, JsonSchema, SampledRequest, TokenId, TopLogprobs
from twofold.api.openai.logprobs import ChatLogprobs, chat_logprobs
from twofold.api.openai.replies import (
    CalledFunctionReply,
    ChatChoice,
    ChatReply,
    ChatReplyMessage,
    ToolCallReply,
    call_id,
    chat_finish,
    usage,
)
from twofold.api.openai.streams import ChatStreamer
from twofold.api.prompts import (
    ANSWER,
    DEFAULT_THINKING,
    Conversation,
    NamedTool,
    Thinking,
    ToolChoice,
    check_choice,
    function_call,
    function_tool,
)
from twofold.core.params import SamplingParams
from twofold.core.request import MAX_PINS, STORED_TTL, EngineRequest, RequestOptions, TimeToLive
from twofold.engine.compress import CompressionReport, ReadingTime
from twofold.engine.outputs import CompletionOutput, RequestOutput
from twofold.engine.prompts import Message
from twofold.text.templates.chat import MAX_VARIABLE_CHARACTERS, RESERVED_VARIABLES, check_variables
from twofold.text.templates.messages import MAX_MESSAGES

TEXTS: Final = ("name", "tool_call_id", "reasoning_content", "thinking")
DEFAULT_TTL: Final = "30m"
MAX_INDEX: Final = 2**31 - 1

ChatRole: TypeAlias = Literal["system", "developer", "user", "assistant", "tool", "function", "model", "ipython"]


class CacheBreakpoint(RequestObject):
    """The prompt up to here stays cached."""

    mode: Literal["explicit"]
    ttl: TimeToLive | None = None


class ChatTextPart(RequestObject):
    """A part of a message's text."""

    type: Annotated[Literal["text"], OFFERED]
    text: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class ChatRefusalPart(RequestObject):
    """A refusal, which is text like any other."""

    type: Annotated[Literal["refusal"], OFFERED]
    refusal: str
    prompt_cache_breakpoint: CacheBreakpoint | None = None


class CalledFunction(RequestObject):
    """A function with its arguments: JSON text, or an object."""

    name: NonEmptyText
    arguments: str | dict[str, Any] = ""


class ChatCall(RequestObject):
    """A call that the assistant made, as it was sent; ``index`` is its place in a stream."""

    function: CalledFunction
    id: str | None = None
    type: Literal["function"] = "function"
    index: Annotated[int, Meta(ge=0, le=MAX_INDEX)] | None = None

    def message(self) -> Message:
        return function_call(self.id, self.function.name, self.function.arguments)


class ChatMessage(RequestObject):
    """One message. Fields that only OpenAI's replies have may be sent back with their empty value."""

    role: ChatRole
    content: str | list[str | ChatTextPart | ChatRefusalPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[ChatCall] | None = None
    annotations: Annotated[Any, only([])] = None
    audio: None = None
    function_call: None = None

    def message(self, where: str) -> Message:
        """The message in the form that templates read. Raises FieldError if it has neither content nor calls."""
        message: dict[str, Any] = {"role": self.role}
        message |= {name: value for name in TEXTS if (value := getattr(self, name)) is not None}
        if self.tool_calls is not None:
            message["tool_calls"] = [call.message() for call in self.tool_calls]
        content: Any = self.refusal if self.content is None else self.content
        if content is None and not self.tool_calls:
            raise FieldError(f"{where}.content is required.", param=f"{where}.content")
        if isinstance(content, list):
            content = [{"type": "text", "text": text_of(part)} for part in content]
        return message | {"content": content}

    def points(self, index: int, ttl: TimeToLive) -> Iterator[CachePoint]:
        """The breakpoints of the message, the ``index``-th; they hold for ``ttl`` unless they have their own."""
        for number, part in enumerate(self.content if isinstance(self.content, list) else ()):
            point = None if isinstance(part, str) else part.prompt_cache_breakpoint
            if point is not None:
                yield CachePoint(point.ttl or ttl, message=index, part=number)


class PromptCacheOptions(RequestObject):
    """Whether the whole prompt stays cached (implicit) or only prefixes with a breakpoint, and for how long."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: TimeToLive = DEFAULT_TTL


def text_of(part: str | ChatTextPart | ChatRefusalPart) -> str:
    if isinstance(part, str):
        return part
    return part.text if isinstance(part, ChatTextPart) else part.refusal


def cache_points(
    messages: Sequence[ChatMessage], options: PromptCacheOptions | None, retention: str | None = None
) -> tuple[CachePoint, ...]:
    """The prefixes of the prompt that shall stay cached; ``retention`` is OpenAI's field for the whole prompt."""
    ttl = DEFAULT_TTL if options is None else options.ttl
    points = [point for index, message in enumerate(messages) for point in message.points(index, ttl)]
    if options is not None and options.mode == "implicit":
        points.append(CachePoint(ttl))
    if retention == STORED_TTL:
        points.append(CachePoint(STORED_TTL))
    return tuple(points[-MAX_PINS:])


MAX_TOOLS: Final = 128
MAX_NAME_CHARS: Final = 128


ToolName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]


class ChatFunction(RequestObject):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool = False


class ChatTool(RequestObject):
    """A tool; only functions can be offered to a model."""

    type: Annotated[Literal["function"], OFFERED]
    function: ChatFunction

    def message(self) -> Message:
        """The tool as chat templates read it."""
        return function_tool(**structs.asdict(self.function))


class FunctionName(RequestObject):
    """A function, by its name."""

    name: str


class ChatNamedTool(RequestObject):
    """The one tool that must be called."""

    type: Literal["function"]
    function: FunctionName


class SomeChatTools(RequestObject):
    """Some of the tools: the model is shown these alone."""

    mode: Literal["auto", "required"]
    tools: Annotated[list[ChatTool], OMITTING]


class ChatAllowedTools(RequestObject):
    """The choice among some of the tools."""

    type: Literal["allowed_tools"]
    allowed_tools: SomeChatTools


ChatTools: TypeAlias = Annotated[list[ChatTool], Meta(max_length=MAX_TOOLS), OMITTING]
ChatToolChoice: TypeAlias = Literal["auto", "none", "required"] | ChatNamedTool | ChatAllowedTools


def chosen_tools(given: Sequence[ChatTool], choice: ChatToolChoice) -> tuple[tuple[Message, ...], ToolChoice]:
    """The tools that the model is shown, and the choice among them. Raises FieldError."""
    tools = tuple(tool.message() for tool in given)
    if isinstance(choice, str):
        return tools, choice
    if isinstance(choice, ChatNamedTool):
        return tools, NamedTool(choice.function.name)
    known = {tool["function"]["name"]: tool for tool in tools}
    names = [tool.function.name for tool in choice.allowed_tools.tools]
    if not known.keys() >= set(names):
        where = "tool_choice.allowed_tools.tools"
        raise FieldError(f"{where} holds a tool that is not in tools.", param=where)
    return tuple(known[name] for name in names), choice.allowed_tools.mode


TemplateVariables: TypeAlias = Annotated[
    dict[str, Any],
    Meta(
        extra_json_schema={
            "propertyNames": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_VARIABLE_CHARACTERS,
                "pattern": "^[A-Za-z_][A-Za-z0-9_]*$",
                "not": {"enum": sorted(RESERVED_VARIABLES)},
            }
        }
    ),
]
Effort: TypeAlias = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
EFFORTS: Final[Mapping[str, Thinking]] = {
    "none": Thinking("off"),
    "minimal": Thinking("on", 256, "reasoning_effort"),
    "low": Thinking("on", 1024, "reasoning_effort"),
    "medium": Thinking("on", 4096, "reasoning_effort"),
    "high": Thinking("on", 16384, "reasoning_effort"),
    "xhigh": Thinking("on", 65536, "reasoning_effort"),
    "max": Thinking("on", None, "reasoning_effort"),
}
"""Maximum tokens of thinking by effort; thinking_token_budget sets them exactly."""


class ChatOwnFields(OwnFields):
    """Twofold's own fields of a chat."""

    answer_token_ids: (
        Annotated[
            list[TokenId],
            Meta(
                min_length=1,
                description="Tokens with which the assistant's answer has begun; the completion goes on after them.",
            ),
        ]
        | None
    ) = None
    progress: Annotated[bool, Meta(description="The stream says how far the request is until its first token.")] = False
    tokens: Annotated[
        bool,
        Meta(description="Chunks say when and how their tokens were made; the record has the whole timeline."),
    ] = False


class ChatRequest(SampledRequest, kw_only=True, dict=True):
    """A chat, and how its completions are sampled."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    tools: ChatTools | None = None
    tool_choice: ChatToolChoice = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | None = None
    thinking_token_budget: TokenId | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: Annotated[
        bool, Meta(description="The completion continues the last message, which is the assistant's.")
    ] = False
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None
    prompt_cache_retention: Literal["in_memory", "24h"] | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    modalities: Annotated[Any, only(["text"])] = None
    store: Literal[False] = False
    verbosity: Literal["medium"] | None = None
    audio: None = None
    compress: ChatCompression | None = None
    twofold: ChatOwnFields | None = None
    function_call: None = None
    functions: None = None
    moderation: None = None
    web_search_options: None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self.compressed: CompressionReply | UnsetType = UNSET
        if self.twofold is not None and self.twofold.progress and not self.stream:
            name = "twofold.progress"
            raise FieldError(f"{name} needs stream.", param=name, hint='Set "stream": true, or leave it out.')
        check_variables(self.chat_template_kwargs or ())
        self.conversation  # noqa: B018 - both raise FieldError for impossible values
        self.params  # noqa: B018

    @cached_property
    def conversation(self) -> Conversation:
        tools, choice = chosen_tools(self.tools or (), self.tool_choice)
        check_choice(tools, choice)
        messages = [message.message(f"messages[{index}]") for index, message in enumerate(self.messages)]
        if self.continue_final_message:
            self._check_continued(messages[-1])
        answer = () if self.twofold is None else tuple(self.twofold.answer_token_ids or ())
        if answer and (self.continue_final_message or self.add_generation_prompt is False):
            message = f"{ANSWER} begins an answer after the generation prompt."
            raise FieldError(message, param=ANSWER, hint="Remove continue_final_message and add_generation_prompt.")
        prompted = not self.continue_final_message if self.add_generation_prompt is None else self.add_generation_prompt
        return Conversation(
            messages=messages,
            tools=tools,
            choice=choice,
            parallel=self.parallel_tool_calls,
            thinking=self._thinking(),
            variables=self.chat_template_kwargs or {},
            add_generation_prompt=prompted,
            continues=self.continue_final_message,
            cache_points=cache_points(self.messages, self.prompt_cache_options, self.prompt_cache_retention),
            answer=answer,
        )

    @property
    def timed(self) -> bool:
        """Whether the reply says when and how its tokens were made."""
        return self.twofold is not None and self.twofold.tokens

    @property
    def explain(self) -> bool:
        return self.timed or super().explain

    @property
    def request_options(self) -> RequestOptions:
        progress = self.twofold is not None and self.twofold.progress
        return replace(super().request_options, timeline=self.timed, progress=progress)

    @cached_property
    def params(self) -> SamplingParams:
        older, newer = self.max_tokens, self.max_completion_tokens
        if None not in (older, newer) and older != newer:
            raise FieldError(
                f"max_tokens is {older}, but max_completion_tokens is {newer}.",
                param="max_tokens",
                hint="Remove max_tokens.",
            )
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs needs logprobs.", param="top_logprobs", hint='Set "logprobs": true.')
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return SamplingParams(
            **self.sampling_keywords(), max_tokens=older if newer is None else newer, logprobs=logprobs
        )

    def scoring(self, reader: ReadingTime) -> ConversationScoring | None:
        if self.compress is None:
            return None
        options = self.request_options
        return ConversationScoring.of(self.conversation, self._accept, self.compress, reader, self.tier, options)

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        if self.compress is not None and self.compressed is UNSET:
            raise FieldError("compress is supported by servers only.", param="compress", code=UNSUPPORTED)
        params = model.sampling.fill(self.params, self.given_parameters)
        return [self.conversation.prepare(model, params, self.predicted(model))]

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> ChatReply:
        (output,) = outputs
        return ChatReply(
            id=f"chatcmpl-{head.id}",
            created=head.created,
            model=head.model,
            choices=[self._choice(head, completion, model) for completion in output.outputs],
            usage=usage(outputs, model, compression=self.compressed),
            service_tier=head.service_tier or UNSET,
            prompt_token_ids=output.prompt_token_ids if self.return_token_ids else UNSET,
        )

    def streamer(self, head: ReplyHead, model: ModelFacts) -> ChatStreamer:
        before, conversation = self.conversation.before(model), self.conversation
        readers = [CompletionReader.after(conversation.parser(model), before) for _ in range(self.params.n)]
        return ChatStreamer(head, model, self, self.params, readers, self.compressed, timed=self.timed)

    def _accept(self, conversation: Conversation, report: CompressionReport) -> None:
        """Takes the conversation with its compressed texts."""
        self.conversation, self.compressed = conversation, CompressionReply.of(report)

    def _choice(self, head: ReplyHead, completion: CompletionOutput, model: ModelFacts) -> ChatChoice:
        before = self.conversation.before(model)
        reader = read_completion(self.conversation.parser(model), completion.text, before)
        message = ChatReplyMessage(content=reader.content, reasoning_content=reader.reasoning or UNSET)
        if reader.calls:
            message.content = reader.content or None
            message.tool_calls = [
                ToolCallReply(
                    id=call_id(head, completion.index, number),
                    function=CalledFunctionReply(call.name, call.arguments),
                )
                for number, call in enumerate(reader.calls)
            ]
        logprobs = None
        if completion.logprobs is not None:
            top = self.params.logprobs or 0
            entries = chat_logprobs(completion.token_ids, completion.logprobs, model.tokenizer, top, ids=self.timed)
            logprobs = ChatLogprobs(entries)
        return ChatChoice(
            index=completion.index,
            message=message,
            logprobs=logprobs,
            finish_reason=chat_finish(completion.finish_reason, reader.calls),
            token_ids=completion.token_ids if self.return_token_ids else UNSET,
        )

    def _check_continued(self, last: Message) -> None:
        """Raises FieldError if the last message cannot be continued."""
        name = "continue_final_message"
        if last["role"] != "assistant" or "tool_calls" in last:
            raise FieldError(
                f"{name} needs a last message of role assistant without tool calls.",
                param=name,
                hint="Remove it, or end with an assistant message to continue.",
            )
        if self.add_generation_prompt:
            message = f"{name} and add_generation_prompt exclude each other."
            raise FieldError(message, param=name, hint="Remove add_generation_prompt.")

    def _thinking(self) -> Thinking:
        """From OpenAI's reasoning_effort and vLLM's thinking_token_budget."""
        budget = self.thinking_token_budget
        if self.reasoning_effort is None:
            return DEFAULT_THINKING if budget is None else Thinking("on", budget, "thinking_token_budget")
        chosen = EFFORTS[self.reasoning_effort]
        if budget is None:
            return chosen
        if chosen.mode == "off":
            message = 'thinking_token_budget has nothing to limit: reasoning_effort is "none".'
            raise FieldError(message, param="thinking_token_budget", hint="Remove one of them.")
        return Thinking("on", budget, "thinking_token_budget")
