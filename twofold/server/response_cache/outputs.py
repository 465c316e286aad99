"""Outputs as the response cache stores and returns them.

Completions, log-probabilities and vectors are stored; the prompt is not, because the request that hits has it. Outputs
that a deadline, a disconnect or an error cut short are not stored. A cached output was neither queued nor computed: its
times and its work are 0, and its whole prompt counts as cached.
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
"""Finish reasons of whole completions."""
FAST: Final = 1
"""Compression level of zlib."""


@dataclass(frozen=True, slots=True)
class CachedOutput:
    """The output of one request of the engine. ``sampled`` has the number of tokens of each completion, those that
    best_of dropped included."""

    outputs: tuple[CompletionOutput, ...]
    sampled: tuple[int, ...]
    prompt_logprobs: tuple[Logprobs | None, ...] | None
    embedding: tuple[float, ...] | None


def pack(outputs: Sequence[RequestOutput]) -> bytes | None:
    """The bytes to store; None if an output is not whole, or has lone surrogates."""
    if not outputs or not all(map(_is_whole, outputs)):
        return None
    stored = [
        CachedOutput(
            output.outputs,
            tuple(len(times) for times in output.metrics.token_times),
            output.prompt_logprobs,
            output.embedding,
        )
        for output in outputs
    ]
    try:
        return zlib.compress(msgspec.msgpack.encode(stored), FAST)
    except UnicodeEncodeError:
        return None


def unpack(data: bytes, jobs: Sequence[EngineRequest], request_id: str) -> tuple[RequestOutput, ...] | None:
    """The outputs of ``jobs``; None if the bytes are not from ``pack``, or are those of other requests."""
    try:
        stored = msgspec.msgpack.decode(zlib.decompress(data), type=list[CachedOutput])
    except (zlib.error, msgspec.MsgspecError, ValueError):
        return None
    if len(stored) != len(jobs):
        return None
    return tuple(_output(each, job, request_id) for each, job in zip(stored, jobs, strict=True))


def deltas(output: RequestOutput) -> Iterator[OutputDelta]:
    """A cached output as deltas: one per completion, the last one with the whole."""
    if not output.outputs:
        yield OutputDelta(output.request_id, 0, "", (), None, "stop", request=output)
    for completion in output.outputs:
        yield OutputDelta(
            output.request_id,
            completion.index,
            completion.text,
            completion.token_ids,
            completion.logprobs,
            completion.finish_reason,
            completion.stop_reason,
            output if completion is output.outputs[-1] else None,
        )


def _is_whole(output: RequestOutput) -> bool:
    made = bool(output.outputs) or output.embedding is not None
    return made and output.finished and all(one.finish_reason in WHOLE for one in output.outputs)


def _output(stored: CachedOutput, job: EngineRequest, request_id: str) -> RequestOutput:
    ids = job.token_ids
    reasons = tuple(one.finish_reason for one in stored.outputs if one.finish_reason is not None)
    metrics = RequestMetrics(
        arrival=0.0,
        first_scheduled=0.0,
        first_token=0.0,
        finished=0.0,
        token_times=tuple((0.0,) * count for count in stored.sampled),
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
        stored.prompt_logprobs,
        stored.outputs,
        metrics,
        finished=True,
        embedding=stored.embedding,
    )
