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
    count = min(alternatives, logits.shape[1])
    none = np.empty((len(logits), 0))
    ids, values = rows.top(logits, np.arange(len(logits)), count) if count else (none, none)
    each = zip(logits, tokens, rows.log_sum_exp(logits).tolist(), ids.tolist(), values.tolist(), strict=True)
    return tuple(
        PositionLogprobs(
            _chosen(row, token, normaliser),
            tuple(
                TokenLogprob(other, value - normaliser, rank)
                for rank, (other, value) in enumerate(zip(others, tops, strict=True), 1)
            ),
        )
        for row, token, normaliser, others, tops in each
    )


def _chosen(row: F32, token: int, normaliser: float) -> TokenLogprob:
    value = row[token]
    rank = 1 + int(np.count_nonzero(row > value)) + int(np.count_nonzero(row[:token] == value))
    return TokenLogprob(token, float(value) - normaliser, rank)


def most_likely(rows: RowOps, row: F32, left: F32, count: int) -> tuple[TokenLogprob, ...]:
    """The ``count`` most likely tokens of ``row`` [vocab] among those that are above −inf in ``left``, descending.

    ``left`` [vocab] is the row with other tokens at −inf; they still have their places in the ranks.
    """
    (ids,), (values,) = rows.top(left[None], np.array([0]), min(count, len(left)))
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
