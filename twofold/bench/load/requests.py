"""What the requests of a made-up load ask for, each by its index alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twofold.bench.load.base import Ask, Shared
from twofold.bench.load.draws import Draws, RandomStream
from twofold.bench.load.lengths import Lengths
from twofold.bench.load.shared import SharedPrefix


class RandomRequests:
    """Prompts and answers with lengths from two distributions; request ``index`` of a seed is always the same."""

    def __init__(
        self,
        input_tokens: Lengths,
        output_tokens: Lengths,
        *,
        seed: int = 0,
        shared: SharedPrefix | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        self.seed = seed
        self._said = {
            "input_tokens": input_tokens.describe(),
            "output_tokens": output_tokens.describe(),
            "shared": None if shared is None else shared.describe(),
            "seed": seed,
        }
        self._input = Draws[int](seed, RandomStream.INPUT, input_tokens.draw)
        self._output = Draws[int](seed, RandomStream.OUTPUT, output_tokens.draw)
        self._shared = shared
        self._groups = None if shared is None else Draws[int](seed, RandomStream.GROUPS, shared.draw)
        self._fields: Mapping[str, Any] = {} if fields is None else fields

    def ask(self, index: int, due_s: float) -> Ask:
        """Request ``index`` of the run, due at ``due_s``."""
        tokens = self._input[index]
        pieces: tuple[Shared, ...] = ()
        if self._shared is not None and self._groups is not None:
            pieces = self._shared.pieces(self._groups[index], tokens)
        return Ask(index, due_s, tokens, self._output[index], pieces, fields=self._fields)

    def describe(self) -> Mapping[str, Any]:
        return self._said
