"""Makes the parts of the document out of what a bench holds."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

import numpy as np

from twofold.bench.metrics.requests import RequestFigures, request_figures
from twofold.bench.metrics.rule import MeasurementRule
from twofold.bench.record import UNKNOWN, ClientLoad, RecordedResponse, RequestSample, RunRecord
from twofold.bench.report.document import Client, ClientMachine, Microseconds, Request, Run
from twofold.host.cpu import read_cpu
from twofold.host.memory import read_memory

_MAX_TEXT: Final = 500
_DIGITS: Final = 6
_DIGITS_OF_TPOT: Final = 9


def run_of(record: RunRecord, rule: MeasurementRule, summary: Mapping[str, Any], *, chunks: bool = True) -> Run:
    """One run of the document, with the figures that ``summary`` has of what ``rule`` measures.

    Without ``chunks`` the gaps between chunks are left out, which are most of its size: about 8 bytes a chunk.
    """
    measured = {sample.ask.index for sample in rule.measured(record)}
    rows = sorted(
        zip(record.samples, request_figures(record), strict=True), key=lambda row: (row[1].due_s, row[1].index)
    )
    return Run(
        load=record.load,
        began_unix=record.began_unix,
        duration_s=record.duration_s,
        interrupted=record.interrupted,
        client=client_of(record.client),
        summary=summary,
        requests=[
            request_of(sample, figures, measured=figures.index in measured, chunks=chunks) for sample, figures in rows
        ],
    )


def request_of(sample: RequestSample, figures: RequestFigures, *, measured: bool, chunks: bool = True) -> Request:
    ask, answer = sample.ask, sample.answer
    return Request(
        index=ask.index,
        session=ask.session,
        turn=ask.turn,
        outcome=sample.outcome,
        measured=measured,
        status=sample.status,
        error=_text(sample.error),
        request_id=_text(sample.request_id),
        due_s=round(ask.due_s, _DIGITS),
        started_s=_rounded(sample.started_s),
        connect_s=_rounded(sample.connect_s),
        sent_s=_rounded(sample.sent_s),
        first_s=_rounded(sample.first_s),
        last_s=_rounded(sample.last_s),
        ended_s=_rounded(sample.ended_s),
        lag_s=round(sample.lag_s, _DIGITS),
        ttft_s=_rounded(figures.ttft_s),
        ttft_sent_s=_rounded(figures.ttft_sent_s),
        tpot_s=_rounded(figures.tpot_s, _DIGITS_OF_TPOT),
        e2e_s=_rounded(figures.e2e_s),
        queue_s=_rounded(figures.queue_s),
        asked_input_tokens=ask.input_tokens,
        asked_output_tokens=ask.output_tokens,
        shared_tokens=sum(piece.tokens for piece in ask.shared),
        prompt_tokens=answer.prompt_tokens,
        cached_tokens=answer.cached_tokens,
        output_tokens=sample.output_tokens,
        reasoning_tokens=answer.reasoning_tokens,
        finish=_text(answer.finish),
        streamed=answer.streamed,
        chunks=len(answer.moments),
        empty=answer.empty,
        pings=answer.pings,
        merged=sample.merged,
        gaps_us=gaps_us(answer) if chunks else None,
        chunk_tokens=chunk_tokens(answer) if chunks else None,
    )


def client_of(client: ClientLoad) -> Client:
    return Client(
        wall_s=client.wall_s,
        cpu_s=client.cpu_s,
        lag_p50_s=client.lag_p50_s,
        lag_p99_s=client.lag_p99_s,
        stamps=client.stamps,
        events=client.events,
    )


def machine_of_this() -> ClientMachine:
    """The machine that this process runs on."""
    cpu = read_cpu()
    return ClientMachine(
        processor=cpu.name,
        cores=cpu.cores,
        usable_threads=cpu.usable,
        memory_bytes=read_memory().usable,
        system=platform.platform(),
        python=platform.python_version(),
    )


def public_url(url: str) -> str:
    """A URL without what may be secret in it: user, password, query, fragment."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def gaps_us(answer: RecordedResponse) -> Microseconds:
    """Whole microseconds between the chunks: their sums stay within one microsecond of the moments."""
    if not answer.moments:
        return Microseconds()
    moments = np.maximum.accumulate(np.rint(np.frombuffer(answer.moments, np.float64) * 1e6))
    return Microseconds(np.diff(moments).astype(np.int64).tobytes())


def chunk_tokens(answer: RecordedResponse) -> int | list[int] | None:
    """Tokens of each chunk; one number where all hold as many; None where the server does not say it of each."""
    if not answer.tokens or UNKNOWN in answer.tokens:
        return None
    return answer.tokens[0] if len(set(answer.tokens)) == 1 else answer.tokens.tolist()


def moments_of(request: Request) -> Sequence[float]:
    """When each chunk came, from the gaps; none where they were left out."""
    if request.first_s is None or request.gaps_us is None:
        return ()
    gaps = np.frombuffer(request.gaps_us, np.int64)
    return np.concatenate(([request.first_s], request.first_s + np.cumsum(gaps) * 1e-6)).tolist()  # type: ignore[no-any-return]


def _text(value: str | None) -> str | None:
    """What a server said, cut."""
    return None if value is None else value[:_MAX_TEXT]


def _rounded(value: float | None, digits: int = _DIGITS) -> float | None:
    """None also for what has no bound."""
    return None if value is None or not math.isfinite(value) else round(value, digits)
