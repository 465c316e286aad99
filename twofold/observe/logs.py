"""The server's log: structured lines through one redacting pipeline, including records of ``logging``.

    log = ServerLog(sys.stderr.fileno(), LogSettings(level="info"))
    with log.capture():
        log.logger.info("listening", port=8000)
        observers = [log.requests, …]
    log.close()

Fields bound with ``structlog.contextvars.bind_contextvars(request_id=…)`` are in every line of that task.

Content and secrets are removed by the names of fields and by the format of secrets. This is a second safeguard: callers
should log names and numbers only. Lines are written on a thread, so that callers do not wait for a file that blocks;
while MAX_LINES lines wait, further ones are dropped, and their number is logged once the file accepts lines again.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from twofold.core.params import check_choice
from twofold.observe.served import ServedRequest, log_id

Access = Literal["all", "errors", "off"]
"""The requests to log: all, those with a status of 400 or more, or none."""
TRACE_ID: Final = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
PLAIN: Final = re.compile(r"[\w./:@+,-]+", re.ASCII)
"""Values that the text format writes without quotes."""
FIRST: Final = ("time", "level", "event")
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FORMATS: Final = ("auto", "json", "text")
ACCESS: Final = ("all", "errors", "off")
OWN: Final = "twofold"
"""The logger to which the configured level applies; others log warnings and errors only."""
HIDDEN: Final = "[redacted]"
MAX_CHARS: Final = 1_000
MAX_ITEMS: Final = 32
MAX_DEPTH: Final = 4
MAX_NUMBER: Final = 1 << 63
"""Some JSON readers cannot read larger numbers, infinity and NaN."""
MAX_FRAMES: Final = 12
SECRET_NAMES: Final = frozenset(
    {"api_key", "apikey", "authorization", "cookie", "password", "proxy_authorization", "secret", "set_cookie", "token"}
    | {"x_api_key"}
)
CONTENT_NAMES: Final = frozenset(
    {"answer", "arguments", "body", "completion", "content", "delta", "input", "instructions", "messages", "output"}
    | {"prompt", "reasoning", "suffix", "system", "text", "tools"}
)
SECRETS: Final = re.compile(r"(?i:\bbearer\s+)\S+|\b(?:sk|tf|hf)[-_][A-Za-z0-9_-]{8,}")

Event = MutableMapping[str, Any]
MAX_LINES: Final = 10_000
MAX_BYTES: Final = 1 << 16
"""Waiting lines are written together, up to this size or one line beyond."""
CLOSE_S: Final = 2.0
RETRY_S: Final = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """``level`` is the lowest level to log; the format "auto" means text on a terminal and JSON elsewhere."""

    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["auto", "json", "text"] = "auto"
    access: Access = "all"

    def __post_init__(self) -> None:
        for name, known in (("level", tuple(LEVELS)), ("format", FORMATS), ("access", ACCESS)):
            check_choice(name, getattr(self, name), known)


class ServerLog:
    """Writes to a file descriptor, which it leaves open. ``close`` ends its thread."""

    def __init__(self, file: int, settings: LogSettings) -> None:
        text = settings.format == "text" or (settings.format == "auto" and os.isatty(file))
        self._level = LEVELS[settings.level]
        self._writer = LineWriter(file)
        processors: list[Processor] = [
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            _add_fault,
            redact,
            text_line if text else json_line,
        ]
        self.logger: Final[FilteringBoundLogger] = structlog.wrap_logger(
            _Sink(self._writer),
            processors=processors,
            wrapper_class=structlog.make_filtering_bound_logger(self._level),
            context_class=dict,
            cache_logger_on_first_use=True,
        )
        self.requests: Final = RequestLines(self.logger, settings.access)

    @contextmanager
    def capture(self) -> Iterator[None]:
        """A context in which records of ``logging`` go to this log instead of their handlers."""
        root, own = logging.getLogger(), logging.getLogger(OWN)
        before = (root.handlers[:], root.level, own.level)
        root.handlers[:] = [_Forward(self.logger)]
        root.setLevel(logging.WARNING)
        own.setLevel(self._level)
        try:
            yield
        finally:
            root.handlers[:] = before[0]
            root.setLevel(before[1])
            own.setLevel(before[2])

    def close(self) -> None:
        self._writer.close()


class _Sink:
    """The end of structlog's pipeline: writes rendered lines of all levels."""

    def __init__(self, writer: LineWriter) -> None:
        self.debug = self.info = self.warning = self.error = self.critical = writer.write


class _Forward(logging.Handler):
    """Passes records of ``logging`` to the pipeline: message, logger name, and the type of an error."""

    def __init__(self, logger: FilteringBoundLogger) -> None:
        super().__init__()
        self._logger = logger

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        self._logger.log(_level(record), _message(record), logger=record.name, exc_info=error)


def _level(record: logging.LogRecord) -> int:
    """The highest level of structlog that is not above the record's."""
    return max((level for level in LEVELS.values() if level <= record.levelno), default=logging.DEBUG)


def _message(record: logging.LogRecord) -> str:
    """A record's message; without its arguments if they do not fit its format, because logging must not raise."""
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        return str(record.msg)


def _add_fault(_logger: object, _method: str, event: Event) -> Event:
    """Replaces ``exc_info`` by the error's type and traceback, without its message."""
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exception()
    if isinstance(error, BaseException):
        event.update(_fault(error))
    return event


def json_line(_logger: object, _method: str, event: Event) -> str:
    """An event in one line of JSON."""
    ordered = {name: event.pop(name) for name in FIRST if name in event}
    return _json(ordered | dict(event))


def text_line(_logger: object, _method: str, event: Event) -> str:
    """An event as a message and key=value pairs in one line; control characters and line ends are escaped."""
    clock, level, name = (str(event.pop(field, "")) for field in FIRST)
    pairs = (f"{_text(field)}={_text(value)}" for field, value in event.items())
    message = "".join(c if c.isprintable() else "�" for c in name)  # no control characters for the terminal
    return " ".join((clock[11:19], f"{level:<8}", message, *pairs))


def _text(value: object) -> str:
    text = value if isinstance(value, str) else _json(value)
    return text if PLAIN.fullmatch(text) else _json(value)


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), default=lambda odd: f"<{type(odd).__name__}>")


class RequestLines:
    """``ServedObserver``: logs failures of the server as errors, refusals under overload as warnings."""

    def __init__(self, logger: FilteringBoundLogger, access: Access = "all") -> None:
        self._logger = logger
        self._min_status = {"all": 0, "errors": 400, "off": 1_000}[access]

    def on_served(self, served: ServedRequest) -> None:
        if served.status < self._min_status:
            return
        if served.status < 500:
            log = self._logger.info
        else:
            log = self._logger.warning if served.status in (503, 529) else self._logger.error
        log("request", **request_fields(served))


def request_fields(served: ServedRequest) -> dict[str, Any]:
    """The fields of a request's line; those without a value are omitted. Times are in milliseconds."""
    trace = TRACE_ID.fullmatch(served.traceparent or "")
    work: dict[str, Any] = {}
    if served.reports:
        reasons = {reason for report in served.reports for reason in report.finish_reasons}
        work = {
            "ttft_ms": _ms(served.ttft_s),
            "tpot_ms": _ms(served.tpot_s),
            "queue_ms": _ms(max(report.queue_s for report in served.reports)),
            "prompt_tokens": served.prompt_tokens,
            "cached_tokens": served.cached_tokens,
            "output_tokens": served.output_tokens,
            "preemptions": sum(report.record.preemptions for report in served.reports) or None,
            "drafted_tokens": sum(report.record.drafted for report in served.reports) or None,
            "accepted_tokens": sum(report.record.accepted for report in served.reports) or None,
            "finish": ",".join(sorted(reasons)) or None,
        }
    known = {
        "request_id": log_id(served.request_id),
        "endpoint": served.endpoint,
        "path": served.path,
        "status": served.status,
        "error": served.error,
        "field": served.field_name,
        "model": served.model or None,
        "tenant": served.tenant or None,
        "key": served.key or None,
        "tier": served.tier,
        "stream": served.stream,
        "ms": _ms(served.duration_s),
        **work,
        "cache": "hit" if served.cached_answer else None,
        "cost": served.cost,
        "currency": served.currency or None,
        "trace_id": trace and trace[1],
    }
    return {name: value for name, value in known.items() if value is not None}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 2)


def redact(_logger: object, _method: str, event: Event) -> Event:
    """A structlog processor: hides content and secrets, and bounds the size of the rest."""
    return {name: _hidden(name) or _clean(value, MAX_DEPTH) for name, value in event.items()}


def _fault(error: BaseException) -> dict[str, Any]:
    """An error's type and traceback, without its message, which may quote a request."""
    return {"error": type(error).__qualname__, "at": _frames(error.__traceback__)}


def _hidden(name: str) -> str | None:
    plain = name.lower().replace("-", "_")
    return HIDDEN if plain in SECRET_NAMES or plain in CONTENT_NAMES else None


def _clean(value: object, depth: int) -> object:
    """A shortened copy of texts, numbers, and lists and mappings of them; of any other value only its type."""
    if isinstance(value, str):
        return _short(SECRETS.sub(HIDDEN, value[: 2 * MAX_CHARS]))
    if value is None or (isinstance(value, int | float) and -MAX_NUMBER < value < MAX_NUMBER):
        return value
    if isinstance(value, BaseException):
        return _fault(value)
    if depth and isinstance(value, Mapping):
        items = list(value.items())[:MAX_ITEMS]
        return {_name(name): _hidden(_name(name)) or _clean(item, depth - 1) for name, item in items}
    if depth and isinstance(value, list | tuple):
        return [_clean(item, depth - 1) for item in value[:MAX_ITEMS]]
    return f"<{type(value).__name__}>"


def _name(name: object) -> str:
    return _short(name) if isinstance(name, str) else f"<{type(name).__name__}>"


def _short(text: str) -> str:
    return text if len(text) <= MAX_CHARS else text[:MAX_CHARS] + "…"


def _frames(trace: TracebackType | None) -> list[str]:
    """Modules, functions and lines, the innermost last; no paths, which describe the machine."""
    frames: list[str] = []
    while trace is not None:
        code = trace.tb_frame.f_code
        module = trace.tb_frame.f_globals.get("__name__", "?")
        frames.append(f"{module}.{code.co_qualname}:{trace.tb_lineno}")
        trace = trace.tb_next
    return frames[-MAX_FRAMES:]


class LineWriter:
    """Writes lines in order to a file descriptor."""

    def __init__(self, file: int, max_lines: int = MAX_LINES) -> None:
        self._file = file
        self._max_lines = max_lines
        self._dropped = 0
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Queues a line, to which a line end is added. Does not block; any thread may call it."""
        if self._lines.qsize() >= self._max_lines:
            self._dropped += 1
        else:
            self._lines.put(line.encode("utf-8", "backslashreplace") + b"\n")

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Writes the waiting lines, if the file accepts them within ``timeout_s``. Later lines are not written."""
        self._lines.put(None)
        self._thread.join(timeout_s)

    def _run(self) -> None:
        last = broken = False
        while not last:
            text, last = self._waiting()
            try:
                _write(self._file, b"" if broken else text)
            except OSError:
                broken = True

    def _waiting(self) -> tuple[bytes, bool]:
        """Waits for a line; returns the waiting lines as bytes, and whether they are the last."""
        text, line = bytearray(), self._lines.get()
        while line is not None:
            text += line
            if len(text) >= MAX_BYTES:
                break
            try:
                line = self._lines.get_nowait()
            except queue.Empty:
                break
        if self._dropped:
            dropped, self._dropped = self._dropped, 0
            text += _json({"level": "warning", "event": "log lines dropped", "count": dropped}).encode() + b"\n"
        return bytes(text), line is None


def _write(file: int, text: bytes) -> None:
    """Writes the whole text, also to a file that another process made non-blocking."""
    while text:
        try:
            text = text[os.write(file, text) :]
        except BlockingIOError:
            time.sleep(RETRY_S)
