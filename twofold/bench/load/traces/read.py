"""Reads a trace of any known format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, get_args

from twofold.bench.load.checks import MAX_TOKENS, whole
from twofold.bench.load.traces.azure import FIELDS, AzureReader
from twofold.bench.load.traces.lines import TraceLineError, digest, first_line, read_lines
from twofold.bench.load.traces.mooncake import BLOCK_TOKENS, MooncakeReader, parsed
from twofold.bench.load.traces.own import OwnReader
from twofold.bench.load.traces.trace import Format, Trace
from twofold.core.errors import ParameterError, closest_match, describe_name

FORMATS: Final[tuple[Format, ...]] = get_args(Format)


def read_trace(
    path: Path, *, form: Format | None = None, skip_bad: bool = False, block_tokens: int = BLOCK_TOKENS
) -> Trace:
    """The requests of a file, plain or gzip; its first line tells the format where none is named.

    A line that cannot be used is a ParameterError that names file, line and field, or with ``skip_bad`` left out and
    counted. ``block_tokens`` are those of a block of Mooncake's format. UsageError where there is no such file.
    """
    trace = Trace(path, _format(path) if form is None else _known(form))
    whole("block tokens", block_tokens, 1, MAX_TOKENS)
    parsers: dict[Format, Callable[[], Callable[[bytes], None]]] = {
        "azure": lambda: AzureReader(trace),
        "mooncake": lambda: MooncakeReader(trace, block_tokens),
        "twofold": lambda: OwnReader(trace),
    }
    trace.skipped = read_lines(path, parsers[trace.form](), skip_bad=skip_bad)
    if not len(trace):
        skipped = trace.skipped
        why = f": lines skipped {skipped.count}, the first one {skipped.first}" if skipped.count else ""
        raise ParameterError(f"{path.name} holds no request{why}.", param="trace", hint="Name a trace that does.")
    trace.sha256 = digest(path)
    return trace


def _known(form: str) -> Format:
    for known in FORMATS:
        if form == known:
            return known
    close = closest_match(form, FORMATS)
    hint = f"Did you mean {close!r}?" if close else f"Known: {', '.join(FORMATS)}."
    raise ParameterError(f"{describe_name(form)} is not a trace format.", param="trace-format", hint=hint)


def _format(path: Path) -> Format:
    """What the first line says the format is."""
    line = first_line(path)
    if line.lstrip().startswith(b"{"):
        try:
            names = parsed(line).keys()
        except TraceLineError:
            return "twofold"
        return "mooncake" if "input_length" in names else "twofold"
    if FIELDS[0].encode() in line:
        return "azure"
    raise ParameterError(
        f"{path.name} is not a trace in a known format.",
        param="trace",
        hint=f"Known: JSON lines of ours or of Mooncake's, and CSV with the head {','.join(FIELDS)}.",
    )
