"""How near a model's predictions are to the reference: KL divergence, agreement of the first choice, perplexity.

The reference holds, for each position, the ids and log-probabilities of the likeliest tokens, and that of the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Reference:
    """Rows of tokens and what an exact model says after each: arrays [rows, positions] and [rows, positions, k]."""

    token_ids: NDArray[np.int32]
    top_ids: NDArray[np.int32]
    top_logprobs: NDArray[np.float32]
    next_token_logprob: NDArray[np.float32]

    def first(self, rows: int, positions: int) -> Reference:
        """The beginning of the first rows."""
        part = (slice(rows), slice(positions))
        return Reference(
            self.token_ids[part], self.top_ids[part], self.top_logprobs[part], self.next_token_logprob[part]
        )


@dataclass(frozen=True, slots=True)
class Quality:
    """``kl``: mean over positions of KL(reference ‖ model) in nats, over the reference's likeliest tokens and the rest
    as one. ``agreement``: share of positions with the same first choice. Perplexities over the known next tokens."""

    kl: float
    agreement: float
    perplexity: float
    reference_perplexity: float


def load_reference(path: Path) -> Reference:
    """A reference from its .npz file."""
    with np.load(path, allow_pickle=False) as arrays:
        return Reference(arrays["token_ids"], arrays["top_ids"], arrays["top_logprobs"], arrays["next_token_logprob"])


def compare(logits: NDArray[np.float32], reference: Reference) -> Quality:
    """Quality of ``logits`` [rows, positions, vocabulary] after the reference's tokens."""
    totals = _log_totals(logits)
    ours = np.take_along_axis(logits, reference.top_ids, axis=2) - totals
    following = reference.token_ids[:, 1:, None]
    predicted = np.take_along_axis(logits[:, :-1], following, axis=2) - totals[:, :-1]
    expected = reference.next_token_logprob[:, :-1].astype(np.float64)
    return Quality(
        kl=float(np.mean(_divergence(reference.top_logprobs.astype(np.float64), ours))),
        agreement=float(np.mean(logits.argmax(axis=2) == reference.top_ids[:, :, 0])),
        perplexity=float(np.exp(-predicted.mean())),
        reference_perplexity=float(np.exp(-expected.mean())),
    )


def _log_totals(logits: NDArray[np.float32]) -> Floats:
    """log Σ exp over the vocabulary: float64 [rows, positions, 1]. A position at a time, for the sake of memory."""
    totals = [_log_total(row) for row in logits.reshape(-1, logits.shape[-1])]
    return np.array(totals).reshape(*logits.shape[:2], 1)


def _log_total(logits: NDArray[np.float32]) -> float:
    """Exponentials are rounded to float32, an error of 1e-7 of each; their sum is not."""
    top = logits.max()
    return float(top) + float(np.log(np.exp(logits - top).sum(dtype=np.float64)))


def _divergence(reference: Floats, ours: Floats) -> Floats:
    """KL of each position; what lies outside the listed tokens counts as one more outcome."""
    listed = np.sum(np.exp(reference) * (reference - ours), axis=-1)
    rest, our_rest = (np.maximum(1 - np.exp(logprobs).sum(axis=-1), 1e-9) for logprobs in (reference, ours))
    divergence: Floats = listed + rest * np.log(rest / our_rest)
    return divergence
