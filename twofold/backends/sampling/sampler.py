"""Draws tokens from rows of logits. A draw depends on its own row and request, never on the batch.

What makes one draw impossible is returned in its place: the other requests of the step get their tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, isfinite

import numpy as np

from twofold.backends.sampling.base import F32, GREEDY, Argmax, RowOps, SampleRequest
from twofold.backends.sampling.filters import adjusted, allowed, candidates, changes_logits, filtered, pick, rules_out
from twofold.backends.sampling.logprobs import most_likely, score
from twofold.backends.sampling.philox import uniform, uniforms
from twofold.core.errors import ModelError, TwofoldError
from twofold.core.step import PositionLogprobs, TokenLogprob


class Sampler:
    """Sampling over the rows of one step, with the given implementation of whole-row operations."""

    def __init__(self, rows: RowOps, argmax: Argmax | None = None) -> None:
        self._rows = rows
        self._argmax = argmax or (lambda logits, at: rows.argmax(_select(logits, at)))

    def sample(self, logits: F32, at: Sequence[int], requests: Sequence[SampleRequest]) -> list[int | TwofoldError]:
        """One token for each request, from row ``at[i]`` of ``logits`` [rows, vocab], or why there is none.

        One argmax gives the tokens of requests that are ``GREEDY``, and the maximum that the others need. There is no
        token (ModelError) where the model computed something that is not a number, or where nothing is left that may
        be drawn.
        """
        ids, values = self._argmax(logits, at)
        tokens: list[int | TwofoldError] = ids.tolist()
        for index in np.flatnonzero(~np.isfinite(values)).tolist():
            tokens[index] = _broken()
        if requests.count(GREEDY) == len(requests):
            return tokens
        together = [index for index, request in enumerate(requests) if request.plain and type(tokens[index]) is int]
        if together:
            self._draw(logits, at, requests, together, values, tokens)
        for index, (maximum, request) in enumerate(zip(values.tolist(), requests, strict=True)):
            if request is GREEDY or request.plain or not isfinite(maximum):
                continue
            try:
                if not request.params.greedy or changes_logits(request):
                    tokens[index] = self._sample_row(logits[at[index]], maximum, request)
            except TwofoldError as error:
                tokens[index] = error
        return tokens

    def candidates(self, row: F32, request: SampleRequest) -> tuple[TokenLogprob, ...] | TwofoldError:
        """The ``request.candidates`` most likely tokens of ``row`` [vocab] that may be drawn, or why there are none.

        Fewer where fewer are allowed. Order, log-probabilities and ranks are of the model's own distribution.
        """
        if not isfinite(float(self._rows.argmax(row[None])[1][0])):
            return _broken()
        left = allowed(self._rows, row, request) if rules_out(request) else row
        return most_likely(self._rows, row, left, request.candidates) or _nothing_left(request)

    def score(self, logits: F32, tokens: Sequence[int], alternatives: int) -> tuple[PositionLogprobs, ...]:
        """Log-probabilities of token i in row i of ``logits`` [tokens, vocab], and of the most likely others."""
        return score(self._rows, logits, tokens, alternatives)

    def _draw(
        self,
        logits: F32,
        at: Sequence[int],
        requests: Sequence[SampleRequest],
        together: list[int],
        maxima: F32,
        tokens: list[int | TwofoldError],
    ) -> None:
        """Puts the tokens of those requests into ``tokens`` that take the logits as they are, all at once."""
        chosen = [requests[index] for index in together]
        numbers = uniforms([request.seed for request in chosen], [request.position for request in chosen])
        temperatures = [request.params.temperature for request in chosen]
        ids = self._rows.draw(logits, [at[index] for index in together], maxima[together], temperatures, numbers)
        for index, token in zip(together, ids.tolist(), strict=True):
            tokens[index] = token

    def _sample_row(self, row: F32, maximum: float, request: SampleRequest) -> int:
        params = request.params
        if changes_logits(request):
            row = adjusted(self._rows, row, request)
            ids, values = self._rows.argmax(row[None])
            maximum = float(values[0])
            if maximum == -inf:
                raise _nothing_left(request)
            if params.greedy:
                return int(ids[0])
        number = uniform(request.seed, request.position)
        if filtered(params):
            return pick(*candidates(self._rows, row, maximum, params), number)
        return int(self._rows.draw(row[None], [0], np.array([maximum], np.float32), [params.temperature], [number])[0])


def _broken() -> ModelError:
    return ModelError(
        "The model computed logits that are not finite.", hint="The file may be damaged: verify its checksum."
    )


def _nothing_left(request: SampleRequest) -> ModelError:
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
