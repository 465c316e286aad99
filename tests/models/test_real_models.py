"""Real files are understood, and the decoder on NumPy predicts what the reference predicts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.support.quality import compare, load_reference
from tests.support.reference import load_reference_model, one_sequence

CASES = {"smollm2-135m": "smollm2-135m-q4_1.npz", "gemma3-270m": "gemma3-270m-q4_k_m.npz"}
POSITIONS = 64


@pytest.mark.model
@pytest.mark.data
@pytest.mark.parametrize("alias", CASES)
def test_predictions_are_the_references(alias: str, model_path: Callable[[str], Path], test_data: Path) -> None:
    """The reference is a float32 forward pass over the same dequantised weights, made by other software."""
    reference = load_reference(test_data / "reference" / CASES[alias]).first(rows=1, positions=POSITIONS)
    _, model = load_reference_model(model_path(alias))
    logits = model.run(one_sequence(reference.token_ids[0], np.arange(POSITIONS // 16, dtype=np.int32)))
    quality = compare(logits[None], reference)
    assert quality.kl < 1e-6
    assert quality.agreement == 1.0
    assert quality.perplexity == pytest.approx(quality.reference_perplexity, rel=1e-4)
