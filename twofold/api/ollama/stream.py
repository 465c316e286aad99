"""Answers told as they come: one JSON object a line, the last one with ``done`` true and the figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from twofold.api.answers import AnswerReader
from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.ollama.errors import OllamaDialect
from twofold.api.ollama.replies import Shape, begun, ended, tool_calls
from twofold.api.openai.logprobs import chat_logprobs
from twofold.core.errors import TwofoldError
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.base import Content, Reasoning, SectionParser


class LineStreamer:
    """``Streamer`` of a chat or of a generated text. ``top_logprobs`` is None where none were asked for; ``unloads``:
    the model is unloaded afterwards."""

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        parser: SectionParser,
        shape: Shape,
        *,
        top_logprobs: int | None,
        unloads: bool,
    ) -> None:
        self._head = head
        self._model = model
        self._reader = AnswerReader(parser)
        self._shape = shape
        self._top_logprobs = top_logprobs
        self._unloads = unloads
        self._begun = begun(head)
        self.keep_alive = self._line(shape("", "", ()))

    def open(self) -> bytes:
        return b""

    def take(self, job: int, delta: OutputDelta) -> bytes:  # noqa: ARG002 - an answer is one job
        pieces = self._reader.take(delta)
        content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
        thinking = "".join(piece.text for piece in pieces if isinstance(piece, Reasoning))
        calls = tool_calls(self._head, self._reader.calls) if delta.finish_reason is not None else []
        more: dict[str, Any] = {}
        if self._top_logprobs is not None and delta.logprobs is not None and delta.token_ids:
            told = chat_logprobs(delta.token_ids, delta.logprobs, self._model.tokenizer, self._top_logprobs)
            more["logprobs"] = told["content"]
        if not (content or thinking or calls or more):
            return b""
        return self._line({**self._shape(content, thinking, calls), **more})

    def close(self, outputs: Sequence[RequestOutput], extra: Mapping[str, Any] | None = None) -> bytes:
        end = {**self._shape("", "", ()), **ended(self._head, outputs[0] if outputs else None, unloads=self._unloads)}
        return self._line(end if extra is None else {**end, "twofold": extra})

    def fail(self, error: TwofoldError, request_id: str) -> bytes:
        return orjson.dumps(OllamaDialect().error(error, request_id)) + b"\n"

    def _line(self, more: Mapping[str, Any]) -> bytes:
        return orjson.dumps({**self._begun, "done": False, **more}) + b"\n"
