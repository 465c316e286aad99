"""Azure's traces of LLM inference (AzurePublicDataset, 2023 and 2024): CSV with a head.

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44              as of 2023: seven digits, no zone
    2024-05-10 00:00:00.009930+00:00,2162,5         as of 2024: six digits or no fraction at all, and a zone

A time without a zone is taken as UTC. Digits after the sixth, tenths of a microsecond, are dropped.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from twofold.bench.load.traces.lines import TraceLineError, whole
from twofold.bench.load.traces.trace import Trace

FIELDS: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


class AzureReader:
    """Adds the lines of a file to a trace; the first one is its head."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._places: tuple[int, int, int] | None = None
        self._columns = 0

    def __call__(self, line: bytes) -> None:
        if self._places is None:
            self._places = self._head(line)
            return
        values = line.split(b",")
        if len(values) != self._columns:
            raise TraceLineError("", f"has {len(values)} fields where the head has {self._columns}")
        at, context, generated = self._places
        self._trace.add(
            FIELDS[0], _moment(values[at]), _count(FIELDS[1], values[context]), _count(FIELDS[2], values[generated])
        )

    def _head(self, line: bytes) -> tuple[int, int, int]:
        names = [name.strip() for name in line.decode("utf-8", "replace").split(",")]
        for field in FIELDS:
            if field not in names:
                raise TraceLineError(field, "is not in the head of the file", hint=f"The head is {','.join(FIELDS)}.")
        self._columns = len(names)
        self._trace.unused |= {*names} - {*FIELDS}
        at, context, generated = (names.index(field) for field in FIELDS)
        return at, context, generated


def _moment(text: bytes) -> float:
    try:
        moment = datetime.fromisoformat(text.decode("ascii").strip())
    except ValueError:
        problem = f"is {_shown(text)}, not a time such as 2023-11-16 18:15:46.6805900" if text.strip() else "is missing"
        raise TraceLineError(FIELDS[0], problem) from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _count(field: str, text: bytes) -> int:
    try:
        return whole(field, int(text), 1)
    except TraceLineError:
        raise
    except ValueError:
        raise TraceLineError(
            field, f"is {_shown(text)}, not a whole number" if text.strip() else "is missing"
        ) from None


def _shown(text: bytes) -> str:
    return repr(text.decode("utf-8", "replace").strip()[:40])
