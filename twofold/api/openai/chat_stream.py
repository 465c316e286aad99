"""Chats told as they come: chunks of ``chat.completion.chunk``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from twofold.api.answers import AnswerReader
from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.openai.frames import DONE, KEEP_ALIVE, ChunkFrame, RunningUsage, failure
from twofold.api.openai.logprobs import chat_logprobs
from twofold.api.openai.replies import call_id, chat_finish
from twofold.api.openai.usage import usage
from twofold.core.errors import TwofoldError
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, SectionParser, ToolCall


class ChatStreamer:
    """``Streamer`` of a chat with one parser for each answer. ``top_logprobs`` is None where none were asked for."""

    keep_alive = KEEP_ALIVE

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        parsers: Sequence[SectionParser],
        *,
        include_usage: bool,
        continuous_usage: bool,
        top_logprobs: int | None,
        token_ids: bool,
    ) -> None:
        self._head = head
        self._model = model
        self._readers = [AnswerReader(parser) for parser in parsers]
        self._top_logprobs = top_logprobs
        self._token_ids = token_ids
        self._plain = top_logprobs is None and not token_ids
        self._running = RunningUsage(head.prompt_tokens, len(self._readers)) if continuous_usage else None
        self._frame = ChunkFrame(
            f"chatcmpl-{head.id}", "chat.completion.chunk", head, usage=include_usage, running=self._running
        )

    def open(self) -> bytes:
        role = {"role": "assistant", "content": ""}
        return b"".join(self._chunk(index, role) for index in range(len(self._readers)))

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - a chat is one job
        if self._running is not None:
            self._running.add(delta.index, len(delta.token_ids))
        reader = self._readers[delta.index]
        pieces = reader.take(delta)
        told = b""
        if not self._plain:
            told = self._detailed(delta, pieces)
        elif pieces:
            told = self._pieces(delta.index, pieces)
        if delta.finish_reason is None:
            return told
        finish = "tool_calls" if reader.called(delta.finish_reason) else chat_finish(delta.finish_reason)
        return told + self._chunk(delta.index, {}, finish)

    def close(self, outputs: Sequence[RequestOutput], extra: Mapping[str, Any] | None = None) -> bytes:
        return self._frame.last(usage(outputs, self._model), extra) + DONE

    def fail(self, error: TwofoldError, request_id: str) -> bytes:  # noqa: ARG002 - it is in a header
        return failure(error)

    def _pieces(self, index: int, pieces: Sequence[Piece]) -> bytes:
        match pieces:
            case [Content(text)]:  # nearly all of them: written by hand
                return self._frame.choice(
                    index,
                    b'{"index":%d,"delta":{"content":%b},"logprobs":null,"finish_reason":null}'
                    % (index, orjson.dumps(text)),
                )
        return self._chunk(index, self._delta(index, pieces))

    def _detailed(self, delta: OutputDelta, pieces: Sequence[Piece]) -> bytes:
        """With log-probabilities or token ids: every token is told, also while its text is held back."""
        if not delta.token_ids and not pieces:
            return b""
        more: dict[str, Any] = {"logprobs": None}
        if delta.logprobs is not None and self._top_logprobs is not None:
            more["logprobs"] = chat_logprobs(delta.token_ids, delta.logprobs, self._model.tokenizer, self._top_logprobs)
        if self._token_ids:
            more["token_ids"] = delta.token_ids
        told = self._delta(delta.index, pieces) if pieces else {"content": ""}
        choice = {"index": delta.index, "delta": told, **more, "finish_reason": None}
        return self._frame.choice(delta.index, orjson.dumps(choice))

    def _delta(self, index: int, pieces: Sequence[Piece]) -> dict[str, Any]:
        """What these pieces add to a message."""
        content: list[str] = []
        reasoning: list[str] = []
        calls: dict[int, dict[str, Any]] = {}
        for piece in pieces:
            match piece:
                case Content(text):
                    content.append(text)
                case Reasoning(text):
                    reasoning.append(text)
                case ToolCall(number, name):
                    identity = call_id(self._head, index, number)
                    function = {"name": name, "arguments": ""}
                    calls[number] = {"index": number, "id": identity, "type": "function", "function": function}
                case Arguments(number, text):
                    call = calls.setdefault(number, {"index": number, "function": {"arguments": ""}})
                    call["function"]["arguments"] += text
        told: dict[str, Any] = {}
        if reasoning:
            told["reasoning_content"] = "".join(reasoning)
        if content:
            told["content"] = "".join(content)
        if calls:
            told["tool_calls"] = list(calls.values())
        return told

    def _chunk(self, index: int, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
        return self._frame.choice(index, orjson.dumps(choice))
