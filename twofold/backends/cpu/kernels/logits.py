"""Kernels over rows of logits: the largest, sums of exponentials, masks, and the weights that sampling needs.

A row is read in blocks of 1024 ids, 64 vectors of 16 lanes. The last vector of a row is padded with −inf. A block's
exponentials are summed over 16 lanes in float32 and folded by ``Kernel.reduce_tree``, so a sum depends on its row
alone. Units are rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from twofold.backends.cpu.kernels.ir import F32, F32X16, F64, I1, I16, I32, I32X16, I64, PTR, Kernel, Value, Var
from twofold.backends.cpu.kernels.math import exp, log
from twofold.backends.cpu.kernels.signature import KernelArguments, kernel

BLOCK: Final = 1024
LANES: Final = 16
LANE_BYTES: Final = 4
NOWHERE: Final = 0x7FFFFFFF

ARGMAX_FIELDS: Final = ("logits", "stride", "count", "ids", "values", "out_stride")
"""A row has ``count`` logits and ``stride`` bytes. Out: an int32 id and a float32 value each ``out_stride`` bytes."""
LOG_SUM_EXP_FIELDS: Final = ("logits", "stride", "count", "maxima", "logs")
"""Out: float32 maximum, and float32 ln Σ exp(logit − maximum), one of each a row."""
GROUP_MAXIMA_FIELDS: Final = ("rows", "count", "maxima")
"""``rows``: the address of each row. Out: the maximum of each lane of each block, float32 [rows, blocks, 16]."""
AT_LEAST_FIELDS: Final = ("rows", "count", "bounds", "ids", "stride", "found")
"""``rows``: the address of each row; ``bounds``: float32, one of each. Out, for each row: int32 ids of the logits ≥ its
bound, ascending, ``stride`` bytes from row to row, and their number, int64."""
WEIGHT_FIELDS: Final = ("rows", "counts", "maxima", "inverses", "out", "out_stride")
"""Weights exp((logit − maximum) · inverse temperature): for each row its address, int64 count, float32 maximum and
inverse. Out, ``out_stride`` bytes from row to row: float32 sums of each block, or the weights themselves (padded with 0
to whole vectors)."""
MASK_FIELDS: Final = ("rows", "words", "stride", "count", "out", "out_stride")
"""``rows``: the address of each row. ``words``: int32 [at least count / 32] for each row, ``stride`` bytes from row to
row, bit t % 32 of word t // 32 for id t. Out: float32 [count] for each row, ``out_stride`` bytes from row to row."""
POINTERS: Final = frozenset(
    {"logits", "ids", "values", "maxima", "logs", "bounds", "found", "out", "words", "rows", "counts", "inverses"}
)


@dataclass(frozen=True, slots=True)
class LogitRow:
    """``count`` logits at ``base``, and ``tail``, the last partial vector, padded."""

    k: Kernel
    base: Value
    count: Value
    tail: Value

    @staticmethod
    def at(k: Kernel, base: Value, count: Value, fill: float = -math.inf) -> LogitRow:
        buffer = k.buffer(LANES * LANE_BYTES)
        k.store(k.splat(F32X16, fill), buffer)
        whole = count // LANES * LANES
        for i in k.range(whole, count):
            k.store(k.load(F32, base + i * LANE_BYTES), buffer + (i - whole) * LANE_BYTES)
        return LogitRow(k, base, count, k.load(F32X16, buffer))

    @property
    def blocks(self) -> Value:
        return (self.count + (BLOCK - 1)) // BLOCK

    def each(self, block: Value, body: Callable[[Value, Value], None]) -> None:
        """Calls ``body(first id, 16 logits)`` for the vectors of a block, ascending; its code is generated twice."""
        k, first = self.k, block * BLOCK
        whole = self.count // LANES * LANES
        for at in k.range(first, k.smin(first + BLOCK, whole), LANES):
            body(at, k.load(F32X16, self.base + at * LANE_BYTES))
        with k.when(self.count < first + BLOCK):
            body(whole, self.tail)


def _pointer(k: Kernel, f: KernelArguments, unit: Value) -> Value:
    """The address of a unit's row."""
    return k.field(PTR, f["rows"] + unit * 8, 0)


def argmax_kernel() -> Kernel:
    """The largest logit of each row and the lowest id that has it. A NaN is never chosen; a row of NaN gives id 0."""
    with kernel("argmax", ARGMAX_FIELDS, POINTERS) as (k, f, units):
        for unit in units:
            row = LogitRow.at(k, f["logits"] + unit * f["stride"], f["count"])
            value, block = _largest(k, row)
            k.store(_first_equal(k, row, block, value), f["ids"] + unit * f["out_stride"])
            k.store(value, f["values"] + unit * f["out_stride"])
    return k


def _block_maxima(k: Kernel, row: LogitRow, block: Value) -> Value:
    largest = k.var(F32X16, -math.inf)
    row.each(block, lambda _, logits: largest.set(k.fmax(logits, largest.get())))
    return largest.get()


def _largest(k: Kernel, row: LogitRow) -> tuple[Value, Value]:
    """The largest logit and the first block that holds it."""
    best, best_block = k.var(F32, -math.inf), k.var(I64, 0)
    for block in k.range(0, row.blocks):
        largest = k.reduce_tree(_block_maxima(k, row, block), "fmax")
        better = largest > best.get()
        best_block.set(k.select(better, block, best_block.get()))
        best.set(k.select(better, largest, best.get()))
    return best.get(), best_block.get()


def _first_equal(k: Kernel, row: LogitRow, block: Value, value: Value) -> Value:
    """The lowest id in ``block`` whose logit is ``value``; 0 if no logit has it."""
    wanted, none = k.splat(F32X16, value), k.splat(I32X16, NOWHERE)
    lanes = k.constants(I32X16, range(LANES))
    found = k.var(I32X16, none)

    def look(first: Value, logits: Value) -> None:
        ids = k.splat(I32X16, first.to(I32)) + lanes
        found.set(k.smin(found.get(), k.select(logits.equals(wanted), ids, none)))

    row.each(block, look)
    lowest = k.reduce_tree(found.get(), "smin")
    return k.select(lowest < NOWHERE, lowest, k.lift(0, I32))


def group_maxima_kernel() -> Kernel:
    """The maximum of each lane of each block."""
    with kernel("group_maxima", GROUP_MAXIMA_FIELDS, POINTERS) as (k, f, units):
        for unit in units:
            row = LogitRow.at(k, _pointer(k, f, unit), f["count"])
            for block in k.range(0, row.blocks):
                at = (unit * row.blocks + block) * (LANES * LANE_BYTES)
                k.store(_block_maxima(k, row, block), f["maxima"] + at)
    return k


def at_least_kernel() -> Kernel:
    """The ids whose logits reach a bound. Fast where few do: a vector without such a logit costs one test."""
    with kernel("at_least", AT_LEAST_FIELDS, POINTERS) as (k, f, units):
        for unit in units:
            bound = k.splat(F32X16, k.load(F32, f["bounds"] + unit * LANE_BYTES))
            row = LogitRow.at(k, _pointer(k, f, unit), f["count"], fill=math.nan)  # NaN reaches no bound, not even −inf
            found = k.var(I64, 0)
            for block in k.range(0, row.blocks):
                row.each(block, partial(_collect, bound, f["ids"] + unit * f["stride"], found))
            k.store(found.get(), f["found"] + unit * 8)
    return k


def _collect(bound: Value, ids: Value, found: Var, first: Value, logits: Value) -> None:
    """Appends the ids of the lanes that reach ``bound``."""
    k = bound.kernel
    mask = (logits >= bound).as_bits(I16).to(I32, unsigned=True)
    with k.when(mask > 0):
        for lane in k.range(0, LANES):
            with k.when(((mask >> lane.to(I32)) & 1).equals(1)):
                k.store((first + lane).to(I32), ids + found.get() * 4)
                found.set(found.get() + 1)


@dataclass(frozen=True, slots=True)
class Weights:
    """exp((logit − maximum) · inverse_temperature), 16 at a time."""

    k: Kernel
    maximum: Value
    inverse_temperature: Value

    def of(self, logits: Value) -> Value:
        k = self.k
        return exp(k, (logits - k.splat(F32X16, self.maximum)) * k.splat(F32X16, self.inverse_temperature))

    def block_sum(self, row: LogitRow, block: Value) -> Value:
        total = self.k.var(F32X16, 0.0)
        row.each(block, lambda _, logits: total.set(total.get() + self.of(logits)))
        return self.k.reduce_tree(total.get(), "add")


def log_sum_exp_kernel() -> Kernel:
    """ln Σ exp(logit) of each row, as two numbers. The sums of the blocks are added in float64, ascending."""
    with kernel("log_sum_exp", LOG_SUM_EXP_FIELDS, POINTERS) as (k, f, units):
        for unit in units:
            row = LogitRow.at(k, f["logits"] + unit * f["stride"], f["count"])
            maximum, _ = _largest(k, row)
            weights = Weights(k, maximum, k.lift(1.0, F32))
            total = k.var(F64, 0.0)
            for block in k.range(0, row.blocks):
                total.set(total.get() + weights.block_sum(row, block).to(F64))
            k.store(maximum, f["maxima"] + unit * 4)
            k.store(log(k, total.get().to(F32)), f["logs"] + unit * 4)
    return k


def weight_sums_kernel() -> Kernel:
    """The sum of the weights of each block."""
    with kernel("weight_sums", WEIGHT_FIELDS, POINTERS) as (k, f, units):
        for unit in units:
            row, weights, out = _weighed(k, f, unit)
            for block in k.range(0, row.blocks):
                k.store(weights.block_sum(row, block), out + block * LANE_BYTES)
    return k


def weights_kernel() -> Kernel:
    """Every weight."""
    with kernel("weights", WEIGHT_FIELDS, POINTERS) as (k, f, units):
        for unit in units:
            row, weights, out = _weighed(k, f, unit)
            for block in k.range(0, row.blocks):
                row.each(block, partial(_store_weights, weights, out))
    return k


def _weighed(k: Kernel, f: KernelArguments, unit: Value) -> tuple[LogitRow, Weights, Value]:
    """A row, its weights, and the address of its results."""
    row = LogitRow.at(k, _pointer(k, f, unit), k.load(I64, f["counts"] + unit * 8))
    weights = Weights(k, k.load(F32, f["maxima"] + unit * LANE_BYTES), k.load(F32, f["inverses"] + unit * LANE_BYTES))
    return row, weights, f["out"] + unit * f["out_stride"]


def _store_weights(weights: Weights, out: Value, at: Value, logits: Value) -> None:
    weights.k.store(weights.of(logits), out + at * LANE_BYTES)


def mask_kernel() -> Kernel:
    """Sets the logits of ids whose bit is 0 to −inf. The bits of a vector are one half of a word."""
    with kernel("mask", MASK_FIELDS, POINTERS) as (k, f, units):
        count, forbidden = f["count"], k.splat(F32X16, -math.inf)
        for unit in units:
            logits, words = _pointer(k, f, unit), f["words"] + unit * f["stride"]
            out = f["out"] + unit * f["out_stride"]
            whole = count // LANES * LANES
            for at in k.range(0, whole, LANES):
                allowed = k.load(I16, words + at // 8).as_bits(I1.of(LANES))
                kept = k.select(allowed, k.load(F32X16, logits + at * LANE_BYTES), forbidden)
                k.store(kept, out + at * LANE_BYTES)
            for i in k.range(whole, count):
                word = k.load(I32, words + i // 32 * 4)
                allowed = ((word >> (i % 32).to(I32)) & 1).equals(1)
                kept = k.select(allowed, k.load(F32, logits + i * LANE_BYTES), k.lift(-math.inf, F32))
                k.store(kept, out + i * LANE_BYTES)
    return k


LOGIT_KERNELS: Final[Mapping[str, tuple[Callable[[], Kernel], tuple[str, ...]]]] = {
    "argmax": (argmax_kernel, ARGMAX_FIELDS),
    "log_sum_exp": (log_sum_exp_kernel, LOG_SUM_EXP_FIELDS),
    "group_maxima": (group_maxima_kernel, GROUP_MAXIMA_FIELDS),
    "at_least": (at_least_kernel, AT_LEAST_FIELDS),
    "weight_sums": (weight_sums_kernel, WEIGHT_FIELDS),
    "weights": (weights_kernel, WEIGHT_FIELDS),
    "mask": (mask_kernel, MASK_FIELDS),
}
"""How to generate each kernel, by its name, and its arguments."""
