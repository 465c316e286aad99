"""Streamed chats: chunks of ``chat.completion.chunk``."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from twofold.api.answers import AnswerReader
from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import Explanation
from twofold.api.openai.frames import (
    DONE,
    KEEP_ALIVE,
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChunkFrame,
    FunctionDelta,
    RunningUsage,
    ToolCallDelta,
    failure,
)
from twofold.api.openai.logprobs import ChatLogprobs, chat_logprobs
from twofold.api.openai.replies import call_id, chat_finish
from twofold.api.openai.usage import usage
from twofold.core.errors import TwofoldError
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import Arguments, Content, Piece, Reasoning, SectionParser, ToolCall


class ChatStreamer:
    """``Streamer`` of a chat with one parser for each choice. ``top_logprobs`` is None without log-probabilities."""

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
        self._frame = ChunkFrame(ChatChunk, "chatcmpl-", head, usage=include_usage, running=self._running)

    def open(self) -> bytes:
        role = ChatDelta(role="assistant", content="")
        return b"".join(self._chunk(index, role) for index in range(len(self._readers)))

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - a chat is one job
        if self._running is not None:
            self._running.add(delta.index, len(delta.token_ids))
        reader = self._readers[delta.index]
        pieces = reader.take(delta)
        chunks = b""
        if not self._plain:
            chunks = self._detailed(delta, pieces)
        elif pieces:
            chunks = self._chunk(delta.index, self._delta(delta.index, pieces))
        if delta.finish_reason is None:
            return chunks
        finish = "tool_calls" if reader.called(delta.finish_reason) else chat_finish(delta.finish_reason)
        end = ChatChunkChoice(index=delta.index, delta=ChatDelta(), finish_reason=finish)
        return chunks + self._frame.choice(end)

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        return self._frame.last(usage(outputs, self._model), extra) + DONE

    def fail(self, error: TwofoldError, request_id: str) -> bytes:  # noqa: ARG002 - it is in a header
        return failure(error)

    def _detailed(self, delta: OutputDelta, pieces: Sequence[Piece]) -> bytes:
        """With log-probabilities or token ids: each token is in a chunk, also while its text is withheld."""
        if not delta.token_ids and not pieces:
            return b""
        logprobs = None
        if delta.logprobs is not None and self._top_logprobs is not None:
            tokenizer = self._model.tokenizer
            logprobs = ChatLogprobs(chat_logprobs(delta.token_ids, delta.logprobs, tokenizer, self._top_logprobs))
        added = self._delta(delta.index, pieces) if pieces else ChatDelta(content="")
        token_ids = delta.token_ids if self._token_ids else UNSET
        return self._frame.choice(
            ChatChunkChoice(index=delta.index, delta=added, logprobs=logprobs, token_ids=token_ids)
        )

    def _delta(self, index: int, pieces: Sequence[Piece]) -> ChatDelta:
        """What these pieces add to a message."""
        added = ChatDelta()
        calls: dict[int, ToolCallDelta] = {}
        for piece in pieces:
            match piece:
                case Content(text):
                    added.content = (added.content or "") + text
                case Reasoning(text):
                    added.reasoning_content = (added.reasoning_content or "") + text
                case ToolCall(number, name):
                    identity, function = call_id(self._head, index, number), FunctionDelta(name=name, arguments="")
                    calls[number] = ToolCallDelta(index=number, id=identity, type="function", function=function)
                case Arguments(number, text):
                    call = calls.setdefault(number, ToolCallDelta(index=number, function=FunctionDelta(arguments="")))
                    call.function.arguments += text
        if calls:
            added.tool_calls = list(calls.values())
        return added

    def _chunk(self, index: int, delta: ChatDelta) -> bytes:
        return self._frame.choice(ChatChunkChoice(index=index, delta=delta))
