"""Who counts the prompts of a run."""

from __future__ import annotations

from collections.abc import Iterable

from twofold.bench.prompts.base import TokenCounter
from twofold.bench.prompts.units import START, said
from twofold.core.errors import NetworkError


def first_that_counts(counters: Iterable[TokenCounter]) -> TokenCounter | None:
    """The first that has a count for a short prompt; None where none has.

    A server that breaks off what it does not know only says no: whether it is gone, the endpoint's own probe says.
    """
    return next((counter for counter in counters if _counts(counter)), None)


def _counts(counter: TokenCounter) -> bool:
    try:
        return counter.count(said(f"{START} day")) is not None
    except NetworkError:
        return False
