"""What OpenAI's two endpoints for text have in common, and how their answers are read.

A choice's ``delta`` (of a stream), ``message`` (of a whole chat) or the choice itself (of a completion) holds output:
its content, its thoughts (``reasoning_content``; Ollama, OpenRouter and newer vLLM say ``reasoning``), a refusal, the
names and arguments of calls. All of that was generated, so all of it counts; only the content is kept as text, for that
is what a later turn repeats.

How many tokens an event holds is told by ``token_ids`` (vLLM and Twofold, when asked), by log-probabilities, or by a
usage that grows from event to event (``continuous_usage_stats`` of vLLM and SGLang); else nobody knows.
An event whose tokens have no text yet counts as output: they were there at that moment. Empty is an event that could
have held output and did not; the role at the start, the finish reason and the usage are no such events.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Final

import orjson

from twofold.bench.base import BodyReader
from twofold.bench.endpoints.failures import UNNAMED, said_error, sentence
from twofold.bench.endpoints.options import EndpointOptions, Prompts
from twofold.bench.endpoints.values import count_at, length_at, object_at, objects_at, read_object, text_at
from twofold.bench.load.base import Ask, PromptMessage
from twofold.bench.record import UNKNOWN, RecordedResponse

DONE: Final = b"[DONE]"


class OpenAIEndpoint(ABC):
    """An endpoint that answers with ``choices``."""

    name: str
    path: str

    def __init__(self, options: EndpointOptions, prompts: Prompts) -> None:
        self.headers: Mapping[str, str] = options.all_headers()
        self._prompts = prompts
        self._length = options.length
        self._extra = dict(options.extra)
        own: dict[str, Any] = {}
        if options.stream:
            own["stream_options"] = {"include_usage": True}
            if options.usage_each:
                own["stream_options"]["continuous_usage_stats"] = True
        if options.ignore_eos:
            own["ignore_eos"] = True
        if options.token_ids:
            own["return_token_ids"] = True
        self._fixed = options.fixed_fields(own)

    def body(self, ask: Ask) -> bytes:
        told = self._fixed | self.prompt(self._prompts(ask))
        told[self._length] = ask.output_tokens
        return orjson.dumps(told | self._extra | dict(ask.fields))

    @abstractmethod
    def prompt(self, messages: tuple[PromptMessage, ...]) -> dict[str, Any]:
        """The field of the body that holds the prompt."""

    def reader(self, answer: RecordedResponse) -> BodyReader:
        return OpenAIReader(answer)

    def error(self, body: bytes) -> str:
        return sentence(body)


class OpenAIReader:
    """Reads chats and completions alike. A finish reason ends an answer, with or without ``[DONE]``."""

    __slots__ = ("_answer", "_counted")

    def __init__(self, answer: RecordedResponse) -> None:
        self._answer = answer
        self._counted: int | None = 0
        """Tokens that the usage has told of so far; None once an event with output came without a usage."""

    def event(self, name: str | None, data: bytes, moment: float) -> None:  # noqa: ARG002 - OpenAI names no events
        if data == DONE:
            self._answer.done = True
            return
        said = read_object(data)
        choices = said.get("choices")
        usage = said.get("usage")
        if said.get("error") or said.get("object") == "error":
            self._answer.error = said_error(said) or UNNAMED
        elif type(choices) is list and choices:
            self._choices(choices, usage, moment)
        if usage:
            read_usage(usage, self._answer)

    def whole(self, body: bytes, moment: float) -> None:
        answer = self._answer
        answer.streamed = False
        said = read_object(body)
        if said.get("error"):
            answer.error = said_error(said) or UNNAMED
            return
        choices = objects_at(said, "choices")
        if not choices:
            raise ValueError("it has no choices")
        read_usage(said.get("usage"), answer)
        parts = [_output(choice, "message") for choice in choices]
        answer.finish = next((reason for choice in choices if (reason := text_at(choice, "finish_reason"))), None)
        answer.done = True
        tokens = UNKNOWN if answer.completion_tokens is None else answer.completion_tokens
        content, chars = "".join(text for text, _ in parts), sum(chars for _, chars in parts)
        if chars or tokens > 0:
            _note(answer, moment, content, chars, tokens)

    def _choices(self, choices: list[Any], usage: object, moment: float) -> None:
        """An event with choices: nearly always one."""
        answer = self._answer
        content, chars, told, structural = "", 0, UNKNOWN, False
        for choice in choices:
            if type(choice) is not dict:
                raise ValueError("it has a choice that is no object")
            text, length = _output(choice, "delta")
            content += text
            chars += length
            count = _told_tokens(choice)
            if count != UNKNOWN:
                told = count if told == UNKNOWN else told + count
            reason = choice.get("finish_reason")
            if reason:
                answer.finish = reason if type(reason) is str else None
                answer.done = structural = True
        counted = self._grown(usage, chars > 0 or told > 0)
        tokens = counted if told == UNKNOWN else told
        if chars or tokens > 0:
            _note(answer, moment, content, chars, tokens)
        elif not structural and not _opens(choices[0]):
            answer.empty += 1

    def _grown(self, usage: object, output: bool) -> int:
        """Tokens of this event, where each event so far told the usage up to itself."""
        before = self._counted
        if before is None:
            return UNKNOWN
        now = count_at(usage, "completion_tokens") if type(usage) is dict else None
        if now is None:
            if output:
                self._counted = None
            return UNKNOWN
        self._counted = now
        return now - before if now > before else UNKNOWN


def _output(choice: Mapping[str, Any], place: str) -> tuple[str, int]:
    """The content that a choice adds, and how many characters of any kind."""
    found = choice.get(place)
    if type(found) is not dict:
        text = choice.get("text")
        return (text, len(text)) if type(text) is str else ("", 0)
    content = found.get("content")
    if type(content) is not str:
        content = ""
    if len(found) == 1 and content:
        return content, len(content)
    return content, len(content) + _unsaid(found)


def _unsaid(found: Mapping[str, Any]) -> int:
    """Characters of output that is no content. Servers that say ``reasoning`` in both spellings mean one text."""
    chars = len(text_at(found, "reasoning_content") or text_at(found, "reasoning")) + len(text_at(found, "refusal"))
    calls = [object_at(call, "function") for call in objects_at(found, "tool_calls")]
    for call in (*calls, object_at(found, "function_call")):
        chars += len(text_at(call, "name")) + len(text_at(call, "arguments"))
    return chars


def _told_tokens(choice: Mapping[str, Any]) -> int:
    """How many tokens a choice says that it adds."""
    count = length_at(choice, "token_ids")
    if count != UNKNOWN:
        return count
    logprobs = choice.get("logprobs")
    if type(logprobs) is not dict:
        return UNKNOWN
    count = length_at(logprobs, "content")
    return length_at(logprobs, "tokens") if count == UNKNOWN else count


def _opens(choice: Mapping[str, Any]) -> bool:
    """Whether an event without output is the one that says who speaks."""
    return "role" in object_at(choice, "delta")


def _note(answer: RecordedResponse, moment: float, content: str, chars: int, tokens: int) -> None:
    """Notes output. Characters of thoughts and calls count, but are not kept."""
    answer.chunk(moment, content, tokens)
    if chars != len(content):
        answer.chars[-1] = chars


def read_usage(usage: object, answer: RecordedResponse) -> None:
    """What was spent. ``prompt_tokens`` holds those that came from the cache."""
    if type(usage) is not dict:
        return
    prompt, completion = count_at(usage, "prompt_tokens"), count_at(usage, "completion_tokens")
    if prompt is not None:
        answer.prompt_tokens = prompt
    if completion is not None:
        answer.completion_tokens = completion
    cached = count_at(object_at(usage, "prompt_tokens_details"), "cached_tokens")
    if cached is not None:
        answer.cached_tokens = cached
    reasoning = count_at(object_at(usage, "completion_tokens_details"), "reasoning_tokens")
    if reasoning is not None:
        answer.reasoning_tokens = reasoning


class ChatEndpoint(OpenAIEndpoint):
    """Chat completions of OpenAI and compatible servers."""

    name = "chat"
    path = "/v1/chat/completions"

    def prompt(self, messages: tuple[PromptMessage, ...]) -> dict[str, Any]:
        return {"messages": [{"role": message.role, "content": message.text} for message in messages]}


class CompletionsEndpoint(OpenAIEndpoint):
    """Completions of OpenAI, without roles: the texts of all messages make one prompt, with nothing between them."""

    name = "completions"
    path = "/v1/completions"

    def prompt(self, messages: tuple[PromptMessage, ...]) -> dict[str, Any]:
        return {"prompt": "".join(message.text for message in messages)}
