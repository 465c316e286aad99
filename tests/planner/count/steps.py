"""Steps of prompts and of decoding, and batches of rows at given positions for the meter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from twofold.core.model import ModelSpec
from twofold.models.ops import Batch
from twofold.planner.count.setting import PLAIN, Setting
from twofold.planner.count.step import SequenceRows, Work, step


def prefill(shape: ModelSpec, new: int, cached: int = 0, *, setup: Setting = PLAIN) -> Work:
    """A prompt of ``new`` tokens after ``cached`` ones in one step, with the logits of its last token."""
    return step(shape, [SequenceRows(new, cached)], setup=setup)


def decode_step(shape: ModelSpec, contexts: Iterable[int], *, setup: Setting = PLAIN) -> Work:
    """One row for each sequence; a context is what the row sees, itself included."""
    return step(shape, [SequenceRows(1, context - 1) for context in contexts], setup=setup)


def batch_of(spans: Sequence[SequenceRows]) -> Batch:
    """The batch of these spans: the last ``logits`` rows of each have logits."""
    starts = np.cumsum([0, *(span.new for span in spans)]).astype(np.int32)
    positions = np.concatenate([np.arange(span.cached, span.cached + span.new) for span in spans]).astype(np.int32)
    ends = zip(starts[1:], spans, strict=True)
    logits = np.concatenate([np.arange(stop - span.logits, stop) for stop, span in ends]).astype(np.int32)
    tables = np.zeros((1, len(spans), 1), np.int32)
    return Batch(np.zeros(len(positions), np.int32), positions, starts, tables, logits)
