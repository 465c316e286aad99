"""Streamed replies: a JSON object a line, the last one with ``done`` true, counts and times."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from twofold.api.answers import AnswerReader
from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import Explanation, ReplyObject, encode
from twofold.api.ollama.errors import OllamaDialect
from twofold.api.ollama.replies import MakePart, begun, ended, tool_calls
from twofold.api.openai.logprobs import chat_logprobs
from twofold.core.errors import TwofoldError
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import Content, Reasoning, SectionParser


class LineStreamer:
    """``Streamer`` of a chat or of a generated text. ``top_logprobs`` is None without log-probabilities; ``unloads``:
    the model is unloaded afterwards."""

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        parser: SectionParser,
        make_part: MakePart,
        *,
        top_logprobs: int | None,
        unloads: bool,
    ) -> None:
        self._head = head
        self._model = model
        self._reader = AnswerReader(parser)
        self._make_part = make_part
        self._top_logprobs = top_logprobs
        self._unloads = unloads
        self._begun = begun(head)
        self._empty = make_part(*self._begun, "", "", ())
        self.keep_alive = _line(self._empty)

    def open(self) -> bytes:
        return b""

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - a completion is one job
        pieces = self._reader.take(delta)
        content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
        thinking = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
        calls = tool_calls(self._head, self._reader.calls) if delta.finish_reason is not None else []
        part = self._make_part(*self._begun, content, thinking, calls)
        if self._top_logprobs is not None and delta.logprobs is not None and delta.token_ids:
            tokenizer = self._model.tokenizer
            part.logprobs = chat_logprobs(delta.token_ids, delta.logprobs, tokenizer, self._top_logprobs)
        return _line(part) if content or thinking or calls or part.logprobs else b""

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        end = ended(self._empty, self._head, outputs[0] if outputs else None, unloads=self._unloads)
        end.twofold = extra
        return _line(end)

    def fail(self, error: TwofoldError, request_id: str) -> bytes:
        return _line(OllamaDialect().error(error, request_id))


def _line(data: ReplyObject) -> bytes:
    return encode(data) + b"\n"
