"""Bodies of OpenAI's chats and completions, read into what the engine takes: prompts and ``SamplingParams``."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

from twofold.core.params import MAX_LOGPROBS, MAX_SEED, MAX_TOKEN_ID, SamplingParams, StructuredOutputsParams
from twofold.core.request import RequestOptions
from twofold.engine.offline.bodies import Limits, open_body, read_options, read_texts
from twofold.engine.offline.fields import FieldError, Fields, impossible, unsupported
from twofold.engine.offline.replies import ReplyHead, chat_completion, text_completion
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import GivenPrompt, Message
from twofold.text.tokenizer import Tokenizer

COMPLETION_TOKENS: Final = 16
"""OpenAI's default of max_tokens for /v1/completions; a chat goes on to the end of the context."""
LEAST_SEED: Final = -(1 << 63)

SAME_NAME: Final = (
    "n",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "stop_token_ids",
    "min_tokens",
    "ignore_eos",
    "skip_special_tokens",
    "include_stop_str_in_output",
)
"""Fields that ``SamplingParams`` knows by the same name and checks itself."""

SHARED_LIMITS: Final[Limits] = {
    "stream": (False,),
    "stream_options": (),
    "service_tier": ("auto", "default"),
}
CHAT_LIMITS: Final[Limits] = {
    **SHARED_LIMITS,
    "audio": (),
    "function_call": (),
    "functions": (),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "prediction": (),
    "prompt_cache_retention": (),
    "reasoning_effort": (),
    "store": (False,),
    "verbosity": (),
    "web_search_options": (),
}
COMPLETION_LIMITS: Final[Limits] = {**SHARED_LIMITS, "suffix": ("",)}

TEMPLATE_NAMES: Final = frozenset(
    {"messages", "tools", "add_generation_prompt", "special_tokens", "tokenize", "trust_content"}
)
"""Variables of chat templates that a body sets by other fields, or not at all."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The body of /v1/chat/completions. ``variables`` go to the chat template.

    ``tools`` are shown to the model; what it makes of them is in the answer's text, as it wrote it.
    """

    model: str | None
    messages: Sequence[Message]
    tools: Sequence[Message] | None
    variables: Mapping[str, Any]
    add_generation_prompt: bool
    return_token_ids: bool
    params: SamplingParams
    options: RequestOptions

    @classmethod
    def read(cls, body: object, handled: Collection[str] = ()) -> Self:
        """Reads a body; ``handled`` are fields that the caller sees to, such as stream.

        Raises ParameterError for an impossible, unknown or unsupported field.
        """
        fields = open_body(body, handled, CHAT_LIMITS)
        request = cls(
            model=fields.text("model"),
            messages=_messages(fields),
            tools=_tools(fields),
            variables=_variables(fields),
            add_generation_prompt=fields.flag("add_generation_prompt", True),
            return_token_ids=fields.flag("return_token_ids"),
            options=read_options(fields),
            params=SamplingParams(
                **_keywords(fields), max_tokens=_chat_tokens(fields), logprobs=_chat_logprobs(fields)
            ),
        )
        fields.close()
        return request

    def prompts(self, tokenizer: Tokenizer) -> list[GivenPrompt]:
        ids = tokenizer.apply_chat_template(
            self.messages, tools=self.tools, add_generation_prompt=self.add_generation_prompt, **self.variables
        )
        return [GivenPrompt(token_ids=tuple(ids))]

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], tokenizer: Tokenizer) -> dict[str, Any]:
        (output,) = outputs
        return chat_completion(
            head, output, tokenizer, top_logprobs=self.params.logprobs or 0, token_ids=self.return_token_ids
        )


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """The body of /v1/completions.

    ``echo`` puts the prompt before each answer; ``prompt_only`` leaves the answer away, which OpenAI writes
    max_tokens 0: the token that is drawn nevertheless is dropped.
    """

    model: str | None
    given: tuple[GivenPrompt, ...]
    echo: bool
    prompt_only: bool
    return_token_ids: bool
    params: SamplingParams
    options: RequestOptions

    @classmethod
    def read(cls, body: object, handled: Collection[str] = ()) -> Self:
        """Reads a body; ``handled`` are fields that the caller sees to, such as stream.

        Raises ParameterError for an impossible, unknown or unsupported field.
        """
        fields = open_body(body, handled, COMPLETION_LIMITS)
        echo = fields.flag("echo")
        logprobs = fields.whole("logprobs", 0, MAX_LOGPROBS)
        most = fields.whole("max_tokens", 0 if echo else 1, MAX_TOKEN_ID)
        request = cls(
            model=fields.text("model"),
            given=read_texts(fields, "prompt"),
            echo=echo,
            prompt_only=most == 0,
            return_token_ids=fields.flag("return_token_ids"),
            options=read_options(fields),
            params=SamplingParams(
                **_keywords(fields),
                best_of=fields.take("best_of"),
                max_tokens=COMPLETION_TOKENS if most is None else most or 1,
                logprobs=logprobs,
                prompt_logprobs=logprobs if echo else None,
            ),
        )
        fields.close()
        return request

    def prompts(self, tokenizer: Tokenizer) -> list[GivenPrompt]:  # noqa: ARG002 - the engine makes tokens of text
        return list(self.given)

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], tokenizer: Tokenizer) -> dict[str, Any]:
        return text_completion(
            head, outputs, tokenizer, echo=self.echo, prompt_only=self.prompt_only, token_ids=self.return_token_ids
        )


def _keywords(fields: Fields) -> dict[str, Any]:
    """Keywords of ``SamplingParams`` that both endpoints have."""
    keywords = {name: value for name in SAME_NAME if (value := fields.take(name)) is not None}
    return keywords | {
        "seed": _seed(fields),
        "logit_bias": _logit_bias(fields),
        "structured_outputs": _structured_outputs(fields),
    }


def _seed(fields: Fields) -> int | None:
    """OpenAI's seeds are signed; one below 0 stands for the unsigned number of the same bits."""
    seed = fields.whole("seed", LEAST_SEED, MAX_SEED)
    return None if seed is None else seed & MAX_SEED


def _logit_bias(fields: Fields) -> dict[int, float] | None:
    """Keys of JSON objects are text; here they are the digits of token ids."""
    biases = fields.take("logit_bias")
    if biases is None:
        return None
    if not isinstance(biases, dict) or not all(key.isascii() and key.isdigit() and len(key) < 20 for key in biases):
        raise impossible("logit_bias", biases, "an object from token ids to numbers")
    return {int(key): value for key, value in biases.items()}


def _structured_outputs(fields: Fields) -> StructuredOutputsParams | None:
    """The form of the answer, as OpenAI's response_format says it or as vLLM's structured_outputs."""
    formatted, extra = _response_format(fields), fields.take("structured_outputs")
    if extra is None:
        return formatted
    if formatted is not None:
        raise FieldError(
            "response_format and structured_outputs both say what form the answer has.",
            param="structured_outputs",
            hint="Leave one of them out.",
        )
    if not isinstance(extra, dict):
        raise impossible("structured_outputs", extra, "an object")
    return StructuredOutputsParams(**extra)


def _response_format(fields: Fields) -> StructuredOutputsParams | None:
    chosen = fields.inner("response_format")
    if chosen is None:
        return None
    kind = chosen.choice("type", ("text", "json_object", "json_schema"))
    form = None
    if kind == "json_object":
        form = StructuredOutputsParams(json_object=True)
    elif kind == "json_schema":
        form = _json_schema(Fields(chosen.require("json_schema"), "response_format.json_schema"))
    chosen.close()
    return form


def _json_schema(described: Fields) -> StructuredOutputsParams:
    """A schema with its labels. ``strict`` may be off: the answer keeps to the schema all the same."""
    for label in ("name", "description"):
        described.text(label)
    described.flag("strict")
    schema = described.take("schema")
    described.close()
    if schema is None:
        return StructuredOutputsParams(json_object=True)
    if not isinstance(schema, dict):
        raise impossible("response_format.json_schema.schema", schema, "a JSON schema")
    return StructuredOutputsParams(json=schema)


def _chat_tokens(fields: Fields) -> int | None:
    """max_completion_tokens, or its older name max_tokens; None goes on to the end of the context."""
    older = fields.whole("max_tokens", 1, MAX_TOKEN_ID)
    newer = fields.whole("max_completion_tokens", 1, MAX_TOKEN_ID)
    if None not in (older, newer) and older != newer:
        raise FieldError(
            f"max_tokens is {older}, max_completion_tokens {newer}.", param="max_tokens", hint="Leave max_tokens out."
        )
    return older if newer is None else newer


def _chat_logprobs(fields: Fields) -> int | None:
    wanted, most = fields.flag("logprobs"), fields.whole("top_logprobs", 0, MAX_LOGPROBS)
    if most and not wanted:
        raise FieldError("top_logprobs needs logprobs.", param="top_logprobs", hint='Set "logprobs": true.')
    return (most or 0) if wanted else None


def _messages(fields: Fields) -> Sequence[Message]:
    """The messages without their null fields; what they hold is for the chat template to check."""
    messages = fields.require("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise impossible("messages", messages, "a list of objects")
    return [{name: value for name, value in m.items() if value is not None or name == "content"} for m in messages]


def _tools(fields: Fields) -> Sequence[Message] | None:
    """The tools that the template shows to the model: none where none may be called."""
    tools, choice = fields.take("tools"), fields.take("tool_choice")
    if choice not in (None, "none", "auto"):
        raise unsupported(f"tool_choice {choice!r:.60}", 'Use "auto" or "none".')
    if tools is None:
        return None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise impossible("tools", tools, "a list of objects")
    for index, tool in enumerate(tools):
        if tool.get("type") != "function" or not isinstance(tool.get("function"), dict):
            raise unsupported(f"tools[{index}]", 'A tool is {"type": "function", "function": {…}}.')
    return None if choice == "none" or not tools else tools


def _variables(fields: Fields) -> Mapping[str, Any]:
    variables = fields.take("chat_template_kwargs") or {}
    if not isinstance(variables, dict):
        raise impossible("chat_template_kwargs", variables, "an object")
    for name in variables:
        if name in TEMPLATE_NAMES:
            raise unsupported(f"chat_template_kwargs.{name}", "Leave it out: fields of the body say it.")
    return variables
