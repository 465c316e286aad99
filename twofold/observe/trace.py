"""A trace of the engine, as a file for ui.perfetto.dev and chrome://tracing.

    steps       one slice per step, named by its rows: the host time before it, its block moves, its rows
    counters    sequences running and waiting; KV blocks held, cached and free; rows by phase; step time and prediction
    requests    one track per request: queue, prefill and decode with their pauses, first token and finish

The format is the JSON array of the Trace Event Format (Google, 2016), which may lack its closing bracket. Whole events
are appended, many at a time, so the file is valid after a crash, too. Events are not kept in memory after they were
written, and contain no text of prompts and completions. Times are whole microseconds on the engine's clock, so events
that follow each other do not overlap.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from twofold.core.errors import ResourceError
from twofold.core.record import Pause
from twofold.core.report import RequestMetrics, StepReport

PROCESS: Final = 1
STEPS_TRACK: Final = 1
REQUESTS: Final = "request"
"""The category of requests' events; viewers join events of one category and id."""
MAX_HELD_BYTES: Final = 1 << 16
MAX_HELD_S: Final = 1.0
"""Events are written when a request ends, and by a step if more than MAX_HELD_BYTES wait or the last such write was
MAX_HELD_S ago."""

Event = dict[str, Any]
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Tracer:
    """An observer that writes a trace file, in which the process is named ``title``. Use it as a context manager.

    Raises ResourceError if the file cannot be created. It raises nothing while the engine runs: after a failed write it
    writes no more, and ``close`` raises.
    """

    def __init__(self, path: Path, title: str = "twofold") -> None:
        self._path = path
        self._failure: OSError | None = None
        self._held = bytearray()
        self._written_at = 0.0
        self._ended = 0.0
        self._request_numbers = count(1)
        try:
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        except OSError as error:
            raise _unwritable(path, error) from error
        self._separator = b"[\n"
        self._add(_metadata("process_name", title))
        self._add(_metadata("thread_name", "steps"))
        self._write()

    def on_step(self, report: StepReport) -> None:
        began = report.started - report.host_s
        if self._ended and _us(began) > _us(self._ended):
            self._add(_counter("rows", self._ended, decode=0, prefill=0))
        for event in _step_events(report, max(began, self._ended)):
            self._add(event)
        self._ended = report.ended
        if len(self._held) >= MAX_HELD_BYTES or report.started - self._written_at >= MAX_HELD_S:
            self._written_at = report.started
            self._write()

    def on_request(self, report: RequestMetrics) -> None:
        for event in _request_events(report, next(self._request_numbers)):
            self._add(event)
        self._write()

    def close(self) -> None:
        """Completes the file. Raises ResourceError if a write failed. Closing twice is fine."""
        if self._file < 0:
            return
        if self._ended:
            self._add(_counter("rows", self._ended, decode=0, prefill=0))
        self._held += b"\n]\n"
        self._write()
        os.close(self._file)
        self._file = -1
        if self._failure is not None:
            raise _unwritable(self._path, self._failure) from self._failure

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except ResourceError:
            if error is None:
                raise

    def _add(self, event: Event) -> None:
        self._held += self._separator
        self._held += _encode(event).encode()
        self._separator = b",\n"

    def _write(self) -> None:
        """Writes the held events."""
        try:
            while self._held and self._failure is None:
                written = os.write(self._file, self._held)
                del self._held[:written]
        except OSError as error:
            self._failure = error
        self._held.clear()


def _step_events(report: StepReport, began: float) -> Iterator[Event]:
    """The slices of a step, in order and nested; then counters with their values when the step was planned."""
    rows_at = report.started + report.moves_s
    if _us(report.started) > _us(began):
        yield _slice("host", began, report.started)
    yield _slice(
        _rows(report),
        report.started,
        report.ended,
        step=report.number,
        decode_rows=report.decode_rows,
        draft_rows=report.draft_rows,
        prefill_rows=report.prefill_rows,
        sequences=report.sequences,
        logit_rows=report.logit_rows,
        moves=report.moves,
        predicted_ms=None if report.predicted_s is None else _ms(report.predicted_s),
        measured_ms=_ms(report.seconds),
    )
    if report.moves:
        yield _slice("moves", report.started, rows_at, moves=report.moves)
    yield _counter("sequences", report.started, running=report.running, waiting=report.waiting)
    blocks = report.blocks
    yield _counter("KV blocks", report.started, held=blocks.held, cached=blocks.cached, free=blocks.free)
    yield _counter("rows", rows_at, decode=report.decode_rows, prefill=report.prefill_rows)
    predicted = {} if report.predicted_s is None else {"predicted": _ms(report.predicted_s)}
    yield _counter("step ms", rows_at, measured=_ms(report.seconds), **predicted)


def _request_events(report: RequestMetrics, number: int) -> Iterator[Event]:
    """The events of a request and, nested in it, of its phases and their pauses."""
    yield _request(report.request_id, number, "b", report.arrival, **_request_args(report))
    for name, start, end in report.phases():
        yield _request(name, number, "b", start)
        for pause in _separate(report.record.pauses, start, end):
            yield _request(pause.cause.value, number, "b", pause.start)
            yield _request(pause.cause.value, number, "e", pause.end)
        yield _request(name, number, "e", end)
        if end == report.first_token:
            yield _request("first token", number, "n", end)
    yield _request("finish: " + ", ".join(report.finish_reasons), number, "n", report.finished)
    yield _request(report.request_id, number, "e", report.finished)


def _separate(pauses: list[Pause], start: float, end: float) -> Iterator[Pause]:
    """The parts of the pauses from ``start`` to ``end``, without overlaps between pauses of several completions."""
    for pause in pauses:
        start, stop = max(start, pause.start), min(end, pause.end)
        if stop > start:
            yield Pause(pause.cause, start, stop)
            start = stop


def _request_args(report: RequestMetrics) -> Event:
    record = report.record
    return {
        "prompt_tokens": report.prompt_tokens,
        "cached_tokens": report.cached_tokens,
        "loaded_tokens": report.loaded_tokens,
        "output_tokens": report.output_tokens,
        "queue_ms": _ms(report.queue_s),
        "prefill_ms": _ms(report.prefill_s),
        "decode_ms": _ms(report.decode_s),
        "stalls_ms": {cause.value: _ms(seconds) for cause, seconds in record.stalls.items()},
        "preemptions": record.preemptions,
        "recomputed_tokens": record.recomputed,
        "swapped_blocks": record.swapped,
        "drafted_tokens": record.drafted,
        "accepted_tokens": record.accepted,
        "saved_ms": _ms(record.saved_s),
    }


def _rows(report: StepReport) -> str:
    """The name of a step, such as "8 decode + 120 prefill rows": viewers group steps of equal names."""
    parts = ((report.decode_rows, "decode"), (report.prefill_rows, "prefill"))
    rows = " + ".join(f"{count} {name}" for count, name in parts if count)
    return f"{rows} rows" if rows else "moves only"


def _slice(name: str, start: float, end: float, **args: Any) -> Event:
    return _event(name, "X", start, dur=_us(end) - _us(start), args=args)


def _counter(name: str, moment: float, **values: float) -> Event:
    return _event(name, "C", moment, args=values)


def _request(name: str, number: int, kind: str, moment: float, **args: Any) -> Event:
    """Begin (b), instant (n) or end (e) on the track of a request."""
    return _event(name, kind, moment, cat=REQUESTS, id=hex(number), args=args)


def _metadata(name: str, value: str) -> Event:
    return _event(name, "M", 0.0, args={"name": value})


def _event(name: str, kind: str, moment: float, args: Event, **rest: Any) -> Event:
    event = {"name": name, "ph": kind, "ts": _us(moment), "pid": PROCESS, "tid": STEPS_TRACK, **rest}
    return event | {"args": args} if args else event


def _us(seconds: float) -> int:
    return round(seconds * 1e6)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 4)


def _unwritable(path: Path, error: OSError) -> ResourceError:
    reason = error.strerror or type(error).__name__
    return ResourceError(f"The trace {path} cannot be written: {reason}.", hint="Choose another file.")
