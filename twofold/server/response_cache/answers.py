"""Answers as they are kept, and as they come back.

What is kept is what was made: answers, log-probabilities, vectors. The prompt stands in the request that asks again, so
it is not kept. An answer that was cut short by a deadline, a cancelled client or an error is none. One that comes back
was neither queued nor computed: its times and its work are 0, and all of its prompt counts as cached.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from twofold.core.record import SequenceRecord
from twofold.core.report import RequestMetrics
from twofold.core.request import EngineRequest
from twofold.engine.outputs import CompletionOutput, Logprobs, OutputDelta, RequestOutput

WHOLE: Final = frozenset({"stop", "length"})
"""How answers end that are worth keeping."""
FAST: Final = 1
"""zlib's level."""


@dataclass(frozen=True, slots=True)
class CachedOutput:
    """A job's output. ``drawn`` are the tokens of each answer that was drawn, those that best_of dropped included."""

    outputs: tuple[CompletionOutput, ...]
    drawn: tuple[int, ...]
    prompt_logprobs: tuple[Logprobs | None, ...] | None
    embedding: tuple[float, ...] | None


def pack(outputs: Sequence[RequestOutput]) -> bytes | None:
    """The bytes that are kept; None where an answer is not whole, or is no Unicode."""
    if not outputs or not all(map(_is_whole, outputs)):
        return None
    kept = [
        CachedOutput(
            output.outputs,
            tuple(len(times) for times in output.metrics.token_times),
            output.prompt_logprobs,
            output.embedding,
        )
        for output in outputs
    ]
    try:
        return zlib.compress(msgspec.msgpack.encode(kept), FAST)
    except UnicodeEncodeError:
        return None


def unpack(data: bytes, jobs: Sequence[EngineRequest], request_id: str) -> tuple[RequestOutput, ...] | None:
    """The outputs of ``jobs``; None where the bytes are not what ``pack`` made for so many."""
    try:
        kept = msgspec.msgpack.decode(zlib.decompress(data), type=list[CachedOutput])
    except (zlib.error, msgspec.MsgspecError, ValueError):
        return None
    if len(kept) != len(jobs):
        return None
    return tuple(_output(each, job, request_id) for each, job in zip(kept, jobs, strict=True))


def deltas(output: RequestOutput) -> Iterator[OutputDelta]:
    """A kept output as an engine tells it: each answer at once, the last with the whole."""
    if not output.outputs:
        yield OutputDelta(output.request_id, 0, "", (), None, "stop", request=output)
    for answer in output.outputs:
        yield OutputDelta(
            output.request_id,
            answer.index,
            answer.text,
            answer.token_ids,
            answer.logprobs,
            answer.finish_reason,
            answer.stop_reason,
            output if answer is output.outputs[-1] else None,
        )


def _is_whole(output: RequestOutput) -> bool:
    made = bool(output.outputs) or output.embedding is not None
    return made and output.finished and all(answer.finish_reason in WHOLE for answer in output.outputs)


def _output(kept: CachedOutput, job: EngineRequest, request_id: str) -> RequestOutput:
    ids = job.token_ids
    reasons = tuple(answer.finish_reason for answer in kept.outputs if answer.finish_reason is not None)
    metrics = RequestMetrics(
        arrival=0.0,
        first_scheduled=0.0,
        first_token=0.0,
        finished=0.0,
        token_times=tuple((0.0,) * count for count in kept.drawn),
        prompt_tokens=len(ids),
        cached_tokens=len(ids),
        request_id=request_id,
        finish_reasons=reasons,
        record=SequenceRecord(cached=len(ids)),
    )
    return RequestOutput(
        request_id,
        job.prompt,
        ids,
        kept.prompt_logprobs,
        kept.outputs,
        metrics,
        finished=True,
        embedding=kept.embedding,
    )
