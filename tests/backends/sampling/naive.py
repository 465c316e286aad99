"""The sampling rules once more, one plain loop at a time, in float64: what the fast code is compared with."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from twofold.backends.sampling.base import RowOps, SampleRequest
from twofold.core.params import SamplingParams

FIRST = np.array([0])


def draw(ops: RowOps, row: NDArray[np.float32], maximum: float, temperature: float, uniform: float) -> int:
    """One row alone."""
    maxima, temperatures = np.array([maximum], np.float32), np.array([temperature])
    return int(ops.sample(row[None], FIRST, maxima, temperatures, np.array([uniform]))[0])


def top(ops: RowOps, row: NDArray[np.float32], count: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """One row alone."""
    (ids,), (values,) = ops.top(row[None], FIRST, count)
    return ids, values


def weight_sum(ops: RowOps, row: NDArray[np.float32], maximum: float, temperature: float) -> float:
    """One row alone."""
    maxima = np.array([maximum], np.float32)
    return float(ops.weight_sums(row[None], FIRST, maxima, np.array([temperature]))[0])


def mask_of(size: int, tokens: Collection[int]) -> memoryview:
    """The mask that allows these tokens of a vocabulary of ``size``."""
    words = array("I", [0] * (-(-size // 32)))
    for token in tokens:
        words[token // 32] |= 1 << token % 32
    return memoryview(words)


def _allows(mask: bytes | memoryview | None, token: int) -> bool:
    if mask is None:
        return True
    words = memoryview(mask).cast("B").cast("I")
    return token < 32 * len(words) and bool(words[token // 32] >> token % 32 & 1)


def naive_logits(row: NDArray[np.float32], request: SampleRequest) -> list[float]:
    """Penalties, then bias, then suppressed tokens and those that the mask rules out."""
    params, logits = request.params, [float(value) for value in row]
    seen, answer = set(request.prompt) | set(request.completion), Counter(request.completion)
    for token in range(len(logits)):
        if token in seen:
            factor = params.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
        logits[token] -= params.frequency_penalty * answer[token]
        logits[token] -= params.presence_penalty * (token in answer)
        logits[token] += params.biases.get(token, 0.0)
        if token in request.suppressed or not _allows(request.mask, token):
            logits[token] = -np.inf
    return logits


def naive_distribution(logits: Sequence[float], params: SamplingParams) -> NDArray[np.float64]:
    """Probability of each token after temperature, top-k, top-p and min-p."""
    scaled = np.array(logits) / params.temperature
    weights = np.exp(scaled - scaled.max())
    order = sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    if params.top_k > 0:
        order = order[: params.top_k]
    total = sum(weights[token] for token in order)
    kept: list[int] = []
    mass = 0.0
    for token in order:
        if (params.top_p == 1 or not kept or mass < params.top_p * total) and weights[token] >= params.min_p * weights[
            order[0]
        ]:
            kept.append(token)
        mass += weights[token]
    probabilities = np.zeros(len(weights))
    probabilities[kept] = weights[kept] / weights[kept].sum()
    return probabilities
