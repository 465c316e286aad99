"""What a plan must keep: limits of time, and the share of the requests that must be within all of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from statistics import NormalDist

from twofold.core.errors import ParameterError


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """The most seconds of each measure, None where there is no limit.

    ttft        from arrival to the first token
    tpot        a token after the first, on average over an answer
    e2e         from arrival to the last token
    attainment  the share of requests that must be within them: 0.99 is P99
    """

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None
    attainment: float = 0.9

    def __post_init__(self) -> None:
        if not 0.5 <= self.attainment < 1:
            raise ParameterError(
                f"The attainment must be from 0.5 to below 1, not {self.attainment:g}.",
                param="attainment",
                hint="For example 0.9 or 0.99.",
            )
        for name, limit in self.limits():
            if not 0 < limit < float("inf"):
                raise ParameterError(f"{name} must be a time above 0, not {limit:g} s.", param="slo")

    def limits(self) -> Iterator[tuple[str, float]]:
        """Measure and limit of all that has one."""
        for field in fields(self):
            limit: float | None = getattr(self, field.name)
            if field.name != "attainment" and limit is not None:
                yield field.name, limit

    @property
    def deviations(self) -> float:
        """By how many standard deviations a normal value is above its mean at that share."""
        return NormalDist().inv_cdf(self.attainment)

    def __str__(self) -> str:
        words = ", ".join(f"{name.upper()} ≤ {_short(limit)}" for name, limit in self.limits()) or "no latency limit"
        return f"{words}, for {100 * self.attainment:.4g}% of requests"


def _short(seconds: float) -> str:
    return f"{seconds:g} s" if seconds >= 1 else f"{seconds * 1e3:g} ms"
