"""Reads traces: Azure's, Mooncake's, and Twofold's own format (``own``).

Azure's traces of LLM inference (AzurePublicDataset, 2023 and 2024) are CSV with a head; a time without a zone is UTC,
and digits after microseconds are dropped:

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:15:46.6805900,374,44              2023: seven digits, no zone
    2024-05-10 00:00:00.009930+00:00,2162,5         2024: six digits or none, and a zone

Mooncake's traces (Qin et al., "Mooncake", FAST 2025) are JSON lines, with times in milliseconds:

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, …]}

``hash_ids`` name the prompt's blocks of 512 tokens, of which the last may be partial: equal ids after equal ids are
equal tokens. They are optional; tokens beyond them are unique to the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import chain, repeat
from pathlib import Path
from typing import Final, get_args

from twofold.bench.load.checks import MAX_SECONDS, MAX_TOKENS
from twofold.bench.load.checks import whole as check_whole
from twofold.bench.load.traces.own import OwnReader, parsed
from twofold.bench.load.traces.trace import (
    MAX_KEY,
    Format,
    Trace,
    TraceLineError,
    digest,
    first_line,
    read_lines,
    seconds,
    whole,
)
from twofold.core.errors import ParameterError, describe_name, did_you_mean

FORMATS: Final[tuple[Format, ...]] = get_args(Format)
BLOCK_TOKENS: Final = 512
_AZURE: Final = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_MOONCAKE: Final = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})


def read_trace(
    path: Path, *, form: Format | None = None, skip_bad: bool = False, block_tokens: int = BLOCK_TOKENS
) -> Trace:
    """The requests of a file, plain or gzip. The default format is the one that the first line has.

    block_tokens  tokens of a block in Mooncake's format

    Raises UsageError for a missing file, and ParameterError with file, line and field for an invalid line; with
    ``skip_bad`` such lines are counted instead.
    """
    if form is not None and form not in FORMATS:
        message = f"{describe_name(form)} is not a trace format."
        raise ParameterError(message, param="trace-format", hint=did_you_mean(form, FORMATS))
    trace = Trace(path, form or _format(path))
    check_whole("block tokens", block_tokens, 1, MAX_TOKENS)
    readers: dict[Format, Callable[[], Callable[[bytes], None]]] = {
        "azure": lambda: AzureReader(trace),
        "mooncake": lambda: MooncakeReader(trace, block_tokens),
        "twofold": lambda: OwnReader(trace),
    }
    trace.skipped = read_lines(path, readers[trace.form](), skip_bad=skip_bad)
    if not len(trace):
        skipped = trace.skipped
        why = f": lines skipped {skipped.count}, the first one {skipped.first}" if skipped.count else ""
        raise ParameterError(f"{path.name} holds no request{why}.", param="trace", hint="Give a trace with requests.")
    trace.sha256 = digest(path)
    return trace


def _format(path: Path) -> Format:
    line = first_line(path)
    if line.lstrip().startswith(b"{"):
        try:
            return "mooncake" if "input_length" in parsed(line) else "twofold"
        except TraceLineError:
            return "twofold"
    if _AZURE[0].encode() in line:
        return "azure"
    raise ParameterError(
        f"{path.name} is not a trace in a known format.",
        param="trace",
        hint=f"Known: JSON lines (Twofold or Mooncake), and CSV with the head {','.join(_AZURE)}.",
    )


class AzureReader:
    """Adds the lines of a file to a trace; the first one is the head."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._places: list[int] = []
        self._columns = 0

    def __call__(self, line: bytes) -> None:
        if not self._places:
            self._read_head(line)
            return
        values = line.split(b",")
        if len(values) != self._columns:
            raise TraceLineError("", f"has {len(values)} fields where the head has {self._columns}")
        time, prompt, output = (values[place] for place in self._places)
        self._trace.add(_AZURE[0], _moment(time), _count(_AZURE[1], prompt), _count(_AZURE[2], output))

    def _read_head(self, line: bytes) -> None:
        names = [name.strip() for name in line.decode("utf-8", "replace").split(",")]
        for field in _AZURE:
            if field not in names:
                raise TraceLineError(field, "is not in the head of the file", hint=f"The head is {','.join(_AZURE)}.")
        self._places, self._columns = [names.index(field) for field in _AZURE], len(names)
        self._trace.unused |= {*names} - {*_AZURE}


def _moment(text: bytes) -> float:
    try:
        moment = datetime.fromisoformat(text.decode("ascii").strip())
    except ValueError:
        raise _unusable(_AZURE[0], text, "a time such as 2023-11-16 18:15:46.6805900") from None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _count(field: str, text: bytes) -> int:
    try:
        value = int(text)
    except ValueError:
        raise _unusable(field, text, "a whole number") from None
    return whole(field, value, 1)


def _unusable(field: str, text: bytes, wanted: str) -> TraceLineError:
    shown = text.decode("utf-8", "replace").strip()[:40]
    return TraceLineError(field, f"is {shown!r}, not {wanted}" if shown else "is missing")


class MooncakeReader:
    """Adds the lines of a file to a trace with blocks of ``block_tokens`` tokens."""

    def __init__(self, trace: Trace, block_tokens: int) -> None:
        self._trace = trace
        self._block = block_tokens

    def __call__(self, line: bytes) -> None:
        value = parsed(line)
        self._trace.unused |= value.keys() - _MOONCAKE
        at_s = seconds("timestamp", value.get("timestamp"), MAX_SECONDS * 1000) / 1000
        tokens = whole("input_length", value.get("input_length"), 1)
        ids = self._ids(value.get("hash_ids", []), tokens)
        self._trace.add("timestamp", at_s, tokens, whole("output_length", value.get("output_length"), 1))
        if ids:
            full = len(ids) - 1
            self._trace.share(ids, chain(repeat(self._block, full), (min(self._block, tokens - full * self._block),)))

    def _ids(self, ids: object, tokens: int) -> list[int]:
        if not isinstance(ids, list):
            raise TraceLineError("hash_ids", "is not a list")
        most = -(-tokens // self._block)
        if len(ids) > most:
            raise TraceLineError(
                "hash_ids",
                f"has {len(ids)} blocks, but {tokens} tokens fill only {most} of {self._block}",
                hint="Give the trace's --block-tokens, or --skip-bad to skip such lines.",
            )
        for each in ids:
            if type(each) is not int or not 0 <= each <= MAX_KEY:
                raise TraceLineError("hash_ids", f"holds {each!r:.30}, not a whole number from 0 to 2⁶⁴ − 1")
        return ids
