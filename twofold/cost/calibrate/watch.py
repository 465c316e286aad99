"""A forward pass that notes which rows it was given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from twofold.core.model import ModelSpec
from twofold.cost.count.step import SequenceRows
from twofold.engine.config import EngineConfig
from twofold.engine.cpu import build_cpu
from twofold.engine.load import BuiltForward
from twofold.engine.wrapped import WrappedForward
from twofold.formats.gguf import GGUFFile
from twofold.models.bind import ModelWeights
from twofold.ops.base import Batch, Forward
from twofold.sampling.base import F32

Spans: TypeAlias = tuple[tuple[int, SequenceRows], ...]
"""Rows of a step: so many sequences of each kind."""


class SpanForward(WrappedForward):
    """A model that notes the rows of its last pass. All else is the model's own."""

    def __init__(self, forward: Forward) -> None:
        super().__init__(forward)
        self._spans: Spans = ()

    def take(self) -> Spans:
        """The rows of the last pass, once."""
        spans, self._spans = self._spans, ()
        return spans

    def run(self, batch: Batch, meanwhile: Callable[[], None] | None = None) -> F32:
        """As ``Forward.run``."""
        self._spans = spans_of(batch)
        return self._forward.run(batch, meanwhile)


def spans_of(batch: Batch) -> Spans:
    """What the rows of a batch are, equal sequences counted together."""
    counts: dict[SequenceRows, int] = {}
    logits = np.diff(np.searchsorted(batch.logit_rows, batch.row_starts))
    for number, (first, end) in enumerate(zip(batch.row_starts[:-1], batch.row_starts[1:], strict=True)):
        span = SequenceRows(int(end - first), int(batch.positions[first]), int(logits[number]))
        counts[span] = counts.get(span, 0) + 1
    return tuple((n, span) for span, n in counts.items())


def watched_build(file: GGUFFile, spec: ModelSpec, weights: ModelWeights, config: EngineConfig) -> BuiltForward:
    """The CPU kernels, with a ``SpanForward`` before them."""
    built = build_cpu(file, spec, weights, config)
    return replace(built, forward=SpanForward(built.forward))
