"""Attention over a paged cache, against plain softmax in float64; and bit for bit the same however it is cut."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.backends.cpu.kernels.harness import Field, Floats, Machine, assert_same_bits, poisoned
from tests.backends.cpu.kernels.paged import PagedLayer, shape_of
from twofold.backends.cpu.kernels.attention import (
    ITEM_INTS,
    SPLIT,
    AttentionKernel,
)
from twofold.backends.cpu.kernels.splits import ATTENTION_FIELDS, MERGE_INTS, AttentionKernelSpec, merge_kernel
from twofold.backends.kv_codes import spread, spread_back

GUARD = 16
CAP = 5.0
EVERYTHING = 1 << 30
Sequences = tuple[tuple[int, int], ...]
BORDERS: Sequences = ((0, 4), (13, 5), (61, 6), (253, 6), (509, 7))
"""First position and rows of each sequence: around a tile's, a chunk's and a split's ends."""
SMALL: Sequences = ((0, 2), (62, 4), (254, 3))
Item = tuple[int, int, int, int, int, int]

SPECS = [
    AttentionKernelSpec(16, 1, "f32", softcap=False),
    AttentionKernelSpec(16, 8, "f16", softcap=False),
    AttentionKernelSpec(64, 3, "f16", softcap=False),
    AttentionKernelSpec(64, 3, "f32", softcap=True),
    AttentionKernelSpec(80, 1, "f16", softcap=True),
    AttentionKernelSpec(80, 4, "f32", softcap=False),
    AttentionKernelSpec(128, 8, "f16", softcap=False),
    AttentionKernelSpec(256, 4, "f16", softcap=True),
    AttentionKernelSpec(256, 4, "f32", softcap=False),
    AttentionKernelSpec(64, 3, "bf16", softcap=False),
    AttentionKernelSpec(80, 4, "bf16", softcap=True),
    AttentionKernelSpec(256, 4, "bf16", softcap=False),
    AttentionKernelSpec(64, 3, "q8", softcap=False),
    AttentionKernelSpec(80, 4, "q8", softcap=True),
    AttentionKernelSpec(64, 7, "k8v4", softcap=False),
    AttentionKernelSpec(96, 2, "k8v4", softcap=False),
    AttentionKernelSpec(256, 4, "k8v4", softcap=True),
]
PLAIN = SPECS[2]
PAIRS = SPECS[9:]


@dataclass
class Problem:
    """Rows of several sequences over one cache, and how to compute them."""

    spec: AttentionKernelSpec
    sequences: Sequences = BORDERS
    kv_heads: int = 2
    block_size: int = 16
    window: int = EVERYTHING
    stale_seed: int = 0
    spread: float = 0
    """Numbers are multiplied by powers of 10 from −spread to spread."""
    scale: float = field(init=False)

    def __post_init__(self) -> None:
        self.scale = float(np.float32(2 / np.sqrt(self.spec.head_dim)))
        rng = np.random.default_rng(7)
        lengths = [first + rows for first, rows in self.sequences]
        shape = shape_of(self.kv_heads, self.spec.head_dim, self.spec.dtype, self.block_size)
        self.layer = PagedLayer(shape, lengths, self.stale_seed)
        for sequence, length in enumerate(lengths):
            keys, values = map(self._placed, self._numbers(rng, 2, length, self.kv_heads, self.spec.head_dim))
            self.layer.put(sequence, keys, values)
        self.q = self._numbers(rng, self.rows, self.heads * self.spec.head_dim)

    def _numbers(self, rng: np.random.Generator, *shape: int) -> Floats:
        sizes = 10 ** rng.uniform(-self.spread, self.spread, shape) if self.spread else 1
        return (rng.standard_normal(shape) * sizes).astype(np.float32)

    def _placed(self, x: Floats) -> Floats:
        """Heads as the kernels store them, and get queries: spread where they are integers."""
        return spread(x) if self.spec.integers else x

    @property
    def rows(self) -> int:
        return sum(rows for _, rows in self.sequences)

    @property
    def heads(self) -> int:
        return self.kv_heads * self.spec.group

    def each_row(self) -> Iterator[tuple[int, int, int]]:
        """Sequence, row and position of all rows."""
        row = 0
        for sequence, (first, rows) in enumerate(self.sequences):
            for position in range(first, first + rows):
                yield sequence, row, position
                row += 1

    def items(self, rows_per_item: int) -> list[Item]:
        found, row = list[Item](), 0
        for sequence, (first, rows) in enumerate(self.sequences):
            found += [
                (sequence, row + done, min(rows_per_item, rows - done), first + done, -1, 0)
                for done in range(0, rows, rows_per_item)
            ]
            row += rows
        return found

    def expected(self) -> NDArray[np.float64]:
        """softmax(q · keys) · values for each row and head."""
        cached = [self.layer.get(sequence, first + rows) for sequence, (first, rows) in enumerate(self.sequences)]
        if self.spec.integers:
            cached = [(spread_back(keys), spread_back(values)) for keys, values in cached]
        out = np.zeros((self.rows, self.heads, self.spec.head_dim))
        for sequence, row, position in self.each_row():
            seen = range(max(0, position - self.window + 1), position + 1)
            keys, values = (a[seen.start : seen.stop].astype(np.float64) for a in cached[sequence])
            for head, q in enumerate(self.q[row].reshape(self.heads, -1).astype(np.float64)):
                scores = keys[:, head // self.spec.group] @ q * self.scale
                scores = CAP * np.tanh(scores / CAP) if self.spec.softcap else scores
                share = np.exp(scores - scores.max())
                out[row, head] = share / share.sum() @ values[:, head // self.spec.group]
        return out.reshape(self.rows, -1)

    def run(
        self,
        machine: Machine,
        items: Sequence[Item],
        merges: Sequence[tuple[int, int, int]] = (),
        cuts: Sequence[int] = (),
    ) -> Floats:
        """What the kernel makes of ``items``, its units cut at ``cuts``, and then of ``merges``."""
        width = self.heads * self.spec.head_dim
        out = poisoned(self.rows, width + GUARD)
        item_list = np.zeros((len(items), ITEM_INTS), np.int32)
        item_list[:, :6] = items
        merge_list = np.zeros((max(1, len(merges)), MERGE_INTS), np.int32)
        merge_list[: len(merges), :3] = np.array(merges, np.int32).reshape(-1, 3)
        step = self.layer.step()
        partials = poisoned(max(1, sum(count for *_, count in merges)), self.heads, self.spec.partial_floats)
        self._placed_q = self._placed(self.q.reshape(-1, self.spec.head_dim)).reshape(self.q.shape)
        record = self._record(out, partials, item_list, merge_list)
        attention = machine.kernel(self.spec, AttentionKernel(self.spec, machine.isa).generate)
        bounds = [0, *cuts, len(items) * self.kv_heads]
        for units in pairwise(bounds):
            machine.run(attention, record, units, step)
        merge = machine.kernel(("merge", self.spec), lambda: merge_kernel(self.spec))
        machine.run(merge, record, (0, len(merges) * self.heads), step)
        assert np.isnan(out[:, width:]).all()
        return out[:, :width].copy()

    def _record(
        self, out: Floats, partials: Floats, items: NDArray[np.int32], merges: NDArray[np.int32]
    ) -> list[Field]:
        fields: dict[str, Field] = self.layer.arguments() | {
            "q": self._placed_q,
            "q_stride": self.q.strides[0],
            "out": out,
            "out_stride": out.strides[0],
            "kv_heads": self.kv_heads,
            "scale": self.scale,
            "window": self.window,
            "softcap": CAP,
            "partials": partials,
            "items": items,
            "merges": merges,
        }
        return [fields[name] for name in ATTENTION_FIELDS]


def split_items(problem: Problem) -> tuple[list[Item], list[tuple[int, int, int]]]:
    """Every split of every row as an item of its own, last ones first, and the merges that join them."""
    items, merges, partial = list[Item](), [], 0
    for sequence, row, position in problem.each_row():
        splits = position // SPLIT + 1
        items += [(sequence, row, 1, position, split, partial + split) for split in range(splits)]
        merges.append((row, partial, splits))
        partial += splits
    return items[::-1], merges


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
@pytest.mark.parametrize("window", [EVERYTHING, 5, 300])
def test_rows_around_every_border(machine: Machine, spec: AttentionKernelSpec, window: int) -> None:
    problem = Problem(spec, window=window, kv_heads=1 if spec.head_dim == 256 else 2)
    error = 3e-2 if spec.dtype == "bf16" else 1e-3 if spec.integers else 2e-5
    np.testing.assert_allclose(problem.run(machine, problem.items(4)), problem.expected(), rtol=error, atol=error)


@pytest.mark.parametrize("window", [1, 16, 64, 65, 256, 257])
def test_windows_that_end_at_borders(machine: Machine, window: int) -> None:
    problem = Problem(PLAIN, window=window)
    np.testing.assert_allclose(problem.run(machine, problem.items(7)), problem.expected(), rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("block_size", [32, 48, 256])
def test_block_sizes_leave_the_bits_alone(machine: Machine, block_size: int) -> None:
    small, large = Problem(PLAIN), Problem(PLAIN, block_size=block_size)
    assert_same_bits(large.run(machine, large.items(4)), small.run(machine, small.items(4)))


@pytest.mark.parametrize("spec", [PLAIN, *PAIRS], ids=lambda s: s.name)
@pytest.mark.parametrize("window", [EVERYTHING, 40, 300])
@pytest.mark.parametrize("rows_per_item", [1, 2, 5])
def test_cuts_leave_the_bits_alone(
    machine: Machine, spec: AttentionKernelSpec, rows_per_item: int, window: int
) -> None:
    problem = Problem(spec, window=window)
    whole = problem.run(machine, problem.items(100))
    items = problem.items(rows_per_item)
    assert_same_bits(problem.run(machine, items), whole)
    assert_same_bits(problem.run(machine, items[::-1], cuts=(1, 1, 2, 5)), whole)


@pytest.mark.parametrize("spec", [SPECS[0], PLAIN, SPECS[3], SPECS[6], *PAIRS], ids=lambda s: s.name)
@pytest.mark.parametrize("window", [EVERYTHING, 40, 300])
def test_merged_splits_are_the_whole(machine: Machine, spec: AttentionKernelSpec, window: int) -> None:
    problem = Problem(spec, window=window)
    assert_same_bits(problem.run(machine, *split_items(problem)), problem.run(machine, problem.items(100)))


@pytest.mark.parametrize("spec", [PLAIN, PAIRS[0]], ids=lambda s: s.name)
def test_stale_values_are_never_seen(machine: Machine, spec: AttentionKernelSpec) -> None:
    """Other garbage, other blocks: the same bits."""
    results = []
    for seed in (1, 2):
        problem = Problem(spec, window=70, stale_seed=seed)
        results.append(problem.run(machine, problem.items(6)))
    assert_same_bits(*results)


def test_equal_scores_weigh_all_positions_the_same(machine: Machine) -> None:
    problem = Problem(SPECS[0], ((299, 1),))
    problem.q[:] = 0
    _, values = problem.layer.get(0, 300)
    np.testing.assert_allclose(
        problem.run(machine, problem.items(1))[0], values.astype(np.float64).mean(0).ravel(), atol=1e-6
    )


def test_large_scores_stay_finite(machine: Machine) -> None:
    problem = Problem(SPECS[0])
    problem.q *= 1e4
    np.testing.assert_allclose(problem.run(machine, problem.items(4)), problem.expected(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("spread", [0, 8, 16])
@pytest.mark.parametrize("spec", [PLAIN, SPECS[3], *PAIRS], ids=lambda s: s.name)
def test_every_instruction_set_gives_the_same_bits(
    machines: list[Machine], spec: AttentionKernelSpec, spread: float
) -> None:
    """Also with very small numbers: instructions for pairs of bfloat16 take subnormal ones for 0."""
    spread = min(spread, 4) if spec.dtype == "f16" else spread
    problem = Problem(spec, SMALL, kv_heads=1, window=200, spread=spread)
    first, *others = [problem.run(machine, problem.items(3)) for machine in machines]
    for other in others:
        assert_same_bits(other, first)
