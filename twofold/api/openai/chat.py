"""/v1/chat/completions: bodies read, replies told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from twofold.api.base import HasCommon, Job, ModelFacts, ReplyHead
from twofold.api.conversation import AS_BEFORE, Conversation, Thinking
from twofold.api.fields import FieldError, Fields, impossible
from twofold.api.openai.bodies import Common, Limits, open_body
from twofold.api.openai.chat_stream import ChatStreamer
from twofold.api.openai.messages import read_messages
from twofold.api.openai.replies import chat_completion
from twofold.api.openai.sampling import sampling_keywords
from twofold.api.openai.tools import read_tools
from twofold.core.params import MAX_LOGPROBS, MAX_TOKEN_ID, SamplingParams
from twofold.core.sampling_defaults import NAMES
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import Message
from twofold.text.templates.chat import check_variables

LIMITS: Final[Limits] = {
    "audio": (),
    "function_call": (),
    "functions": (),
    "modalities": (["text"],),
    "moderation": (),
    "prediction": (),
    "store": (False,),
    "verbosity": ("medium",),
    "web_search_options": (),
}
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


@dataclass(frozen=True, slots=True)
class ChatRequest(HasCommon):
    """A chat, and how its answers are drawn. ``asked``: sampling parameters that the body gave itself."""

    common: Common
    conversation: Conversation
    params: SamplingParams
    asked: frozenset[str] = frozenset()

    @classmethod
    def read(cls, body: object) -> Self:
        """Reads a body. Raises ParameterError for an impossible, unknown or unsupported field."""
        fields = open_body(body, LIMITS)
        common = Common.read(fields)
        tools, choice = read_tools(fields)
        messages, points = read_messages(fields)
        continues = _continues(fields, messages)
        request = cls(
            common=common,
            conversation=Conversation(
                messages=messages,
                tools=tools,
                choice=choice,
                parallel=fields.flag("parallel_tool_calls", True),
                thinking=read_thinking(fields),
                variables=_variables(fields),
                add_generation_prompt=fields.flag("add_generation_prompt", not continues),
                continues=continues,
                cache_points=points,
            ),
            params=SamplingParams(
                **sampling_keywords(fields), max_tokens=_max_tokens(fields), logprobs=_logprobs(fields)
            ),
            asked=fields.given(NAMES),
        )
        fields.close()
        return request

    def prepare(self, model: ModelFacts) -> Sequence[Job]:
        return [self.conversation.prepare(model, model.sampling.fill(self.params, self.asked), self.common.options)]

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> dict[str, Any]:
        (output,) = outputs
        return chat_completion(
            head,
            output,
            model,
            lambda: self.conversation.parser(model),
            top_logprobs=self.params.logprobs or 0,
            token_ids=self.common.return_token_ids,
        )

    def streamer(self, head: ReplyHead, model: ModelFacts) -> ChatStreamer:
        return ChatStreamer(
            head,
            model,
            [self.conversation.parser(model) for _ in range(self.params.n)],
            include_usage=self.common.include_usage,
            top_logprobs=self.params.logprobs,
            token_ids=self.common.return_token_ids,
        )


def _continues(fields: Fields, messages: Sequence[Message]) -> bool:
    """Whether the answer goes on from the last message, as vLLM's continue_final_message asks."""
    name = "continue_final_message"
    if not fields.flag(name):
        return False
    if messages[-1]["role"] != "assistant" or "tool_calls" in messages[-1]:
        raise FieldError(
            f"{name} needs a last message of role assistant without tool calls.",
            param=name,
            hint="Leave it out, or end with the beginning of the answer.",
        )
    if fields.flag("add_generation_prompt"):
        raise FieldError(
            f"{name} and add_generation_prompt exclude each other.", param=name, hint="Leave add_generation_prompt out."
        )
    return True


def read_thinking(fields: Fields) -> Thinking:
    """OpenAI's reasoning_effort, or vLLM's thinking_token_budget, which says exactly how much."""
    budget = fields.whole("thinking_token_budget", 0, MAX_TOKEN_ID)
    effort = fields.take("reasoning_effort")
    if effort is None:
        return AS_BEFORE if budget is None else Thinking("on", budget, "thinking_token_budget")
    chosen = EFFORTS[fields.choice("reasoning_effort", EFFORTS)]
    if budget is None:
        return chosen
    if chosen.mode == "off":
        message = 'thinking_token_budget has nothing to limit: reasoning_effort is "none".'
        raise FieldError(message, param="thinking_token_budget", hint="Remove one of them.")
    return Thinking("on", budget, "thinking_token_budget")


def _max_tokens(fields: Fields) -> int | None:
    """max_completion_tokens, or its older name max_tokens; None goes on to the end of the context."""
    older = fields.whole("max_tokens", 1, MAX_TOKEN_ID)
    newer = fields.whole("max_completion_tokens", 1, MAX_TOKEN_ID)
    if None not in (older, newer) and older != newer:
        raise FieldError(
            f"max_tokens is {older}, max_completion_tokens {newer}.", param="max_tokens", hint="Leave max_tokens out."
        )
    return older if newer is None else newer


def _logprobs(fields: Fields) -> int | None:
    wanted, most = fields.flag("logprobs"), fields.whole("top_logprobs", 0, MAX_LOGPROBS)
    if most and not wanted:
        raise FieldError("top_logprobs needs logprobs.", param="top_logprobs", hint='Set "logprobs": true.')
    return (most or 0) if wanted else None


def _variables(fields: Fields) -> Mapping[str, Any]:
    variables = fields.take("chat_template_kwargs") or {}
    if not isinstance(variables, dict):
        raise impossible("chat_template_kwargs", variables, "an object")
    check_variables(variables)
    return variables
