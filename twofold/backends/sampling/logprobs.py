"""Log-probabilities of tokens in the model's own distribution: softmax of the raw logits, before temperature,
penalties, bias and filters. Natural logarithms; rank 1 is the most likely token, ties by lower id first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from twofold.backends.sampling.base import F32, RowOps
from twofold.core.step import PositionLogprobs, TokenLogprob


def score(rows: RowOps, logits: F32, tokens: Sequence[int], alternatives: int) -> tuple[PositionLogprobs, ...]:
    """The log-probability of token i in row i of ``logits``, [tokens, vocab], and the most likely others there."""
    normalisers = rows.log_sum_exp(logits)
    return tuple(
        _score_row(rows, row, float(normaliser), token, alternatives)
        for row, normaliser, token in zip(logits, normalisers, tokens, strict=True)
    )


def _score_row(rows: RowOps, row: F32, normaliser: float, token: int, alternatives: int) -> PositionLogprobs:
    top: tuple[TokenLogprob, ...] = ()
    if alternatives:
        ids, values = rows.top(row, min(alternatives, len(row)))
        top = tuple(
            TokenLogprob(int(i), float(value) - normaliser, rank + 1)
            for rank, (i, value) in enumerate(zip(ids, values, strict=True))
        )
    return PositionLogprobs(TokenLogprob(token, float(row[token]) - normaliser, _rank(row, token)), top)


def most_likely(rows: RowOps, row: F32, left: F32, count: int) -> tuple[TokenLogprob, ...]:
    """The ``count`` most likely tokens of ``row`` [vocab] among those that are above −inf in ``left``, descending.

    ``left`` [vocab] is the row with other tokens at −inf; they still have their places in the ranks.
    """
    ids, values = rows.top(left, min(count, len(left)))
    ids, values = ids[values > -np.inf], values[values > -np.inf]
    normaliser = float(rows.log_sum_exp(row[None])[0])
    ranks = range(1, len(ids) + 1) if left is row else _ranks(row, ids)
    return tuple(
        TokenLogprob(token, value - normaliser, rank)
        for token, value, rank in zip(ids.tolist(), values.tolist(), ranks, strict=True)
    )


def _ranks(row: F32, ids: NDArray[np.int32]) -> list[int]:
    """The rank of each of ``ids``, which are given in the order of their ranks."""
    if not len(ids):
        return []
    ahead = np.flatnonzero(row >= row[ids[-1]])
    places = np.empty(len(row), np.int64)
    places[ahead[np.lexsort((ahead, -row[ahead]))]] = np.arange(1, len(ahead) + 1)
    ranks: list[int] = places[ids].tolist()
    return ranks


def _rank(row: F32, token: int) -> int:
    value = row[token]
    return 1 + int(np.count_nonzero(row > value)) + int(np.count_nonzero(row[:token] == value))
