"""/v1/chat/completions: bodies read, replies told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import only
from twofold.api.conversation import AS_BEFORE, Conversation, Thinking
from twofold.api.fields import FieldError
from twofold.api.openai.chat_stream import ChatStreamer
from twofold.api.openai.messages import ChatMessage, PromptCacheOptions, cache_points
from twofold.api.openai.replies import chat_completion
from twofold.api.openai.sampling import Count, SampledRequest, TokenId, TopLogprobs
from twofold.api.openai.tools import ChatToolChoice, ChatTools, chosen_tools
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import Message
from twofold.text.templates.chat import MAX_VARIABLE_CHARACTERS, RESERVED_VARIABLES, check_variables
from twofold.text.templates.messages import MAX_MESSAGES

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
"""How many tokens a model may think for an effort; thinking_token_budget says it exactly."""


class ChatRequest(SampledRequest, kw_only=True, dict=True):
    """A chat, and how its answers are sampled."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)]
    tools: ChatTools | None = None
    tool_choice: ChatToolChoice = "auto"
    parallel_tool_calls: bool = True
    reasoning_effort: Effort | None = None
    thinking_token_budget: TokenId | None = None
    chat_template_kwargs: TemplateVariables | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: Annotated[
        bool, Meta(description="The answer goes on from the last message, which is the assistant's.")
    ] = False
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None
    prompt_cache_retention: Literal["in_memory"] | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    modalities: Annotated[Any, only(["text"])] = None
    store: Literal[False] = False
    verbosity: Literal["medium"] | None = None
    audio: None = None
    function_call: None = None
    functions: None = None
    moderation: None = None
    prediction: None = None
    web_search_options: None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_variables(self.chat_template_kwargs or ())
        assert self.conversation, "it raises for what is impossible"
        assert self.params, "it raises for what is impossible"

    @cached_property
    def conversation(self) -> Conversation:
        tools, choice = chosen_tools(self.tools or (), self.tool_choice)
        messages = [message.message(f"messages[{index}]") for index, message in enumerate(self.messages)]
        self._check_continued(messages[-1])
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
            cache_points=cache_points(self.messages, self.prompt_cache_options),
        )

    @cached_property
    def params(self) -> SamplingParams:
        older, newer = self.max_tokens, self.max_completion_tokens
        if None not in (older, newer) and older != newer:
            raise FieldError(
                f"max_tokens is {older}, max_completion_tokens {newer}.",
                param="max_tokens",
                hint="Remove max_tokens.",
            )
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs needs logprobs.", param="top_logprobs", hint='Set "logprobs": true.')
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        return SamplingParams(
            **self.sampling_keywords(), max_tokens=older if newer is None else newer, logprobs=logprobs
        )

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        return [self.conversation.prepare(model, model.sampling.fill(self.params, self.asked), self.request_options)]

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> dict[str, Any]:
        (output,) = outputs
        return chat_completion(
            head,
            output,
            model,
            lambda: self.conversation.parser(model),
            top_logprobs=self.params.logprobs or 0,
            token_ids=self.return_token_ids,
        )

    def streamer(self, head: ReplyHead, model: ModelFacts) -> ChatStreamer:
        return ChatStreamer(
            head,
            model,
            [self.conversation.parser(model) for _ in range(self.params.n)],
            include_usage=self.include_usage,
            continuous_usage=self.continuous_usage,
            top_logprobs=self.params.logprobs,
            token_ids=self.return_token_ids,
        )

    def _check_continued(self, last: Message) -> None:
        """Raises FieldError for an answer that cannot go on from the last message."""
        name = "continue_final_message"
        if not self.continue_final_message:
            return
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
        """OpenAI's reasoning_effort, or vLLM's thinking_token_budget, which says exactly how much."""
        budget = self.thinking_token_budget
        if self.reasoning_effort is None:
            return AS_BEFORE if budget is None else Thinking("on", budget, "thinking_token_budget")
        chosen = EFFORTS[self.reasoning_effort]
        if budget is None:
            return chosen
        if chosen.mode == "off":
            message = 'thinking_token_budget has nothing to limit: reasoning_effort is "none".'
            raise FieldError(message, param="thinking_token_budget", hint="Remove one of them.")
        return Thinking("on", budget, "thinking_token_budget")
