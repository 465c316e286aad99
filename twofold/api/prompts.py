"""Prompts of all API protocols: chats, texts to continue, texts with a gap to fill in, and texts to embed.

Messages and tools have the form of OpenAI's chats, because chat templates expect it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeAlias

from twofold.api.base import ModelFacts, ReplyHead, Streamer
from twofold.api.cache_points import CachePoint, find_pins
from twofold.api.fields import UNSUPPORTED, FieldError, omission, warn
from twofold.core.errors import ParameterError, closest_match, quoted, spelled
from twofold.core.json_formats import enforceable
from twofold.core.params import SamplingParams, ThinkingParams
from twofold.core.request import EngineRequest, PoolingParams, RequestOptions, TextOrTokens, TimeToLive
from twofold.engine.prompts import Message
from twofold.text.detokenize import StreamDetokenizer
from twofold.text.parsers.base import SectionParser
from twofold.text.parsers.family import left_out, name_of
from twofold.text.parsers.thinking import ThinkingMarks
from twofold.text.prompt_limit import PromptLimit
from twofold.text.tokenizers.tokenizer import ChatOptions

ThinkingMode = Literal["default", "off", "on"]


@dataclass(frozen=True, slots=True)
class Thinking:
    """Whether the model thinks first, and for how many tokens at most.

    mode        "default" leaves it to the chat template
    needed_by   the field that a model without a thinking mode does not support; None if the field is only a limit
    """

    mode: ThinkingMode = "default"
    budget: int | None = None
    needed_by: str | None = None


@dataclass(frozen=True, slots=True)
class NamedTool:
    """The one tool that must be called."""

    name: str


ToolChoice: TypeAlias = Literal["auto", "none", "required"] | NamedTool
DEFAULT_THINKING: Final = Thinking()
ANSWER: Final = "twofold.answer_token_ids"
"""The field of ``Conversation.answer``."""


BILLING_HEADER: Final = "x-anthropic-billing-header:"
"""Starts a line of Claude Code's system prompt. It has a number that may differ in each request, so that no longer
prefix would be found in the cache; proxies send it on to other APIs."""


def unbilled(text: str) -> str:
    """The text of a system message without the leading lines of the billing header."""
    while text.lstrip().startswith(BILLING_HEADER):
        text = text.lstrip().partition("\n")[2].lstrip("\n")
    return text


def function_tool(name: str, description: str | None, parameters: object, *, strict: bool) -> Message:
    """A tool as chat templates read it."""
    given = {"name": name, "description": description, "parameters": parameters, "strict": strict or None}
    return {"type": "function", "function": {key: value for key, value in given.items() if value is not None}}


def function_call(call_id: str | None, name: str, arguments: str | Mapping[str, Any]) -> Message:
    """A tool call of an assistant's message as chat templates read it."""
    function = {"name": name, "arguments": arguments}
    return ({} if call_id is None else {"id": call_id}) | {"type": "function", "function": function}


@dataclass(slots=True)
class DraftMessage:
    """A message while its parts are read. ``result_of`` is the id of the call whose result it is.

    held   time to live of each prefix that shall stay cached, and the kind and index of the text or call that ends it
    """

    role: str
    texts: list[str] = field(default_factory=list)
    reasoning: str | None = None
    calls: list[Message] = field(default_factory=list)
    result_of: str | None = None
    held: list[tuple[TimeToLive, Literal["text", "call"], int]] = field(default_factory=list)

    def hold(self, kind: Literal["text", "call"], ttl: TimeToLive | None) -> None:
        """The prompt up to the last text or call stays cached for ``ttl``."""
        if ttl is not None:
            self.held.append((ttl, kind, max(0, len(self.texts if kind == "text" else self.calls) - 1)))

    def message(self) -> Message:
        """The message as chat templates read it."""
        content: Any = self.texts[0] if self.texts else None if self.calls else ""
        if len(self.texts) > 1:
            content = [{"type": "text", "text": text} for text in self.texts]
        message: dict[str, Any] = {"role": self.role, "content": content}
        if self.reasoning is not None:
            message["reasoning_content"] = self.reasoning
        if self.calls:
            message["tool_calls"] = self.calls
        if self.result_of is not None:
            message["tool_call_id"] = self.result_of
        return message

    def points(self, index: int) -> Iterator[CachePoint]:
        """The cache points of the message, which is the ``index``-th of its conversation."""
        parts = len(self.texts) or (0 if self.calls else 1)
        for ttl, kind, number in self.held:
            yield CachePoint(ttl=ttl, message=index, part=number if kind == "text" else parts + number)


@dataclass(frozen=True, slots=True)
class Conversation:
    """A chat up to the requested completion. ``variables`` go to the chat template.

    choice         which tools may be called; with "none" the model does not see them
    parallel       whether one completion may have several calls; a named tool is called exactly once
    continues      the completion continues the last message, which is the assistant's
    cache_points   prefixes of the prompt that shall stay cached, in the order of the prompt
    answer         tokens with which the completion has begun: they follow the prompt, and the reply goes on after them
    """

    messages: Sequence[Message]
    tools: Sequence[Message] = ()
    choice: ToolChoice = "auto"
    parallel: bool = True
    thinking: Thinking = DEFAULT_THINKING
    variables: Mapping[str, Any] = field(default_factory=dict)
    add_generation_prompt: bool = True
    continues: bool = False
    cache_points: tuple[CachePoint, ...] = ()
    answer: tuple[int, ...] = ()

    def prepare(self, model: ModelFacts, params: SamplingParams, options: RequestOptions) -> EngineRequest:
        """The engine's request: the rendered prompt as token ids, ``params`` with settings for tools and thinking, and
        ``options`` with cache pins.

        Raises TemplateError if the template refuses the messages, ContextLengthError if the prompt is too long,
        ParameterError for a feature that the model does not support.
        """
        marks, thinking = model.format.thinking, self.thinking
        if marks is None and thinking.needed_by is not None and thinking.mode == "on":
            raise FieldError(
                f"{thinking.needed_by} is not supported by this model: it has no thinking mode.",
                param=thinking.needed_by,
                code=UNSUPPORTED,
                hint="Remove it, or use a reasoning model.",
            )
        keywords: ChatOptions = {
            "add_generation_prompt": self.add_generation_prompt and not self.continues,
            "continue_final_message": self.continues,
            "chat_template_kwargs": self._variables(marks),
        }
        tokenizer = model.tokenizer.within(PromptLimit(model.context))
        ids, support = model.format.tokenized(tokenizer, self.messages, self._callable, warn, **keywords)

        def render(messages: Sequence[Message], tools: Sequence[Message] | None) -> str:
            shown, tools = model.format.shown(messages, tools, support)
            return tokenizer.apply_chat_template(shown, tools=tools, tokenize=False, exact_content=True, **keywords)

        if self.cache_points:
            pins = find_pins(self.cache_points, self.messages, self._callable, ids, model, render)
            options = replace(options, cache_pins=pins)
        if self.answer:
            self._check_answer(model)
            ids = [*ids, *self.answer]
            PromptLimit(model.context).check(len(ids))
        params = self._params(model, marks, params)
        return EngineRequest(tuple(ids), params, options, answered=len(self.answer))

    def before(self, model: ModelFacts) -> str:
        """The text of ``answer``, without an incomplete character at its end."""
        skips = not self._keeps_special(model)
        detokenizer = StreamDetokenizer(model.tokenizer, skip_special_tokens=skips, continuation=True)
        return "".join(map(detokenizer.push, self.answer))

    def _check_answer(self, model: ModelFacts) -> None:
        """Raises FieldError for tokens that the model does not have."""
        vocab = model.tokenizer.vocab_size
        for token in self.answer:
            if token >= vocab:
                raise FieldError(
                    f"{ANSWER} contains {token}, which is outside the vocabulary of {vocab} tokens.", param=ANSWER
                )

    def _keeps_special(self, model: ModelFacts) -> bool:
        marked = self._callable is not None or model.format.thinking is not None
        return model.format.keeps_special and marked

    def parser(self, model: ModelFacts) -> SectionParser:
        """A parser that divides one completion into sections."""
        return model.format.parser(self._callable, parallel=self._several, opened=self._opened(model))

    @property
    def _several(self) -> bool:
        return self.parallel and not isinstance(self.choice, NamedTool)

    @property
    def _callable(self) -> Sequence[Message] | None:
        """The tools that the model is shown; None if there are none."""
        return self.tools if self.tools and self.choice != "none" else None

    def _opened(self, model: ModelFacts) -> bool:
        """Whether the prompt ends inside the thinking section; if the switch is set, the template decides that."""
        marks = model.format.thinking
        if marks is None:
            return False
        if self.continues:
            content = self.messages[-1].get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            text = "".join(part.get("text") or "" for part in parts)
            return text.rfind(marks.start) > text.rfind(marks.end)
        variables = self._variables(marks)
        return marks.opened if marks.switch not in variables else model.format.opened(variables)

    def _thinks_now(self, model: ModelFacts, marks: ThinkingMarks) -> bool:
        """Whether the completion goes on inside the thinking section."""
        text = self.before(model)
        opened, closed = text.rfind(marks.start), text.rfind(marks.end)
        return opened > closed if opened >= 0 or closed >= 0 else self._opened(model)

    def _variables(self, marks: ThinkingMarks | None) -> dict[str, Any]:
        """The template's variables, with the model's switch for thinking if it has one."""
        if marks is None or marks.switch is None or self.thinking.mode == "default":
            return dict(self.variables)
        return {**self.variables, marks.switch: self.thinking.mode == "on"}

    def _params(self, model: ModelFacts, marks: ThinkingMarks | None, params: SamplingParams) -> SamplingParams:
        note_schema(params)
        params = self._with_calls(model, params)
        if (self.continues or self.answer) and params.structured_outputs is not None:
            raise ParameterError(
                "A prefill cannot be combined with structured output or a forced tool call.",
                param=ANSWER if self.answer else "messages",
                hint="End with a user message, or remove the structured output.",
            )
        if marks is not None and (self._budget(marks) is not None or params.structured_outputs is not None):
            start = () if self._thinks_now(model, marks) else marks.start_ids
            section = ThinkingParams(start=start, end=marks.end_ids, budget=self._budget(marks))
            params = replace(params, thinking=section)
        if self._callable is not None and model.format.stop_token_ids:
            params = replace(params, stop_token_ids=(*params.stop_tokens, *model.format.stop_token_ids))
        if self._keeps_special(model):
            params = replace(params, skip_special_tokens=False)
        return params

    def _budget(self, marks: ThinkingMarks) -> int | None:
        """Maximum tokens of the thinking section; a budget of 0 turns thinking off for a model without a switch."""
        if self.thinking.mode == "off" and marks.switch is None:
            return 0
        return self.thinking.budget

    def _with_calls(self, model: ModelFacts, params: SamplingParams) -> SamplingParams:
        """``params`` with the structured output of tool calls, if a call is required or both are possible. A format
        applies to completions that answer with text, so a required call replaces it."""
        tools, content = self.tools, params.structured_outputs
        if self.choice == "none" or (self.choice == "auto" and not (tools and content is not None)):
            return params
        if isinstance(self.choice, NamedTool):
            tools = [tool for tool in tools if tool["function"]["name"] == self.choice.name]
        for tool in tools:
            for part in left_out(tool):
                warn(f"{part} in the schema of {spelled(name_of(tool))} is not enforced")
        if self.choice == "auto" and content is not None:
            outputs = model.format.calls_or(tools, content, parallel=self._several)
            return replace(params, structured_outputs=outputs)
        outputs = model.format.call_grammar(tools, parallel=self._several)
        return replace(params, structured_outputs=outputs)


def check_choice(tools: Sequence[Message], choice: ToolChoice) -> None:
    """Raises FieldError if a tool must be called that is not among ``tools``, or any tool although there is none. If a
    tool was omitted, the error names it as the cause."""
    name = choice.name if isinstance(choice, NamedTool) else None
    known = [tool["function"]["name"] for tool in tools]
    if choice in ("auto", "none") or (known if name is None else name in known):
        return
    if (cause := omission(name=name)) is not None:
        raise cause
    if name is None:
        raise FieldError("tool_choice requires a call, but tools is empty.", param="tool_choice")
    close = closest_match(name, known)
    hint = f"Did you mean {close!r}?" if close else None
    raise FieldError(f"tool_choice names {quoted(name)}, which is not in tools.", param="tool_choice", hint=hint)


def note_schema(params: SamplingParams | PoolingParams) -> None:
    """Names what of the schema of a completion cannot be enforced in the warning of the response."""
    outputs = params.structured_outputs if isinstance(params, SamplingParams) else None
    schema = None if outputs is None else outputs.json
    if isinstance(schema, str):
        with suppress(ValueError, RecursionError):  # the engine reports it
            schema = json.loads(schema)
    if isinstance(schema, Mapping):
        for part in enforceable(schema, strict=True)[1]:
            warn(f"{part} in the schema of the completion is not enforced")


def tokenized(
    prompt: TextOrTokens, model: ModelFacts, params: SamplingParams | PoolingParams, options: RequestOptions
) -> EngineRequest:
    """The request for a prompt. Raises ContextLengthError if it leaves no room for a completion."""
    note_schema(params)
    room = PromptLimit(model.context, 1 if isinstance(params, SamplingParams) else 0)
    if isinstance(prompt, str):
        return EngineRequest(tuple(model.tokenizer.within(room).encode(prompt)), params, options, prompt)
    room.check(len(prompt))
    return EngineRequest(prompt, params, options)


def infilled(
    prefix: str, suffix: str, model: ModelFacts, params: SamplingParams, options: RequestOptions
) -> EngineRequest:
    """The request for the text between two texts. Raises ContextLengthError if they are too long, ParameterError if the
    model has no tokens for infilling."""
    ids = model.tokenizer.within(PromptLimit(model.context)).encode_infill(prefix, suffix)
    assert model.tokenizer.infill is not None, "encode_infill needs it"
    ends = tuple(dict.fromkeys((*params.stop_tokens, *model.tokenizer.infill.ends)))
    return EngineRequest(tuple(ids), replace(params, stop_token_ids=ends), options, prefix)


class PoolingRequest:
    """A ``DialectRequest`` for vectors."""

    __slots__ = ()

    @property
    def stream(self) -> bool:
        return False

    @property
    def request_options(self) -> RequestOptions:
        return RequestOptions()

    @property
    def params(self) -> PoolingParams:
        return PoolingParams()

    def jobs(self, model: ModelFacts, prompts: Iterable[TextOrTokens]) -> list[EngineRequest]:
        """A request for each prompt. Raises ParameterError for a number of dimensions that the model does not have."""
        params, options = self.params, self.request_options
        params.check(model.hidden_size)
        return [tokenized(prompt, model, params, options) for prompt in prompts]

    def streamer(self, head: ReplyHead, model: ModelFacts) -> Streamer:  # noqa: ARG002 - see ``stream``
        raise AssertionError("vectors are not streamed")
