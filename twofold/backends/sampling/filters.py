"""From rows of logits to the distributions that tokens are sampled from. The order of the rules:

    repetition penalty → frequency and presence penalties → bias     change logits
    suppressed tokens, tokens that the mask rules out                are set to −inf, whatever their bias
    temperature                                                      divides the logits
    top-k → top-p → min-p                                            keep the most likely tokens

Top-p measures probability among the tokens that top-k kept. Min-p compares with the most likely token, so its place
in the order matters only to the total of top-p. Among equally likely tokens the lower id comes first.

All rows of a step are processed together, whatever their parameters; only different values of top-k, and masks of
different lengths, need separate passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from twofold.backends.sampling.base import F32, F64, I64, RowOps, SampleRequest
from twofold.core.params import SamplingParams

STAGES: Final = (64, 1024)
"""Numbers of the most likely tokens that top-p and min-p inspect in turn, until one suffices; then all tokens."""
MAX_INSPECTED: Final = 1 << 20
"""Max tokens that one pass inspects, of all rows together: bounds the memory of a pass."""


def changes_logits(request: SampleRequest) -> bool:
    """Whether the request's rules change the model's logits."""
    return request.params.penalises or bool(request.params.biases) or rules_out(request)


def rules_out(request: SampleRequest) -> bool:
    """Whether tokens cannot be sampled, however likely they are."""
    return bool(request.suppressed) or request.mask is not None


def adjusted(rows: RowOps, logits: F32, at: I64, requests: Sequence[SampleRequest]) -> F32:
    """A copy of the rows ``at`` with all rules that change logits applied: float32 [len(at), vocab].

    The masks of the requests have equal lengths, or all are None.
    """
    copied = allowed(rows, logits, at, requests)
    _penalise(copied, requests)
    biased = [index for index, request in enumerate(requests) if request.params.biases]
    if biased:
        biases = [requests[index].params.biases for index in biased]
        values = np.fromiter(chain.from_iterable([some.values() for some in biases]), np.float64)
        copied.reshape(-1)[_cells(copied, biased, [tuple(some) for some in biases])] += values.astype(np.float32)
    return copied


def allowed(rows: RowOps, logits: F32, at: I64, requests: Sequence[SampleRequest]) -> F32:
    """A copy of the rows ``at`` with −inf for suppressed tokens and for those that the masks rule out.

    The masks of the requests have equal lengths, or all are None.
    """
    masks = [request.mask for request in requests if request.mask is not None]
    if masks:
        copied = rows.mask(logits, at, np.frombuffer(b"".join(masks), np.uint32).reshape(len(at), -1))
    else:
        copied = logits[at]
    suppressing = [index for index, request in enumerate(requests) if request.suppressed]
    if suppressing:
        tokens = [requests[index].suppressed for index in suppressing]
        copied.reshape(-1)[_cells(copied, suppressing, tokens)] = -np.inf
    return copied


def _cells(logits: F32, rows: Sequence[int], tokens: Sequence[Sequence[int]]) -> I64:
    """Indices into the flattened ``logits``: of ``tokens[i]`` in row ``rows[i]``."""
    firsts = np.asarray(rows, np.int64) * logits.shape[1]
    ids = np.concatenate(tokens, dtype=np.int64, casting="unsafe")  # an empty list would be of float64
    cells: I64 = ids + np.repeat(firsts, [len(some) for some in tokens])
    return cells


def _penalise(logits: F32, requests: Sequence[SampleRequest]) -> None:
    """Applies the penalties to the rows, in place. −inf stays −inf."""
    penalised = [index for index, request in enumerate(requests) if request.params.penalises]
    if not penalised:
        return
    flat = logits.reshape(-1)
    repeated = [index for index in penalised if requests[index].params.repetition_penalty != 1]
    if repeated:
        texts = [requests[index].prompt for index in repeated] + [requests[index].completion for index in repeated]
        seen = np.unique(_cells(logits, repeated * 2, texts))
        seen = seen[flat[seen] > -np.inf]  # a tiny factor is 0 in float32, and −inf · 0 is not a number
        factors = np.array([request.params.repetition_penalty for request in requests], np.float32)
        values, factor = flat[seen], factors[seen // logits.shape[1]]
        flat[seen] = np.where(values > 0, values / factor, values * factor)
    cells, times = np.unique(
        _cells(logits, penalised, [requests[index].completion for index in penalised]), return_counts=True
    )
    row = cells // logits.shape[1]
    frequency = np.array([request.params.frequency_penalty for request in requests], np.float32)
    presence = np.array([request.params.presence_penalty for request in requests], np.float32)
    flat[cells] -= frequency[row] * times.astype(np.float32)
    flat[cells] -= presence[row]


def filtered(params: SamplingParams) -> bool:
    """Whether filters exclude some tokens."""
    return params.top_k > 0 or params.top_p < 1 or params.min_p > 0


class Candidates(NamedTuple):
    """The tokens of some rows that their filters keep: the first ``kept[i]`` of ``ids[i]``, most likely first.

    rows   [n] which of the rows
    ids    int32 [n, count]
    sums   float64 [n, count]: the running sums of the tokens' weights
    kept   [n], at least 1
    """

    rows: I64
    ids: NDArray[np.int32]
    sums: F64
    kept: I64

    def pick(self, uniforms: F64) -> NDArray[np.int32]:
        """For each row the first id whose running sum exceeds uniform · total; never one of weight 0."""
        every = np.arange(len(self.rows))
        totals = self.sums[every, self.kept - 1]
        found = (self.sums <= (uniforms * totals)[:, None]).sum(axis=1)
        last = (self.sums < totals[:, None]).sum(axis=1)
        chosen: NDArray[np.int32] = self.ids[every, np.minimum(found, last)]
        return chosen


def candidates(
    rows: RowOps, logits: F32, at: I64, maxima: F32, params: Sequence[SamplingParams]
) -> Iterator[Candidates]:
    """The tokens that the filters keep in the rows ``at``: each of ``range(len(at))`` is in one of the results.

    All ``params`` have the same ``top_k``.
    """
    vocab, top_k = logits.shape[1], params[0].top_k
    temperatures = np.array([one.temperature for one in params])
    top_p, min_p = np.array([one.top_p for one in params]), np.array([one.min_p for one in params])
    totals = None  # the weight that is 100 % for top-p
    if top_k <= 0:
        bounded = any(one.top_p < 1 for one in params)
        totals = rows.weight_sums(logits, at, maxima, temperatures) if bounded else np.ones(len(at))
    stages = (top_k,) if top_k > 0 else (*STAGES, vocab)
    pending = [(np.arange(len(at)), [min(stage, vocab) for stage in stages])]
    while pending:
        some, (count, *wider) = pending.pop()
        if len(some) * count > MAX_INSPECTED and len(some) > 1:
            pending += [(half, [count, *wider]) for half in np.array_split(some, 2)]
            continue
        ids, values = rows.top(logits, at[some], count)
        tops = values.astype(np.float64)
        with np.errstate(over="ignore", under="ignore"):
            weights = np.exp((tops - tops[:, :1]) / temperatures[some, None])  # 1 for the most likely token
        sums = weights.cumsum(axis=1)
        mass = np.where(top_p[some] < 1, top_p[some] * (sums[:, -1] if totals is None else totals[some]), np.inf)
        nucleus = 1 + (sums < mass[:, None]).sum(axis=1)
        likely = (weights >= min_p[some, None]).sum(axis=1)
        found = Candidates(some, ids, sums, np.minimum(np.minimum(nucleus, likely), count))
        final = (found.kept < count) | (not wider)
        if final.any():
            yield Candidates(*(one[final] for one in found))
        if not final.all():
            pending.append((some[~final], wider))
