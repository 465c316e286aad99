"""The time of a completion by phase: a line of statistics, and a timeline for a terminal.

    queue    │▌                                       │    0.4 ms
    prefill  │██████▌                                 │   61.2 ms  38 tokens
    decode   │      ▁▆▇▇▇▇▇▇▇▇▇▇···▃▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇▇│  318.0 ms  64 tokens, longest gap 21.3 ms
    stalled  │                  ▒▒▒                   │   20.1 ms  preempted
             0 ms                               380 ms

The height of a decode column is its number of tokens; a dot is a time without tokens. A stall that is spread over slow
steps has a duration but no bar.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from twofold.core.report import RequestMetrics
from twofold.core.units import count, limit_share

LABEL: Final = 9
NOTES: Final = 48
MIN_COLUMNS: Final = 20
MIN_STALL: Final = 0.01
"""Stalls shorter than this share of the request's time are not drawn."""
HEIGHTS: Final = "▁▂▃▄▅▆▇█"
FULL, STALLED, GAP, EMPTY, EDGE = "█", "▒", "·", " ", "│"


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """The share of a machine limit that a phase reached, and the kind of the limit."""

    share: float
    bound: Literal["memory", "arithmetic"]


@dataclass(frozen=True, slots=True)
class RooflineShares:
    """The shares of both phases; None for a phase that did not run."""

    prefill: PhaseShare | None
    decode: PhaseShare | None

    @property
    def highest(self) -> float:
        return max((phase.share for phase in (self.prefill, self.decode) if phase is not None), default=0.0)


def phase_line(metrics: RequestMetrics, shares: RooflineShares | None) -> str:
    """The line of statistics: 12 prompt tokens: TTFT 40 ms, 310 tok/s, 58% of the arithmetic limit · 64 output …"""
    prompt = count(metrics.prompt_tokens, "prompt token")
    if metrics.cached_tokens:
        loaded = f", {metrics.loaded_tokens:,} of them from the KV store" if metrics.loaded_tokens else ""
        prompt += f" ({metrics.cached_tokens:,} cached{loaded})"
    if metrics.ttft_s is None:
        return f"{prompt}: stopped before the first token"
    prefill = [f"TTFT {_milliseconds(metrics.ttft_s)}", _speed(prefill_speed(metrics))]
    decode = []
    if metrics.tpot_s is not None:
        decode = [f"TPOT {_milliseconds(metrics.tpot_s)}", _speed(decode_speed(metrics))]
    if shares is not None:
        prefill.append(_share(shares.prefill))
        decode.append(_share(shares.decode))
    phases = ((prompt, prefill), (count(metrics.output_tokens, "output token"), decode))
    return " · ".join(f"{head}: {', '.join(filter(None, rest))}" if any(rest) else head for head, rest in phases)


def prefill_speed(metrics: RequestMetrics) -> float | None:
    """Computed prompt tokens per second; None before the first token."""
    return metrics.fresh_tokens / metrics.prefill_s if metrics.first_token is not None and metrics.prefill_s else None


def decode_speed(metrics: RequestMetrics) -> float | None:
    """Tokens per second after the first token; None for fewer than two tokens."""
    return (metrics.output_tokens - 1) / metrics.decode_s if metrics.decode_s else None


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"


def _speed(speed: float | None) -> str:
    return "" if speed is None else f"{speed:,.0f} tok/s" if speed >= 10 else f"{speed:.1f} tok/s"


def _share(phase: PhaseShare | None) -> str:
    if phase is None:
        return ""
    return limit_share(phase.share, f"{phase.bound} limit")


def draw_timeline(metrics: RequestMetrics, width: int = 100) -> str:
    """The timeline of a finished request in lines of about ``width`` characters: one for each phase, for the decode of
    each completion, and for each cause of noticeable stalls."""
    axis = _Axis(metrics.arrival, max(metrics.finished, metrics.arrival), max(MIN_COLUMNS, width - LABEL - NOTES))
    notes = {"queue": "", "prefill": _prefill_note(metrics)}
    lines = [
        _row(name, axis.spans([(start, end)], FULL), end - start, notes[name])
        for name, start, end in metrics.phases()
        if name in notes
    ]
    completions = [times for times in metrics.token_times if times]
    lines += [_row("decode", axis.tokens(times), times[-1] - times[0], _decode_note(times)) for times in completions]
    noticeable = MIN_STALL * (metrics.finished - metrics.arrival)
    for cause, seconds in metrics.record.stalls.items():
        if seconds >= noticeable:
            times = [(pause.start, pause.end) for pause in metrics.record.pauses if pause.cause is cause]
            lines.append(_row("stalled", axis.spans(times, STALLED), seconds, cause.value))
    return "\n".join([*lines, axis.ruler()])


class _Axis:
    """Time in columns."""

    def __init__(self, start: float, end: float, columns: int) -> None:
        self._start = start
        self._length = max(end - start, 1e-9)
        self._columns = columns

    def column(self, moment: float) -> int:
        share = (moment - self._start) / self._length
        return min(self._columns - 1, max(0, int(share * self._columns)))

    def spans(self, times: Iterable[tuple[float, float]], mark: str) -> str:
        """Bars of the spans (start, end); a span longer than 0 fills at least one column."""
        bar = [EMPTY] * self._columns
        for start, end in times:
            if end > start:
                first = self.column(start)
                last = max(first + 1, self.column(end))
                bar[first:last] = mark * (last - first)
        return "".join(bar)

    def tokens(self, times: Sequence[float]) -> str:
        """Heights by the number of tokens in each column, from the first token to the last."""
        counts = [0] * self._columns
        for moment in times:
            counts[self.column(moment)] += 1
        first, last = self.column(times[0]), self.column(times[-1])
        highest = max(counts)
        bars = (_height(tokens, highest) if first <= i <= last else EMPTY for i, tokens in enumerate(counts))
        return "".join(bars)

    def ruler(self) -> str:
        end = _duration(self._length)
        return " " * LABEL + "0 ms" + end.rjust(self._columns - 2)


def _height(tokens: int, highest: int) -> str:
    return HEIGHTS[-(-tokens * len(HEIGHTS) // highest) - 1] if tokens else GAP


def _row(label: str, bar: str, seconds: float, note: str = "") -> str:
    return f"{label:<{LABEL}}{EDGE}{bar}{EDGE}{_duration(seconds):>10}  {note}".rstrip()


def _prefill_note(metrics: RequestMetrics) -> str:
    fresh = count(metrics.fresh_tokens, "token")
    if not metrics.cached_tokens:
        return fresh
    loaded = f", {metrics.loaded_tokens} of them from the KV store" if metrics.loaded_tokens else ""
    return f"{fresh}, {metrics.cached_tokens} cached ({metrics.cached_tokens / metrics.prompt_tokens:.0%}){loaded}"


def _decode_note(times: Sequence[float]) -> str:
    tokens = count(len(times), "token")
    gaps = [after - before for before, after in pairwise(times)]
    return f"{tokens}, longest gap {_duration(max(gaps))}" if gaps else tokens


def _duration(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 10 else f"{seconds * 1000:,.1f} ms"
