"""Samples tokens from rows of logits. A sample depends on its own row and request, never on the batch.

An impossible sample is an error in its place; the other requests of the step get their tokens.

Log-probabilities are those of the model's own distribution: softmax of the raw logits, before temperature, penalties,
bias and filters. They are natural logarithms. Rank 1 is the most likely token; among equals the lower id comes first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from math import inf, isfinite

import numpy as np
from numpy.typing import NDArray

from twofold.backends.sampling.base import F32, GREEDY, I64, Argmax, RowOps, SampleRequest
from twofold.backends.sampling.filters import adjusted, allowed, candidates, changes_logits, filtered, rules_out
from twofold.backends.sampling.philox import uniforms
from twofold.core.errors import ModelError, TwofoldError
from twofold.core.step import PositionLogprobs, TokenLogprob


class Sampler:
    """Sampling over the rows of one step, with the given implementation of operations on rows."""

    def __init__(self, rows: RowOps, argmax: Argmax | None = None) -> None:
        self._rows = rows
        self._argmax = argmax or (lambda logits, at: rows.argmax(_select(logits, at)))

    def sample(self, logits: F32, at: Sequence[int], requests: Sequence[SampleRequest]) -> list[int | TwofoldError]:
        """One token for each request, from row ``at[i]`` of ``logits`` [rows, vocab].

        One argmax gives the tokens of greedy requests, and the maxima that the others need. A ModelError takes the
        place of a token if the model's logits are not finite, or if the rules leave no token.
        """
        ids, maxima = self._argmax(logits, at)
        tokens: list[int | TwofoldError] = ids.tolist()
        for index in np.flatnonzero(~np.isfinite(maxima)).tolist():
            tokens[index] = _broken()
        if requests.count(GREEDY) == len(requests):
            return tokens
        groups: defaultdict[int | None, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            if request is GREEDY or type(tokens[index]) is not int:
                continue
            if changes_logits(request):
                groups[0 if request.mask is None else len(request.mask)].append(index)
            elif not request.params.greedy:
                groups[None].append(index)
        rows = np.asarray(at, np.int64)
        for mask_size, group in groups.items():
            chosen = [requests[index] for index in group]
            some = np.array(group)
            if mask_size is None:
                found: Sequence[int | TwofoldError] = self._sample(logits, rows[some], maxima[some], chosen)
            else:
                found = self._sample_adjusted(logits, rows[some], chosen)
            for index, token in zip(group, found, strict=True):
                tokens[index] = token
        return tokens

    def candidates(self, row: F32, request: SampleRequest) -> tuple[TokenLogprob, ...] | TwofoldError:
        """The ``request.candidates`` most likely tokens of ``row`` [vocab] that can be sampled, descending.

        Fewer if fewer are allowed; an error if none is. Tokens that cannot be sampled keep their ranks.
        """
        logits = row[None]
        if not isfinite(float(self._rows.argmax(logits)[1][0])):
            return _broken()
        left = allowed(self._rows, logits, np.array([0]), [request])[0] if rules_out(request) else row
        (ids,), (values,) = self._rows.top(left[None], np.array([0]), min(request.candidates, len(left)))
        ids, values = ids[values > -inf], values[values > -inf]
        normaliser = float(self._rows.log_sum_exp(logits)[0])
        ranks = range(1, len(ids) + 1) if left is row else _ranks(row, ids)
        found = zip(ids.tolist(), values.tolist(), ranks, strict=True)
        return tuple(TokenLogprob(token, value - normaliser, rank) for token, value, rank in found) or _no_token(
            request
        )

    def score(self, logits: F32, tokens: Sequence[int], alternatives: int) -> tuple[PositionLogprobs, ...]:
        """Log-probabilities of token i in row i of ``logits`` [tokens, vocab], and of the most likely others there."""
        rows, count = self._rows, min(alternatives, logits.shape[1])
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

    def _sample(self, logits: F32, at: I64, maxima: F32, requests: Sequence[SampleRequest]) -> list[int]:
        """Samples from the rows ``at`` by temperature and filters; ``maxima`` are the largest logits of these rows."""
        numbers = np.array(uniforms([one.seed for one in requests], [one.position for one in requests]))
        groups: defaultdict[int | None, list[int]] = defaultdict(list)
        for index, request in enumerate(requests):
            groups[request.params.top_k if filtered(request.params) else None].append(index)
        found = np.empty(len(at), np.int64)
        for top_k, group in groups.items():
            some = np.array(group)
            params = [requests[index].params for index in group]
            if top_k is None:
                temperatures = np.array([one.temperature for one in params])
                found[some] = self._rows.sample(logits, at[some], maxima[some], temperatures, numbers[some])
            else:
                for kept in candidates(self._rows, logits, at[some], maxima[some], params):
                    chosen = some[kept.rows]
                    found[chosen] = kept.pick(numbers[chosen])
        tokens: list[int] = found.tolist()
        return tokens

    def _sample_adjusted(self, logits: F32, at: I64, requests: Sequence[SampleRequest]) -> list[int | TwofoldError]:
        """Samples from the rows ``at`` after the rules that change logits. Masks have equal lengths or are None."""
        copied = adjusted(self._rows, logits, at, requests)
        ids, maxima = self._rows.argmax(copied)
        found: list[int | TwofoldError] = ids.tolist()
        sampled: list[int] = []
        for index, (maximum, request) in enumerate(zip(maxima.tolist(), requests, strict=True)):
            if maximum == -inf:
                found[index] = _no_token(request)
            elif not request.params.greedy:
                sampled.append(index)
        if sampled:
            rows = np.array(sampled)
            for index, token in zip(
                sampled, self._sample(copied, rows, maxima[rows], [requests[i] for i in sampled]), strict=True
            ):
                found[index] = token
        return found


def _broken() -> ModelError:
    return ModelError(
        "The model computed logits that are not finite.", hint="The file may be damaged: verify its checksum."
    )


def _no_token(request: SampleRequest) -> ModelError:
    if request.mask is None:
        return ModelError("Every token is suppressed.", hint="Suppress fewer tokens.")
    return ModelError(
        "No token satisfies both the structured output and the other sampling parameters.",
        hint="Allow the end of sequence earlier (min_tokens), or change the form of the output.",
    )


def _select(logits: F32, at: Sequence[int]) -> F32:
    """The rows ``at``, ascending: a view where they are adjacent, else a copy."""
    if at[-1] - at[0] + 1 == len(at):
        return logits[at[0] : at[-1] + 1]
    copied: F32 = logits[np.asarray(at)]
    return copied


def _chosen(row: F32, token: int, normaliser: float) -> TokenLogprob:
    value = row[token]
    rank = 1 + int(np.count_nonzero(row > value)) + int(np.count_nonzero(row[:token] == value))
    return TokenLogprob(token, float(value) - normaliser, rank)


def _ranks(row: F32, ids: NDArray[np.int32]) -> list[int]:
    """The rank of each of ``ids``, which ascend by rank."""
    if not len(ids):
        return []
    ahead = np.flatnonzero(row >= row[ids[-1]])
    places = np.empty(len(row), np.int64)
    places[ahead[np.lexsort((ahead, -row[ahead]))]] = np.arange(1, len(ahead) + 1)
    ranks: list[int] = places[ids].tolist()
    return ranks
