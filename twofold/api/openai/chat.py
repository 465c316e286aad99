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
from twofold.api.body import CHOOSING, IGNORED, OFFERED, OMITTING, NonEmptyText, OwnFields, RequestObject, only
from twofold.api.cache_points import CachePoint
from twofold.api.completion import CompletionReader, read_completion
from twofold.api.compression import ChatCompression, CompressionReply, ConversationScoring
from twofold.api.fields import UNSUPPORTED, FieldError
from twofold.api.openai.bodies import CacheControl, Count, Images, JsonSchema, SampledRequest, TokenId, TopLogprobs
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
    unbilled,
)
from twofold.core.params import SamplingParams
from twofold.core.request import MAX_PINS, STORED_TTL, EngineRequest, RequestOptions, TimeToLive
from twofold.engine.compress import CompressionReport
from twofold.engine.outputs import CompletionOutput, RequestOutput
from twofold.engine.prompts import Message
from twofold.text.templates.chat import MAX_VARIABLE_CHARACTERS, RESERVED_VARIABLES, check_variables
from twofold.text.templates.messages import MAX_MESSAGES

TEXTS: Final = ("name", "tool_call_id", "thinking")
DEFAULT_TTL: Final = "30m"
MAX_INDEX: Final = 2**31 - 1
NEEDING_CONTENT: Final = ("system", "developer", "user")
"""Roles whose messages are nothing without content: models and tools may answer with none."""

ChatRole: TypeAlias = Literal["system", "developer", "user", "assistant", "tool", "function", "model", "ipython"]


class CacheBreakpoint(RequestObject):
    """The prompt up to here stays cached."""

    mode: Literal["explicit"]
    ttl: TimeToLive | None = None


class MarkedObject(RequestObject):
    """An object at whose end a cached prefix may end: OpenAI's mark, or Anthropic's."""

    prompt_cache_breakpoint: CacheBreakpoint | None = None
    cache_control: CacheControl | None = None

    @property
    def mark(self) -> CacheBreakpoint | None:
        """Its mark in OpenAI's form."""
        if self.prompt_cache_breakpoint is not None or self.cache_control is None:
            return self.prompt_cache_breakpoint
        return CacheBreakpoint(mode="explicit", ttl=self.cache_control.ttl)


class ChatTextPart(MarkedObject, kw_only=True):
    """A part of a message's text."""

    type: Annotated[Literal["text"], OFFERED]
    text: str


class ChatRefusalPart(MarkedObject, kw_only=True):
    """A refusal, which is text like any other."""

    type: Annotated[Literal["refusal"], OFFERED]
    refusal: str


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


class ReasoningDetail(RequestObject):
    """A part of the reasoning as servers send it: text, a summary, or data that only its maker can read."""

    type: str | None = None
    text: str | None = None
    content: str | None = None
    thinking: str | None = None
    summary: str | None = None
    format: Annotated[str, IGNORED] | None = None
    data: Annotated[str, IGNORED] | None = None


Reasoning: TypeAlias = str | ReasoningDetail | list[ReasoningDetail]


class ChatMessage(MarkedObject, kw_only=True):
    """One message, also as servers reply it: ``reasoning`` and ``reasoning_details`` are other names of
    ``reasoning_content``; ``prefix`` and ``partial`` ask for the continuation of the last message."""

    role: ChatRole
    content: str | list[str | ChatTextPart | ChatRefusalPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    reasoning_content: Reasoning | None = None
    reasoning: Reasoning | None = None
    reasoning_details: Reasoning | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[ChatCall] | None = None
    prefix: bool = False
    partial: bool = False
    images: Images | None = None
    audio: None = None
    function_call: None = None

    def message(self, where: str) -> Message:
        """The message in the form that templates read. Raises FieldError for a system or user message without
        content."""
        message: dict[str, Any] = {"role": self.role}
        message |= {name: value for name in TEXTS if (value := getattr(self, name)) is not None}
        if (reasoning := self._reasoning()) is not None:
            message["reasoning_content"] = reasoning
        if self.tool_calls is not None:
            message["tool_calls"] = [call.message() for call in self.tool_calls]
        content: Any = self.refusal if self.content is None else self.content
        if content is None and self.role in NEEDING_CONTENT:
            raise FieldError(f"{where}.content is required.", param=f"{where}.content")
        if isinstance(content, list):
            content = [{"type": "text", "text": text_of(part)} for part in content]
        return message | {"content": content}

    def _reasoning(self) -> str | None:
        given = (self.reasoning_content, self.reasoning, self.reasoning_details)
        found = next((each for each in given if each is not None), None)
        if found is None or isinstance(found, str):
            return found
        parts = found if isinstance(found, list) else [found]
        return "".join(part.text or part.content or part.thinking or part.summary or "" for part in parts) or None

    @property
    def continued_by(self) -> str | None:
        """The field that asks for the continuation of the message."""
        return "prefix" if self.prefix else "partial" if self.partial else None

    def unbilled(self) -> ChatMessage | None:
        """The message without a billing header, which is no part of a system prompt; None if nothing else is in it."""
        if self.role not in ("system", "developer") or self.content is None:
            return self
        if isinstance(self.content, str):
            content: Any = unbilled(self.content)
        else:
            texts = [(part, text_of(part)) for part in self.content]
            content = [_with_text(part, unbilled(text)) for part, text in texts if unbilled(text) or not text]
        return structs.replace(self, content=content) if content or not self.content else None

    def points(self, index: int, ttl: TimeToLive) -> Iterator[CachePoint]:
        """The marks of the message, the ``index``-th; they hold for ``ttl`` unless they have their own."""
        for number, part in enumerate(self.content if isinstance(self.content, list) else ()):
            if not isinstance(part, str) and (mark := part.mark) is not None:
                yield CachePoint(mark.ttl or ttl, message=index, part=number)
        if (mark := self.mark) is not None:
            yield CachePoint(mark.ttl or ttl, message=index)


class PromptCacheOptions(RequestObject):
    """Whether the whole prompt stays cached (implicit) or only prefixes with a breakpoint, and for how long."""

    mode: Literal["implicit", "explicit"] = "implicit"
    ttl: TimeToLive = DEFAULT_TTL


def text_of(part: str | ChatTextPart | ChatRefusalPart) -> str:
    if isinstance(part, str):
        return part
    return part.text if isinstance(part, ChatTextPart) else part.refusal


def _with_text(part: str | ChatTextPart | ChatRefusalPart, text: str) -> str | ChatTextPart | ChatRefusalPart:
    return structs.replace(part, text=text) if isinstance(part, ChatTextPart) else text


MAX_TOOLS: Final = 128
MAX_NAME_CHARS: Final = 128


ToolName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_NAME_CHARS)]


class ChatFunction(MarkedObject, kw_only=True):
    """A function that the model may call."""

    name: ToolName
    description: str | None = None
    parameters: JsonSchema | None = None
    strict: bool = False


class ChatTool(MarkedObject, kw_only=True):
    """A tool; only functions can be offered to a model."""

    type: Annotated[Literal["function"], OFFERED]
    function: ChatFunction

    def message(self) -> Message:
        """The tool as chat templates read it."""
        function = self.function
        return function_tool(function.name, function.description, function.parameters, strict=function.strict)


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
ChatToolChoice: TypeAlias = Annotated[Literal["auto", "none", "required"] | ChatNamedTool | ChatAllowedTools, CHOOSING]


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


class ChatReasoning(RequestObject):
    """OpenRouter's form of how the model thinks. The reply has the reasoning itself, and no summary."""

    enabled: bool | None = None
    effort: Effort | None = None
    max_tokens: TokenId | None = None
    exclude: Literal[False] = False
    summary: Annotated[str, IGNORED] | None = None


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
    cache_control: CacheControl | None = None
    reasoning: ChatReasoning | None = None
    store: Annotated[bool, IGNORED] = False
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
        self.messages = [kept for message in self.messages if (kept := message.unbilled()) is not None] or self.messages
        self.conversation  # noqa: B018 - both raise FieldError for impossible values
        self.params  # noqa: B018

    @cached_property
    def conversation(self) -> Conversation:
        tools, choice = chosen_tools(self.tools or (), self.tool_choice)
        check_choice(tools, choice)
        messages = [message.message(f"messages[{index}]") for index, message in enumerate(self.messages)]
        continues = self.continue_final_message or self.messages[-1].continued_by is not None
        if continues:
            self._check_continued(messages[-1])
        answer = () if self.twofold is None else tuple(self.twofold.answer_token_ids or ())
        if answer and (continues or self.add_generation_prompt is False):
            message = f"{ANSWER} begins an answer after the generation prompt."
            raise FieldError(message, param=ANSWER, hint="Remove continue_final_message and add_generation_prompt.")
        prompted = not continues if self.add_generation_prompt is None else self.add_generation_prompt
        return Conversation(
            messages=messages,
            tools=tools,
            choice=choice,
            parallel=self.parallel_tool_calls,
            thinking=self._thinking(),
            variables=self.chat_template_kwargs or {},
            add_generation_prompt=prompted,
            continues=continues,
            cache_points=self._cache_points(tools),
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

    def scoring(self) -> ConversationScoring | None:
        if self.compress is None:
            return None
        options = self.request_options
        return ConversationScoring.of(self.conversation, self._accept, self.compress, self.tier, options)

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
            system_fingerprint=model.fingerprint or UNSET,
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
        by = self.messages[-1].continued_by
        name = "continue_final_message" if self.continue_final_message else f"messages[{len(self.messages) - 1}].{by}"
        if last["role"] != "assistant" or "tool_calls" in last:
            raise FieldError(
                f"{name} needs a last message of role assistant without tool calls.",
                param=name,
                hint="Remove it, or end with an assistant message to continue.",
            )
        if self.add_generation_prompt:
            message = f"{name} and add_generation_prompt exclude each other."
            raise FieldError(message, param=name, hint="Remove add_generation_prompt.")

    def _cache_points(self, tools: Sequence[Message]) -> tuple[CachePoint, ...]:
        """The prefixes of the prompt that shall stay cached, at most MAX_PINS of them; ``tools`` are those shown."""
        options = self.prompt_cache_options
        ttl = DEFAULT_TTL if options is None else options.ttl
        shown = {tool["function"]["name"]: place for place, tool in enumerate(tools)}
        points = [
            CachePoint(mark.ttl or ttl, tool=shown[tool.function.name])
            for tool in self.tools or ()
            if (mark := tool.mark or tool.function.mark) is not None and tool.function.name in shown
        ]
        points += [point for index, message in enumerate(self.messages) for point in message.points(index, ttl)]
        if self.cache_control is not None:
            points.append(CachePoint(self.cache_control.ttl, message=len(self.messages) - 1))
        if options is not None and options.mode == "implicit":
            points.append(CachePoint(ttl))
        if self.prompt_cache_retention == STORED_TTL:
            points.append(CachePoint(STORED_TTL))
        return tuple(points[-MAX_PINS:])

    def _thinking(self) -> Thinking:
        """From OpenAI's reasoning_effort and vLLM's thinking_token_budget, or from OpenRouter's reasoning."""
        effort, budget, own = self.reasoning_effort, self.thinking_token_budget, self.reasoning
        names = "reasoning_effort", "thinking_token_budget"
        if own is not None:
            if effort is not None or budget is not None:
                message = f"reasoning and {names[effort is None]} both say how the model thinks."
                raise FieldError(message, param="reasoning", hint="Remove one of them.")
            effort, budget, names = own.effort, own.max_tokens, ("reasoning.effort", "reasoning.max_tokens")
            if own.enabled is False:
                return Thinking("off")
            if own.enabled and effort is None and budget is None:
                return Thinking("on", needed_by="reasoning.enabled")
        if effort is None:
            return DEFAULT_THINKING if budget is None else Thinking("on", budget, names[1])
        chosen = EFFORTS[effort]
        if budget is None:
            return chosen if chosen.needed_by is None else replace(chosen, needed_by=names[0])
        if chosen.mode == "off":
            message = f'{names[1]} has nothing to limit: {names[0]} is "none".'
            raise FieldError(message, param=names[1], hint="Remove one of them.")
        return Thinking("on", budget, names[1])
