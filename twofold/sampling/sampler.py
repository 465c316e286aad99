"""Draws tokens from rows of logits. A draw depends on its own row and request, never on the batch."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

import numpy as np

from twofold.core.errors import ModelError
from twofold.core.step import DrawRequest, PositionLogprobs
from twofold.sampling.base import F32, RowOps
from twofold.sampling.filters import adjusted, candidates, changes_logits, filtered, pick
from twofold.sampling.logprobs import score
from twofold.sampling.philox import uniform


class Sampler:
    """Sampling over the rows of one step, with the given implementation of whole-row operations."""

    def __init__(self, rows: RowOps) -> None:
        self._rows = rows

    def draw(self, logits: F32, at: Sequence[int], requests: Sequence[DrawRequest]) -> list[int]:
        """One token for each request, from row ``at[i]`` of ``logits`` [rows, vocab].

        Greedy requests that leave the logits as they are share one argmax; it is also the maximum that the others
        need. Raises ModelError when the model computed something that is not a number.
        """
        ids, values = self._rows.argmax(_select(logits, at))
        tokens: list[int] = ids.tolist()
        for index, (maximum, request) in enumerate(zip(values.tolist(), requests, strict=True)):
            if not isfinite(maximum):
                raise ModelError(
                    "The model computed logits that are not finite numbers.",
                    hint="Its file may be damaged: check its sum.",
                )
            if not request.params.greedy or changes_logits(request):
                tokens[index] = self._draw_row(logits[at[index]], maximum, request)
        return tokens

    def score(self, logits: F32, tokens: Sequence[int], alternatives: int) -> tuple[PositionLogprobs, ...]:
        """Log-probabilities of token i in row i of ``logits`` [tokens, vocab], and of the most likely others."""
        return score(self._rows, logits, tokens, alternatives)

    def _draw_row(self, row: F32, maximum: float, request: DrawRequest) -> int:
        params = request.params
        if changes_logits(request):
            row = adjusted(row, request)
            ids, values = self._rows.argmax(row[None])
            if params.greedy:
                return int(ids[0])
            maximum = float(values[0])
        number = uniform(request.seed, request.position)
        if filtered(params):
            return pick(*candidates(self._rows, row, maximum, params), number)
        return self._rows.draw(row, maximum, params.temperature, number)


def _select(logits: F32, at: Sequence[int]) -> F32:
    """The rows ``at``, ascending: a view where they are adjacent, else a copy."""
    if at[-1] - at[0] + 1 == len(at):
        return logits[at[0] : at[-1] + 1]
    copied: F32 = logits[np.asarray(at)]
    return copied
