"""A forward pass with something around it: who watches one changes ``run`` alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from twofold.core.step import BlockMove
from twofold.ops.base import Batch, Forward
from twofold.sampling.base import F32


class WrappedForward:
    """A model as it is."""

    def __init__(self, forward: Forward) -> None:
        self._forward = forward

    @property
    def vocab_size(self) -> int:
        return self._forward.vocab_size

    @property
    def hidden_size(self) -> int:
        return self._forward.hidden_size

    @property
    def max_rows(self) -> int:
        return self._forward.max_rows

    @property
    def max_logit_rows(self) -> int:
        return self._forward.max_logit_rows

    @property
    def hidden(self) -> F32:
        return self._forward.hidden

    def run(self, batch: Batch, meanwhile: Callable[[], None] | None = None) -> F32:
        """As ``Forward.run``."""
        return self._forward.run(batch, meanwhile)

    def move(self, moves: Sequence[BlockMove]) -> None:
        """As ``Forward.move``."""
        self._forward.move(moves)
