"""How near the CPU model is to the exact one, over English and code: never worse than what is known to be reachable."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from tests.backends.cpu.conftest import ISAS
from tests.support.cpu import cpu_model, cpu_sizes
from tests.support.quality import Quality, Reference, compare, load_reference
from tests.support.reference import one_sequence
from twofold.backends.cpu.kernels.jit import Compiler
from twofold.backends.cpu.model import CpuModel

pytestmark = [pytest.mark.model, pytest.mark.data]

POSITIONS, CHUNK = 512, 128
"""Logits of a chunk at a time: those of Gemma's vocabulary take 128 MiB."""
TABLE = np.random.default_rng(1).permutation(POSITIONS // 16).astype(np.int32)
SIZES = cpu_sizes(len(TABLE), POSITIONS, CHUNK, CHUNK)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where the reference lies, how many of its rows are enough, and what the model's quality must reach."""

    reference: str
    rows: int
    kl: float
    agreement: float
    perplexity: float


CASES = {
    # Gemma's vocabulary is five times as large: all rows of it would take ten seconds.
    "smollm2-135m": Bounds("smollm2-135m-q4_1.npz", rows=8, kl=0.0035, agreement=0.965, perplexity=0.006),
    "gemma3-270m": Bounds("gemma3-270m-q4_k_m.npz", rows=3, kl=0.0070, agreement=0.965, perplexity=0.006),
}


@pytest.mark.parametrize("alias", CASES)
def test_predictions_are_those_of_the_exact_model(
    alias: str, model_path: Callable[[str], Path], test_data: Path, compiler_for: Callable[[str], Compiler]
) -> None:
    bounds = CASES[alias]
    reference = load_reference(test_data / "reference" / bounds.reference).first(bounds.rows, POSITIONS)
    with cpu_model(model_path(alias), compiler_for(ISAS[0]), SIZES) as model:
        parts = list(qualities(model, reference))
    perplexity, exact = (geometric_mean([getattr(p, name) for p in parts]) for name in PERPLEXITIES)
    assert np.mean([part.kl for part in parts]) <= bounds.kl
    assert np.mean([part.agreement for part in parts]) >= bounds.agreement
    assert abs(perplexity / exact - 1) <= bounds.perplexity


PERPLEXITIES = ("perplexity", "reference_perplexity")


def qualities(model: CpuModel, reference: Reference) -> Iterator[Quality]:
    """Of each chunk of each row, in the context of what stands before it."""
    for row in range(len(reference.token_ids)):
        for first in range(0, POSITIONS, CHUNK):
            part = (slice(row, row + 1), slice(first, first + CHUNK))
            wanted = Reference(
                reference.token_ids[part],
                reference.top_ids[part],
                reference.top_logprobs[part],
                reference.next_token_logprob[part],
            )
            yield compare(model.run(one_sequence(wanted.token_ids[0], TABLE, first))[None], wanted)


def geometric_mean(values: list[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))
