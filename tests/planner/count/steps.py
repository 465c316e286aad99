"""Steps for the meter: batches of rows at given positions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twofold.models.ops import Batch
from twofold.planner.count.step import SequenceRows


def batch_of(spans: Sequence[SequenceRows]) -> Batch:
    """The batch of these spans: the last ``logits`` rows of each have logits."""
    starts = np.cumsum([0, *(span.new for span in spans)]).astype(np.int32)
    positions = np.concatenate([np.arange(span.cached, span.cached + span.new) for span in spans]).astype(np.int32)
    ends = zip(starts[1:], spans, strict=True)
    logits = np.concatenate([np.arange(stop - span.logits, stop) for stop, span in ends]).astype(np.int32)
    tables = np.zeros((1, len(spans), 1), np.int32)
    return Batch(np.zeros(len(positions), np.int32), positions, starts, tables, logits)
