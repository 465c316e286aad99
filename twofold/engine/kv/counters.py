"""What the prefix cache did since it was made, in tokens and blocks."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class PinTokens:
    """Tokens of pins of one time to live: first pinned, read by later prompts, given up, refused for want of room."""

    written: int = 0
    read: int = 0
    expired: int = 0
    refused: int = 0


@dataclass(slots=True)
class CacheCounters:
    """``queries`` tokens were looked up, of which ``hits`` were found and ``misses`` were not; hits + misses = queries.

    ``evicted`` counts blocks of all groups that were forgotten to make room. ``pins`` are by seconds to live.
    """

    queries: int = 0
    hits: int = 0
    misses: int = 0
    evicted: int = 0
    pins: dict[float, PinTokens] = field(default_factory=dict)

    def lookup(self, tokens: int, found: int) -> None:
        """Counts a prompt of ``tokens`` of which ``found`` were cached."""
        self.queries += tokens
        self.hits += found
        self.misses += tokens - found

    def pins_of(self, seconds: float) -> PinTokens:
        """The counts of this time to live."""
        return self.pins.setdefault(seconds, PinTokens())
