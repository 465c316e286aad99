"""From a row of logits to the distribution that a token is drawn from. The order of the rules:

    repetition penalty → frequency and presence penalties → bias     change logits
    suppressed tokens, tokens that the mask rules out                are given −inf: no bias brings them back
    temperature                                                      divides the logits
    top-k → top-p → min-p                                            keep the most likely tokens

Top-p measures probability among the tokens that top-k kept. Min-p compares with the most likely token, so its place
in the order changes nothing but what top-p calls 100 %. Between equally likely tokens the lower id comes first.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from twofold.backends.sampling.base import F32, RowOps, SampleRequest
from twofold.core.params import SamplingParams

LOOKS: Final = (64, 1024)
"""Top-p and min-p look at so many of the most likely tokens, one after the other; where none is enough, at all."""


def changes_logits(request: SampleRequest) -> bool:
    """Whether the request's draw needs logits other than the model's."""
    return request.params.penalises or bool(request.params.biases) or rules_out(request)


def rules_out(request: SampleRequest) -> bool:
    """Whether tokens cannot be drawn, however likely they are."""
    return bool(request.suppressed) or request.mask is not None


def adjusted(rows: RowOps, row: F32, request: SampleRequest) -> F32:
    """A copy of the row, float32 [vocab], with all rules that change logits applied."""
    params = request.params
    if not (params.penalises or params.biases):
        return allowed(rows, row, request)
    row = row.copy()
    if params.penalises:
        _penalise(row, request)
    for token, bias in params.biases.items():
        row[token] += np.float32(bias)
    return allowed(rows, row, request) if rules_out(request) else row


def allowed(rows: RowOps, row: F32, request: SampleRequest) -> F32:
    """A copy of the row with −inf for suppressed tokens and for those that the mask rules out."""
    if request.mask is None:
        row = row.copy()
    else:
        masked = np.empty_like(row)
        rows.mask(row, np.frombuffer(request.mask, np.uint32), masked)
        row = masked
    if request.suppressed:
        row[np.asarray(request.suppressed, dtype=np.int32)] = -np.inf
    return row


def _penalise(row: F32, request: SampleRequest) -> None:
    params = request.params
    answer, times = np.unique(np.asarray(request.answer, dtype=np.int32), return_counts=True)
    if params.repetition_penalty != 1:
        seen = np.union1d(np.asarray(request.prompt, dtype=np.int32), answer)
        factor = np.float32(params.repetition_penalty)
        values = row[seen]
        row[seen] = np.where(values > 0, values / factor, values * factor)
    row[answer] -= np.float32(params.frequency_penalty) * times.astype(np.float32)
    row[answer] -= np.float32(params.presence_penalty)


def filtered(params: SamplingParams) -> bool:
    """Whether some tokens cannot be drawn at all."""
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


def candidates(
    rows: RowOps, row: F32, maximum: float, params: SamplingParams
) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The tokens that the filters keep, most likely first, and the running sums of their weights (float64)."""
    if params.top_k > 0:
        ids, weights = _look(rows, row, params.top_k, params)
        sums = weights.cumsum()
        kept = _kept(weights, sums, params, float(sums[-1]))
        return ids[:kept], sums[:kept]
    total = rows.weight_sum(row, maximum, params.temperature) if params.top_p < 1 else np.inf
    for size in (*LOOKS, len(row)):
        ids, weights = _look(rows, row, size, params)
        sums = weights.cumsum()
        kept = _kept(weights, sums, params, total)
        if kept < len(ids):
            break
    return ids[:kept], sums[:kept]


def _look(rows: RowOps, row: F32, count: int, params: SamplingParams) -> tuple[NDArray[np.int32], NDArray[np.float64]]:
    """The most likely tokens and their weights: 1 for the first, exp((logit − first) / temperature) for the others."""
    ids, values = rows.top(row, min(count, len(row)))
    logits = values.astype(np.float64)
    with np.errstate(over="ignore", under="ignore"):
        return ids, np.exp((logits - logits[0]) / params.temperature)


def _kept(weights: NDArray[np.float64], sums: NDArray[np.float64], params: SamplingParams, total: float) -> int:
    """How many of the tokens top-p and min-p keep; the most likely one always stays."""
    kept = len(weights)
    if params.top_p < 1:
        kept = min(kept, 1 + int(sums.searchsorted(params.top_p * total, side="left")))
    if params.min_p > 0:
        kept = min(kept, int(np.count_nonzero(weights >= params.min_p)))
    return max(kept, 1)


def pick(ids: NDArray[np.int32], sums: NDArray[np.float64], uniform: float) -> int:
    """The first id whose running sum exceeds uniform · total; never one of weight 0."""
    found = sums.searchsorted(uniform * sums[-1], side="right")
    last = sums.searchsorted(sums[-1], side="left")
    return int(ids[min(found, last)])
