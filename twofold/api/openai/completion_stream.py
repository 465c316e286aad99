"""Completions told as they come: chunks of ``text_completion``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.openai.frames import DONE, KEEP_ALIVE, ChunkFrame, RunningUsage, failure
from twofold.api.openai.logprobs import answer_positions, text_logprobs
from twofold.api.openai.replies import chat_finish
from twofold.api.openai.usage import usage
from twofold.core.errors import TwofoldError
from twofold.core.request import TextOrTokens
from twofold.engine.outputs import OutputDelta, RequestOutput


class CompletionStreamer:
    """``Streamer`` of completions: each prompt has ``answers`` answers, numbered one prompt after the other."""

    keep_alive = KEEP_ALIVE

    def __init__(
        self,
        head: ReplyHead,
        model: ModelFacts,
        given: Sequence[TextOrTokens],
        *,
        answers: int,
        echo: bool,
        include_usage: bool,
        continuous_usage: bool,
        logprobs: bool,
        token_ids: bool,
    ) -> None:
        self._model = model
        self._given = given
        self._answers = answers
        self._echo = echo
        self._logprobs = logprobs
        self._token_ids = token_ids
        self._offsets = [0] * (len(given) * answers)
        self._running = RunningUsage(head.prompt_tokens, answers) if continuous_usage else None
        self._frame = ChunkFrame(f"cmpl-{head.id}", "text_completion", head, usage=include_usage, running=self._running)

    def open(self) -> bytes:
        if not self._echo:
            return b""
        told = b""
        for job, given in enumerate(self._given):
            text = given
            if not isinstance(text, str):
                text = self._model.tokenizer.decode(text, skip_special_tokens=False)
            for index in range(job * self._answers, (job + 1) * self._answers):
                told += self._chunk({"index": index, "text": text, "logprobs": None, "finish_reason": None})
        return told

    def take(self, job: int, delta: OutputDelta) -> bytes:
        index = job * self._answers + delta.index
        if self._running is not None:
            self._running.add(index, len(delta.token_ids))
        if not (delta.text or delta.finish_reason or ((self._logprobs or self._token_ids) and delta.token_ids)):
            return b""
        choice: dict[str, Any] = {
            "index": index,
            "text": delta.text,
            "logprobs": self._told_logprobs(index, delta) if self._logprobs else None,
            "finish_reason": chat_finish(delta.finish_reason),
        }
        if self._token_ids:
            choice["token_ids"] = delta.token_ids
        return self._chunk(choice)

    def close(self, outputs: Sequence[RequestOutput], extra: Mapping[str, Any] | None = None) -> bytes:
        return self._frame.last(usage(outputs, self._model), extra) + DONE

    def fail(self, error: TwofoldError, request_id: str) -> bytes:  # noqa: ARG002 - it is in a header
        return failure(error)

    def _told_logprobs(self, index: int, delta: OutputDelta) -> dict[str, Any]:
        positions = answer_positions(delta.token_ids, delta.logprobs)
        told = text_logprobs(positions, self._offsets[index])
        self._offsets[index] += sum(len(text) for text, _, _ in positions)
        return told

    def _chunk(self, choice: Mapping[str, Any]) -> bytes:
        return self._frame.choice(choice["index"], orjson.dumps(choice))
