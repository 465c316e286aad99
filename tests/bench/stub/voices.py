"""The events and bodies of each API, by the public references of OpenAI and Anthropic."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Final, NamedTuple


class Counts(NamedTuple):
    """Tokens of a request and of its completion so far."""

    prompt: int
    completion: int = 0


class Voice(ABC):
    """One API. Events are complete, with their blank line; line ends are LF."""

    @abstractmethod
    def opening(self, counts: Counts) -> list[bytes]:
        """Events before any output."""

    @abstractmethod
    def text(self, text: str, ids: tuple[int, ...] | None, usage: Counts | None) -> bytes:
        """An event with output; ``ids`` and ``usage`` where it is to say how many tokens it holds."""

    @abstractmethod
    def ping(self) -> bytes: ...

    @abstractmethod
    def failure(self, message: str) -> bytes:
        """An error in the middle of a stream."""

    @abstractmethod
    def closing(self, usage: Counts | None, done: bool) -> list[bytes]:
        """Events after all output."""

    @abstractmethod
    def whole(self, text: str, usage: Counts | None) -> bytes:
        """The body of a completion without a stream."""

    @abstractmethod
    def error(self, status: int, message: str) -> bytes:
        """The body of a response without a completion."""


class OpenAI(Voice):
    """The common part of both APIs of OpenAI."""

    kind: str
    nothing: ClassVar[Mapping[str, Any]]

    def ping(self) -> bytes:
        return b": keep-alive\n\n"

    def failure(self, message: str) -> bytes:
        return _data({"error": {"message": message, "type": "server_error", "code": 500}})

    def closing(self, usage: Counts | None, done: bool) -> list[bytes]:
        events = [_data(self._body([self._choice(self.nothing, "length")]))] if done else []
        if usage is not None:
            events.append(_data({**self._body([]), "usage": _usage(usage)}))
        return [*events, b"data: [DONE]\n\n"] if done else events

    def text(self, text: str, ids: tuple[int, ...] | None, usage: Counts | None) -> bytes:
        if usage is None:
            return self._plain(text, ids)
        body = self._body([self._choice(self._delta(text), None)])
        return _data({**body, "usage": _usage(usage)})

    def error(self, status: int, message: str) -> bytes:
        kind = "rate_limit_error" if status == 429 else "server_error" if status >= 500 else "invalid_request_error"
        return _dump({"error": {"message": message, "type": kind, "param": None, "code": None}})

    @lru_cache(maxsize=256)  # noqa: B019 - there are three voices
    def _plain(self, text: str, ids: tuple[int, ...] | None) -> bytes:
        choice = self._choice(self._delta(text), None)
        return _data(self._body([choice if ids is None else {**choice, "token_ids": ids}]))

    @abstractmethod
    def _delta(self, text: str) -> dict[str, Any]: ...

    def _choice(self, delta: Mapping[str, Any], finish: str | None) -> dict[str, Any]:
        return {"index": 0, **delta, "finish_reason": finish}

    def _body(self, choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": "stub-1", "object": self.kind, "created": 1, "model": "stub", "choices": choices}


class Chat(OpenAI):
    kind = "chat.completion.chunk"
    nothing: ClassVar = {"delta": {}}

    def opening(self, counts: Counts) -> list[bytes]:  # noqa: ARG002 - only Anthropic's says it at once
        return [_data(self._body([self._choice({"delta": {"role": "assistant", "content": ""}}, None)]))]

    def whole(self, text: str, usage: Counts | None) -> bytes:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "length"}
        return _dump({**self._body([choice]), "object": "chat.completion", **_told(usage)})

    def _delta(self, text: str) -> dict[str, Any]:
        return {"delta": {"content": text}}


class Completions(OpenAI):
    kind = "text_completion"
    nothing: ClassVar = {"text": ""}

    def opening(self, counts: Counts) -> list[bytes]:  # noqa: ARG002 - it has none
        return []

    def whole(self, text: str, usage: Counts | None) -> bytes:
        return _dump({**self._body([self._choice(self._delta(text), "length")]), **_told(usage)})

    def _delta(self, text: str) -> dict[str, Any]:
        return {"text": text}


class Messages(Voice):
    """Anthropic's API. Its chunks have no token counts, so ``ids`` and ``usage`` change nothing."""

    def opening(self, counts: Counts) -> list[bytes]:
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "stub", "content": []}
        usage = {"input_tokens": counts.prompt, "output_tokens": 1}
        start = {"type": "message_start", "message": {**message, "usage": usage}}
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        return [_named(start), _named(block)]

    @lru_cache(maxsize=256)  # noqa: B019 - there are three voices
    def text(self, text: str, ids: tuple[int, ...] | None, usage: Counts | None) -> bytes:  # noqa: ARG002 - see above
        delta = {"type": "text_delta", "text": text}
        return _named({"type": "content_block_delta", "index": 0, "delta": delta})

    def ping(self) -> bytes:
        return _named({"type": "ping"})

    def failure(self, message: str) -> bytes:
        return _named({"type": "error", "error": {"type": "overloaded_error", "message": message}})

    def closing(self, usage: Counts | None, done: bool) -> list[bytes]:
        told = {} if usage is None else {"usage": {"output_tokens": usage.completion}}
        events = [{"type": "content_block_stop", "index": 0}]
        if done:
            events.append({"type": "message_delta", "delta": {"stop_reason": "max_tokens"}, **told})
            events.append({"type": "message_stop"})
        return [_named(event) for event in events]

    def whole(self, text: str, usage: Counts | None) -> bytes:
        told = {} if usage is None else {"usage": {"input_tokens": usage.prompt, "output_tokens": usage.completion}}
        content = [{"type": "text", "text": text}]
        message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "stub", "content": content}
        return _dump({**message, "stop_reason": "max_tokens", **told})

    def error(self, status: int, message: str) -> bytes:
        kind = {401: "authentication_error", 429: "rate_limit_error", 529: "overloaded_error"}.get(status, "api_error")
        return _dump({"type": "error", "error": {"type": kind, "message": message}})


VOICES: Final[dict[str, Voice]] = {
    "/v1/chat/completions": Chat(),
    "/v1/completions": Completions(),
    "/v1/messages": Messages(),
}


def _usage(counts: Counts) -> dict[str, int]:
    total = counts.prompt + counts.completion
    return {"prompt_tokens": counts.prompt, "completion_tokens": counts.completion, "total_tokens": total}


def _told(usage: Counts | None) -> dict[str, Any]:
    return {} if usage is None else {"usage": _usage(usage)}


def _dump(body: Any) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def _data(body: Any) -> bytes:
    return b"data: %b\n\n" % _dump(body)


def _named(body: dict[str, Any]) -> bytes:
    return b"event: %b\n%b" % (body["type"].encode(), _data(body))
