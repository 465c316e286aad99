"""The interface between a model and its arrays: the operations that a decoder needs.

A model is written once against ``Ops``. An implementation may compute at once (NumPy, the reference), or record a
program that is replayed every step (the CPU kernels). A ``Batch`` is the input of one step: a ragged set of rows, each
a token of some sequence at some position. There is no prefill shape and no decode shape.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from twofold.core.model import Activation, GroupedAttention, RopeSpec
from twofold.core.step import BlockMove

T = TypeVar("T")


class Wanted(Enum):
    """The lists of a batch's rows that have results, by field of ``Batch``."""

    LOGITS = "logit_rows"
    HIDDEN = "hidden_rows"


def _no_rows() -> NDArray[np.int32]:
    return np.zeros(0, np.int32)


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step.

    tokens        int32 [rows]               token ids; the rows of one sequence are adjacent and ascending
    positions     int32 [rows]               position of each row in its sequence
    row_starts    int32 [sequences + 1]      rows of sequence i are row_starts[i] : row_starts[i + 1]
    block_tables  int32 [groups, sequences, blocks]: a KV group's block of sequence i's positions j·block_size …
    logit_rows    int32 [logit_rows]         rows whose logits are requested, ascending
    hidden_rows   int32 [hidden_rows]        rows whose hidden states are requested, ascending

    Entries of a table that no row of the step sees (past the sequence's end, or passed by its window) may be any block
    of their group.
    """

    tokens: NDArray[np.int32]
    positions: NDArray[np.int32]
    row_starts: NDArray[np.int32]
    block_tables: NDArray[np.int32]
    logit_rows: NDArray[np.int32]
    hidden_rows: NDArray[np.int32] = field(default_factory=_no_rows)


@dataclass(frozen=True, slots=True)
class TensorRef:
    """A matrix of the model file, or a part of one: ``rows`` outputs of ``columns`` inputs from ``first_row`` and
    ``first_column`` on. Both columns are whole blocks of the tensor's format."""

    name: str
    rows: int
    columns: int
    first_row: int = 0
    first_column: int = 0


class Ops(Protocol[T]):
    """The operations that a decoder needs. Activations ``T`` are float32 [rows, width].

    Vectors (norm weights, biases) are ``TensorRef`` with one row.
    """

    def embed(self, table: TensorRef, scale: float) -> T:
        """Rows of ``table`` for the batch's tokens, times ``scale``: [rows, columns]."""
        ...

    def rms_norm(self, x: T, weight: TensorRef, eps: float) -> T:
        """x / sqrt(mean(x²) + eps) · weight, over each row."""
        ...

    def head_norm(self, x: T, weight: TensorRef, eps: float, heads: int) -> T:
        """RMS norm over each of the ``heads`` equal parts of a row."""
        ...

    def linear(self, x: T, weight: TensorRef, bias: TensorRef | None = None) -> T:
        """x @ weightᵀ + bias: [rows, weight.rows]."""
        ...

    def add(self, x: T, y: T) -> T:
        """x + y."""
        ...

    def gated(self, gate: T, up: T, activation: Activation) -> T:
        """activation(gate) · up."""
        ...

    def rope(self, x: T, heads: int, rope: RopeSpec) -> T:
        """Rotates each head of a row by the row's position."""
        ...

    def store_kv(self, layer: int, k: T, v: T) -> None:
        """Writes K and V of the batch's rows into their sequences' blocks of the layer's KV group."""
        ...

    def attention(self, layer: int, q: T, spec: GroupedAttention) -> T:
        """Causal attention of each row over the cached positions 0 … its own: [rows, heads · head_dim]."""
        ...

    def select(self, x: T, rows: Wanted) -> T:
        """The rows in one of the batch's lists: [logit_rows or hidden_rows, width]."""
        ...

    def softcap(self, x: T, cap: float) -> T:
        """cap · tanh(x / cap)."""
        ...


class BlockMemory(Protocol):
    """The blocks of a KV cache, for copies. Any thread may copy while no step and no move concerns the blocks."""

    def block_nbytes(self, group: int) -> int:
        """Bytes of a block of a KV group."""
        ...

    def read_blocks(self, group: int, blocks: Sequence[int], into: memoryview) -> None:
        """Copies blocks of a KV group into ``into``, which has their size. The bytes depend on the order of the blocks,
        not on their numbers."""
        ...

    def write_blocks(self, group: int, blocks: Sequence[int], content: memoryview) -> None:
        """Fills blocks with the bytes that ``read_blocks`` made of as many."""
        ...


class Forward(ABC):
    """A model that is ready to run, on arrays of this process.

    vocab_size, hidden_size   width of logits and of hidden states
    max_rows                  maximum number of rows of a batch; hidden states of all of them may be requested
    max_logit_rows            maximum number of rows of a batch with logits
    hidden                    float32 [hidden_rows, hidden_size]: hidden states of the last batch, after the final norm;
                              the next batch overwrites them
    cache                     the blocks of keys and values
    """

    vocab_size: int
    hidden_size: int
    max_rows: int
    max_logit_rows: int
    hidden: NDArray[np.float32]
    cache: BlockMemory

    @abstractmethod
    def run(self, batch: Batch) -> NDArray[np.float32]:
        """Logits [logit_rows, vocab_size]; the next batch overwrites the array."""

    def begin(self, batch: Batch) -> None:
        """Begins to compute the batch on other threads, if there are any; ``finish`` must follow."""
        self._batch = batch

    def finish(self) -> NDArray[np.float32]:
        """Computes the rest of the batch that was begun; returns logits as ``run``."""
        return self.run(self._batch)

    @abstractmethod
    def move(self, moves: Sequence[BlockMove]) -> None:
        """Moves blocks of K and V, one after another: within a KV group, out to its host slots, or in from them."""

    def provide_blocks(self, blocks: Sequence[int]) -> None:
        """Prepares the memory of the first ``blocks`` of each KV group, so that filling them takes less time. Any
        thread may call it, at any time."""
        del blocks  # most have nothing to prepare
