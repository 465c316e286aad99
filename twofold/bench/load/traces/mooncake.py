"""Mooncake's traces (Qin et al., "Mooncake", FAST 2025): JSON lines.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 48, …]}

``timestamp`` is in milliseconds. ``hash_ids`` name the blocks of 512 tokens of the prompt, the last of which may be
partial: equal ids are equal tokens after equal tokens. They may be left out; there may be fewer than the prompt is
long, and then the rest of it is its own.
"""

from __future__ import annotations

from itertools import chain, repeat
from typing import Any, Final

import orjson

from twofold.bench.load.checks import MAX_SECONDS
from twofold.bench.load.traces.lines import TraceLineError, seconds, whole
from twofold.bench.load.traces.trace import MAX_KEY, Trace

BLOCK_TOKENS: Final = 512
_KNOWN: Final = frozenset({"timestamp", "input_length", "output_length", "hash_ids"})


def parsed(line: bytes) -> dict[str, Any]:
    """The object of a line. LineError where it holds none."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise TraceLineError("", f"is not JSON ({error})") from None
    if not isinstance(value, dict):
        raise TraceLineError("", "is not a JSON object")
    return value


class MooncakeReader:
    """Adds the lines of a file to a trace, whose blocks have ``block_tokens`` tokens."""

    def __init__(self, trace: Trace, block_tokens: int = BLOCK_TOKENS) -> None:
        self._trace = trace
        self._block = block_tokens

    def __call__(self, line: bytes) -> None:
        value = parsed(line)
        if value.keys() - _KNOWN:
            self._trace.unused |= value.keys() - _KNOWN
        at_s = seconds("timestamp", value.get("timestamp"), MAX_SECONDS * 1000) / 1000
        tokens = whole("input_length", value.get("input_length"), 1)
        ids = self._ids(value.get("hash_ids", []), tokens)
        self._trace.add("timestamp", at_s, tokens, whole("output_length", value.get("output_length"), 1))
        if ids:
            full = len(ids) - 1
            self._trace.share(ids, chain(repeat(self._block, full), (min(self._block, tokens - full * self._block),)))

    def _ids(self, ids: object, tokens: int) -> list[int]:
        if not isinstance(ids, list):
            raise TraceLineError("hash_ids", "is no list")
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
