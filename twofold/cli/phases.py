"""The line of statistics about a completion: speeds in tokens per second, and shares of the machine's limits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twofold.core.report import RequestMetrics
from twofold.core.units import count


@dataclass(frozen=True, slots=True)
class PhaseShare:
    """The share of a limit of the machine that a phase reached, and the kind of limit."""

    share: float
    bound: Literal["memory", "arithmetic"]


@dataclass(frozen=True, slots=True)
class RooflineShares:
    """Both phases; None for one that did not run."""

    prefill: PhaseShare | None
    decode: PhaseShare | None

    @property
    def highest(self) -> float:
        return max((phase.share for phase in (self.prefill, self.decode) if phase is not None), default=0.0)


def phase_line(metrics: RequestMetrics, shares: RooflineShares | None) -> str:
    """12 prompt tokens: TTFT 40 ms, 310 tok/s, 58% of the arithmetic limit · 64 output tokens: TPOT 4.1 ms, …"""
    prompt = count(metrics.prompt_tokens, "prompt token")
    if metrics.cached_tokens:
        prompt += f" ({metrics.cached_tokens:,} cached)"
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
    """Tokens after the first per second; None without any."""
    return (metrics.output_tokens - 1) / metrics.decode_s if metrics.decode_s else None


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1000:,.1f} ms" if seconds < 0.1 else f"{seconds * 1000:,.0f} ms"


def _speed(speed: float | None) -> str:
    return "" if speed is None else f"{speed:,.0f} tok/s" if speed >= 10 else f"{speed:.1f} tok/s"


def _share(phase: PhaseShare | None) -> str:
    if phase is None:
        return ""
    doubt = " (measured too low: run twofold doctor on an idle machine)" if phase.share > 1.005 else ""
    return f"{phase.share:.0%} of the {phase.bound} limit{doubt}"
