"""A model of a running server with OpenAI's API."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import orjson

from twofold.bench.client.response import Event
from twofold.bench.client.target import IncomingResponse, ServerTarget, exchange, streamed
from twofold.bench.endpoints.discover import MODELS, ServerFacts, find_server
from twofold.bench.endpoints.values import (
    count_at,
    error_message,
    object_at,
    objects_at,
    parts_at,
    read_object,
    redirection,
    sentence,
    text_at,
)
from twofold.cli.chat.base import ChatCompletion, PromptRequest
from twofold.cli.chat.phases import PhaseShare, RooflineShares, phase_line
from twofold.cli.console import Write, interrupts
from twofold.cli.options import RemoteOptions, SamplingOptions, changed_fields
from twofold.core.errors import (
    AccessError,
    BusyError,
    ContextLengthError,
    NetworkError,
    NotFoundError,
    TwofoldError,
    UsageError,
)
from twofold.core.params import StructuredOutputsParams
from twofold.core.record import Repetition
from twofold.core.report import RequestMetrics
from twofold.core.sampling_defaults import NAMES, NONE
from twofold.core.units import count

CHAT: Final = "/v1/chat/completions"
TEXT: Final = "/v1/completions"
TIMEOUT_S: Final = 30.0
OPTIONAL: Final = (
    *NAMES,
    *("seed", "stop", "presence_penalty", "frequency_penalty", "min_tokens"),
    *("ignore_eos", "stop_token_ids", "include_stop_str_in_output", "skip_special_tokens"),
)
"""Parameters that are sent only if they differ from their defaults."""


@dataclass(slots=True)
class _StreamState:
    """What a stream has sent so far. Times are seconds since the request was sent."""

    text: str = ""
    thinks: bool = False
    finish: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    first_s: float | None = None
    last_s: float = 0.0

    def token_counts(self) -> tuple[int | None, int | None]:
        """Prompt and output tokens in the usage; None if the server does not report them."""
        return count_at(self.usage, "prompt_tokens"), count_at(self.usage, "completion_tokens")


class RemoteModel:
    """``ChatModel`` over HTTP. ``model`` is its name on the server; None selects the first model of its list.

    Raises NetworkError if the server cannot be reached, AccessError, and NotFoundError for an unknown model.
    """

    has_template = True
    defaults = NONE

    def __init__(self, options: RemoteOptions, model: str | None) -> None:
        assert options.url is not None
        self._target = ServerTarget.of(options.url)
        self._exchange = partial(exchange, self._target, timeout_s=TIMEOUT_S)
        self._headers = {"user-agent": "twofold"}
        if options.api_key is not None:
            self._headers["authorization"] = f"Bearer {options.api_key}"
        self._ours = False
        self._state = _StreamState()
        self._facts = self._find(model)

    @property
    def name(self) -> str:
        return self._facts.model

    @property
    def context(self) -> int | None:
        return self._facts.context

    def complete(self, request: PromptRequest, write: Write) -> ChatCompletion:
        """``ChatModel.complete``. Estimates the length of the prompt by the usage of the last completion."""
        used = sum(filter(None, self._state.token_counts()))
        prompt, room = request.prompt, request.room
        if room > 1 and self.context is not None and used + room > self.context:
            self._state.usage = {}
            raise ContextLengthError("The context is full.")
        path = TEXT if isinstance(prompt, str) else CHAT
        body: dict[str, Any] = {"prompt" if path == TEXT else "messages": prompt}
        body |= {"model": self.name, "stream": True, "stream_options": {"include_usage": True}}
        body |= _sampling(request.sampling) | _structured(request.structure)
        if self._ours:
            body["twofold"] = {"explain": True}
        state = self._state = _StreamState()
        start = time.monotonic()
        with (
            interrupts() as interrupted,
            streamed(self._target, path, orjson.dumps(body), self._headers, interrupted.is_set) as response,
        ):
            if response.status is not None and response.status != 200:
                moved = redirection(response.status, response.headers)
                raise moved or _refusal(response.status, response.body())
            for event in _events(response):
                self._update(state, event, write, time.monotonic() - start)
        if not interrupted.is_set() and state.finish is None:
            raise NetworkError("The server ended the stream before the completion was finished.")
        finish = None if interrupted.is_set() else _recorded_finish(state.record) or state.finish
        return ChatCompletion(state.text, finish, *state.token_counts(), _repeats(state.record))

    def statistics(self) -> str:
        """``ChatModel.statistics``, from the server's record or else as measured by this client."""
        state = self._state
        prompts = objects_at(state.record, "prompts")
        if prompts:
            return _recorded_line(prompts[0])
        if state.first_s is None:
            return ""
        prompt, output = state.token_counts()
        if not prompt or not output:
            return f"TTFT {state.first_s * 1000:,.0f} ms · {state.last_s:.1f} s"
        cached = count_at(object_at(state.usage, "prompt_tokens_details"), "cached_tokens") or 0
        return phase_line(_metrics(prompt, cached, output, 0.0, state.first_s, state.last_s), None)

    def explain(self) -> list[str]:
        """``ChatModel.explain``: the phases of the server's record."""
        prompts = objects_at(self._state.record, "prompts")
        if not prompts:
            return []
        lines = [f"{'queue':<9}{prompts[0].get('queue_s', 0.0) * 1000:>10,.1f} ms"]
        for name in ("prefill", "decode"):
            phase = object_at(prompts[0], name)
            line = f"{name:<9}{prompts[0].get(name + '_s', 0.0) * 1000:>10,.1f} ms"
            line += f"  {count(phase.get('rows', 0), 'row')} in {count(phase.get('steps', 0), 'step')}"
            if phase.get("least_s"):
                line += f"; at least {phase['least_s'] * 1000:,.1f} ms ({phase.get('bound')})"
            lines.append(line)
        return lines

    def loading(self) -> str:
        """The model and its server."""
        context = "" if self.context is None else f", context {self.context:,} tokens"
        return f"{self.name} at {self._target}{context}"

    def as_json(self) -> dict[str, Any]:
        """``ChatModel.as_json``. ``twofold`` is the server's record or null."""
        state = self._state
        return {
            "model": self.name,
            "text": state.text,
            "finish_reason": state.finish,
            "usage": state.usage or None,
            "timing": {"ttft_s": state.first_s, "total_s": state.last_s},
            "twofold": state.record or None,
        }

    def models(self) -> list[str]:
        """``ChatModel.models``: the models of the server."""
        return [text_at(entry, "id") for entry in self._listed() if text_at(entry, "id")]

    def use(self, name: str) -> None:
        self._facts, self._state = self._find(name), _StreamState()

    def _find(self, model: str | None) -> ServerFacts:
        names = self.models()
        return find_server(self._exchange, self._headers, model or next(iter(names), None))

    def _listed(self) -> list[dict[str, Any]]:
        status, _, body = self._exchange("GET", MODELS, None, self._headers)
        try:
            entries = objects_at(read_object(body), "data") if status == 200 else []
        except ValueError:
            entries = []
        self._ours = any(entry.get("owned_by") == "twofold" for entry in entries)
        return entries

    def _update(self, state: _StreamState, event: Event, write: Write, moment: float) -> None:
        """Adds an event to the state and writes its text. Raises NetworkError if the server reports an error."""
        if event[1].strip() == b"[DONE]":
            return
        try:
            fields = read_object(event[1])
        except ValueError as error:
            raise NetworkError(f"The server's stream cannot be read: {error}.") from error
        if fields.get("error"):
            raise NetworkError(f"The server aborted the completion: {error_message(fields)}")
        state.usage = object_at(fields, "usage") or state.usage
        state.record = object_at(fields, "twofold") or state.record
        for choice in objects_at(fields, "choices")[:1]:
            delta = object_at(choice, "delta")
            thought = text_at(delta, "reasoning_content") or text_at(delta, "reasoning")
            text = parts_at(delta, "content")[0] or text_at(choice, "text")
            if thought or text:
                state.first_s, state.last_s = (moment if state.first_s is None else state.first_s), moment
            if thought:
                write(thought if state.thinks else f"<think>\n{thought}")
                state.thinks = True
            if text:
                write(f"\n</think>\n\n{text}" if state.thinks else text)
                state.thinks = False
                state.text += text
            state.finish = text_at(choice, "finish_reason") or state.finish


def _events(response: IncomingResponse) -> Iterator[Event]:
    if "event-stream" in response.headers.get("content-type", "") or response.status is None:
        yield from response.events()
        return
    raise NetworkError("The server does not stream completions.", hint="--url takes a server with OpenAI's API.")


def _sampling(options: SamplingOptions) -> dict[str, Any]:
    given = {name: getattr(options, name) for name in changed_fields(options) if name in OPTIONAL}
    body = {"max_tokens": options.max_tokens} | given
    biases = options.params().biases
    return body | ({"logit_bias": {str(token): bias for token, bias in biases.items()}} if biases else {})


def _structured(output: StructuredOutputsParams | None) -> dict[str, Any]:
    if output is None:
        return {}
    if output.json is not None:
        return {"response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": output.json}}}
    given = {"regex": output.regex, "choice": output.choice, "grammar": output.grammar}
    return {"structured_outputs": {name: value for name, value in given.items() if value is not None}}


def _refusal(status: int, body: bytes) -> TwofoldError:
    """The exception for an error status."""
    said = sentence(body)
    code = ""
    with suppress(ValueError):
        code = text_at(object_at(read_object(body), "error"), "code")
    if code == "context_length_exceeded" or (status == 400 and "context" in said.lower()):
        return ContextLengthError(said)
    if status in (401, 403):
        return AccessError(said, hint="Give a key with --api-key or TWOFOLD_API_KEY.")
    if status == 404:
        return NotFoundError(said, hint="In a chat, /models lists the models of the server.")
    if status in (429, 503, 529):
        return BusyError(f"The server is busy: {said}", retry_after_s=1.0, hint="Try again later.")
    return UsageError(said) if status < 500 else NetworkError(f"The server failed with status {status}: {said}")


def _recorded_finish(record: Mapping[str, Any]) -> str | None:
    """The engine's finish reason, which OpenAI's may not have; None if the server does not report it."""
    reasons = next(iter(objects_at(record, "prompts")), {}).get("finish_reasons")
    return reasons[0] if isinstance(reasons, list) and reasons and isinstance(reasons[0], str) else None


def _repeats(record: Mapping[str, Any]) -> Repetition | None:
    """What the server's record says of a repetition."""
    repeats = object_at(record, "repeats")
    tokens, times = count_at(repeats, "tokens"), count_at(repeats, "times")
    return Repetition(tokens, times) if tokens and times else None


def _recorded_line(record: Mapping[str, Any]) -> str:
    """The line of statistics from the server's record of a prompt."""
    ttft, decode = record.get("ttft_s"), record.get("decode_s") or 0.0
    prompt, cached, output = (
        count_at(record, name) or 0 for name in ("prompt_tokens", "cached_tokens", "output_tokens")
    )
    if ttft is None or not output:
        return ""
    shares = []
    for name in ("prefill", "decode"):
        phase = object_at(record, name)
        share, bound = phase.get("roofline_share"), phase.get("bound")
        shares.append(PhaseShare(share, bound) if share and bound in ("memory", "arithmetic") else None)
    return phase_line(
        _metrics(prompt, cached, output, record.get("queue_s") or 0.0, ttft, ttft + decode), RooflineShares(*shares)
    )


def _metrics(prompt: int, cached: int, output: int, queued: float, first: float, last: float) -> RequestMetrics:
    """Metrics of a completion of which only the times of the first and last token are known."""
    return RequestMetrics(0.0, queued, first, last, ((first, *[last] * (output - 1)),), prompt, cached)
