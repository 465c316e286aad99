"""Sets of names, written as one string so that a long list stays readable."""

from __future__ import annotations


def names(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())
