"""The server's log: structured lines through one redacting pipeline, including those of ``logging``.

    with ServerLog(sys.stderr.fileno(), LogSettings(level="info")) as log, log.capture():
        log.logger.info("listening", port=8000)
        observers = [log.requests, …]

Fields bound with ``structlog.contextvars.bind_contextvars(request_id=…)`` are in every line of that task.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Literal, Self

import structlog
from structlog.typing import FilteringBoundLogger, Processor

from twofold.core.params import check_choice
from twofold.observe.logs.redact import Event, fault, redact
from twofold.observe.logs.requests import Access, RequestLines
from twofold.observe.logs.writer import LineWriter

PLAIN: Final = re.compile(r"[\w./:@+,-]+", re.ASCII)
"""Values without quotes."""
FIRST: Final = ("time", "level", "event")
LEVELS: Final = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
FORMATS: Final = ("auto", "json", "text")
ACCESS: Final = ("all", "errors", "off")
OWN: Final = "twofold"
"""The logger with the configured level; others log warnings and errors only."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """``level`` is the lowest that is logged; the format auto is text on a terminal and JSON elsewhere."""

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
        self._writer = LineWriter(file, _lost)
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
        """Replaces the handlers of ``logging`` meanwhile."""
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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Sink:
    """structlog's logger for rendered lines of all levels."""

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
    """A record's message; without its arguments where they do not fit its format, because logging must not raise."""
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):
        return str(record.msg)


def _add_fault(_logger: object, _method: str, event: Event) -> Event:
    """Replaces ``exc_info`` by fields that quote nothing."""
    error = event.pop("exc_info", None)
    if error is True:
        error = sys.exception()
    if isinstance(error, BaseException):
        event.update(fault(error))
    return event


def _lost(count: int) -> str:
    return json.dumps({"level": "warning", "event": "log lines dropped", "count": count})
