"""Streamed completions: chunks of ``text_completion``."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, UnsetType

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import Explanation
from twofold.api.openai.frames import DONE, KEEP_ALIVE, ChunkFrame, CompletionChunk, RunningUsage, failure
from twofold.api.openai.logprobs import TextLogprobs, answer_positions, text_logprobs
from twofold.api.openai.replies import TextChoice, chat_finish
from twofold.api.openai.usage import usage
from twofold.core.errors import TwofoldError
from twofold.core.request import TextOrTokens
from twofold.engine.outputs import OutputDelta, RequestOutput


class CompletionStreamer:
    """``Streamer`` of completions: each prompt has ``answers`` completions, numbered prompt after prompt."""

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
        self._frame = ChunkFrame(CompletionChunk, "cmpl-", head, usage=include_usage, running=self._running)

    def open(self) -> bytes:
        if not self._echo:
            return b""
        chunks = b""
        for job, given in enumerate(self._given):
            text = given
            if not isinstance(text, str):
                text = self._model.tokenizer.decode(text, skip_special_tokens=False)
            for index in range(job * self._answers, (job + 1) * self._answers):
                chunks += self._frame.choice(TextChoice(index=index, text=text))
        return chunks

    def take(self, job: int, delta: OutputDelta) -> bytes:
        index = job * self._answers + delta.index
        if self._running is not None:
            self._running.add(index, len(delta.token_ids))
        if not (delta.text or delta.finish_reason or ((self._logprobs or self._token_ids) and delta.token_ids)):
            return b""
        return self._frame.choice(
            TextChoice(
                index=index,
                text=delta.text,
                logprobs=self._text_logprobs(index, delta) if self._logprobs else None,
                finish_reason=chat_finish(delta.finish_reason),
                token_ids=delta.token_ids if self._token_ids else UNSET,
            )
        )

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        return self._frame.last(usage(outputs, self._model), extra) + DONE

    def fail(self, error: TwofoldError, request_id: str) -> bytes:  # noqa: ARG002 - it is in a header
        return failure(error)

    def _text_logprobs(self, index: int, delta: OutputDelta) -> TextLogprobs:
        positions = answer_positions(delta.token_ids, delta.logprobs)
        start = self._offsets[index]
        self._offsets[index] += sum(len(text) for text, _, _ in positions)
        return text_logprobs(positions, start)
