"""KernelRowOps against naive NumPy: ties, NaN, −inf, every length around a vector and a block."""

from __future__ import annotations

import numpy as np
import pytest

from tests.backends.cpu.kernels.harness import Floats, Machine, assert_same_bits
from tests.backends.sampling.naive import draw, top, weight_sum
from twofold.backends.cpu.logits import KernelRowOps
from twofold.backends.sampling.base import RowOps

VOCABULARIES = [1, 5, 15, 16, 17, 1023, 1024, 1025, 2051, 32003]


@pytest.fixture(scope="module")
def all_ops(machines: list[Machine]) -> list[RowOps]:
    return [KernelRowOps(machine.compiler) for machine in machines]


@pytest.fixture(scope="module")
def ops(all_ops: list[RowOps]) -> RowOps:
    return all_ops[0]


def rows_of(vocabulary: int, kind: str) -> Floats:
    """Three rows: plain, with many ties, or with most of the vocabulary at −inf."""
    rows = np.random.default_rng(vocabulary).standard_normal((3, vocabulary)).astype(np.float32) * 4
    if kind == "ties":
        return np.round(rows)
    if kind == "masked":
        rows[:, : vocabulary // 2] = -np.inf
        rows[:, -1] = 0
    return rows


@pytest.fixture(params=["plain", "ties", "masked"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_argmax_takes_the_lowest_id_of_the_largest(ops: RowOps, vocabulary: int, kind: str) -> None:
    rows = rows_of(vocabulary, kind)
    ids, values = ops.argmax(rows)
    np.testing.assert_array_equal(ids, rows.argmax(axis=1))
    np.testing.assert_array_equal(values, rows.max(axis=1))


def test_argmax_never_takes_nan(ops: RowOps) -> None:
    rows = rows_of(2051, "plain")
    rows[0, ::2] = np.nan
    rows[1] = np.nan
    rows[2] = -np.inf
    ids, values = ops.argmax(rows)
    assert ids[0] == np.nanargmax(rows[0])
    assert values[0] == np.nanmax(rows[0])
    assert list(ids[1:]) == [0, 0]


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_log_sum_exp(ops: RowOps, vocabulary: int, kind: str) -> None:
    rows = rows_of(vocabulary, kind)
    maxima = rows.max(axis=1).astype(np.float64)
    true = np.log(np.exp(rows - maxima[:, None]).sum(axis=1)) + maxima
    np.testing.assert_allclose(ops.log_sum_exp(rows), true, rtol=0, atol=2e-6)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("count", [1, 2, 20, 700])
def test_top_is_in_order(ops: RowOps, vocabulary: int, count: int, kind: str) -> None:
    row = rows_of(vocabulary, kind)[0]
    count = min(count, vocabulary)
    ids, values = top(ops, row, count)
    wanted = sorted(range(vocabulary), key=lambda i: (-row[i], i))[:count]
    assert list(ids) == wanted
    np.testing.assert_array_equal(values, row[wanted])


@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 2.0])
def test_weight_sum(ops: RowOps, temperature: float) -> None:
    row = rows_of(32003, "plain")[0]
    maximum = float(row.max())
    true = np.exp((row.astype(np.float64) - maximum) / temperature).sum()
    assert weight_sum(ops, row, maximum, temperature) == pytest.approx(true, rel=1e-5)


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
def test_draw_inverts_the_distribution(ops: RowOps, vocabulary: int, kind: str) -> None:
    row = rows_of(vocabulary, kind)[0]
    weights = np.exp(row.astype(np.float64) - row.max())
    ends = weights.cumsum() / weights.sum()
    for uniform in [0.0, 0.1, 0.5, 0.9, 0.999999, 1 - 2**-53]:
        drawn = draw(ops, row, float(row.max()), 1.0, uniform)
        assert weights[drawn] > 0
        assert ends[drawn] - weights[drawn] / weights.sum() - 1e-5 <= uniform <= ends[drawn] + 1e-5


def test_a_weight_of_zero_is_never_drawn(ops: RowOps) -> None:
    row = np.full(5000, -np.inf, np.float32)
    row[[7, 3000]] = 0
    drawn = [draw(ops, row, 0.0, 0.5, u) for u in (0.0, 0.49, 0.5, 1 - 2**-53)]
    assert drawn == [7, 7, 3000, 3000]


def test_a_frozen_temperature_draws_the_argmax(ops: RowOps) -> None:
    row = rows_of(5000, "plain")[0]
    assert draw(ops, row, float(row.max()), 1e-40, 0.5) == row.argmax()


@pytest.mark.parametrize("vocabulary", VOCABULARIES)
@pytest.mark.parametrize("words", [0, 1, 40, 1002])
def test_a_mask_on_every_instruction_set(all_ops: list[RowOps], vocabulary: int, words: int) -> None:
    rows = rows_of(vocabulary, "plain")
    masks = np.random.default_rng(words).integers(0, 2**32, (2, words), np.uint32)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")[:, :vocabulary]
    allowed = np.pad(bits, ((0, 0), (0, vocabulary - bits.shape[1]))).astype(bool)
    for ops in all_ops:
        out = ops.mask(rows, np.array([0, 2]), masks)
        np.testing.assert_array_equal(out, np.where(allowed, rows[[0, 2]], -np.inf))


@pytest.mark.parametrize("count", [1, 40, 1500])
def test_rows_do_not_depend_on_their_company(ops: RowOps, kind: str, count: int) -> None:
    """Of all rows but one, with their company and alone."""
    rows, at = rows_of(2051, kind), np.array([0, 2])
    maxima, temperatures, uniforms = rows.max(axis=1), np.array([0.3, 1.7]), np.array([0.2, 0.8])
    assert_same_bits(np.concatenate([ops.log_sum_exp(rows[i : i + 1]) for i in range(3)]), ops.log_sum_exp(rows))
    together = ops.top(rows, at, count)
    for index, row in enumerate(at):
        for found, alone in zip(together, top(ops, rows[row], count), strict=True):
            assert_same_bits(found[index], alone)
    sums = ops.weight_sums(rows, at, maxima[at], temperatures)
    assert sums.tolist() == [weight_sum(ops, rows[i], maxima[i], t) for i, t in zip(at, temperatures, strict=True)]
    assert ops.sample(rows, at, maxima[at], temperatures, uniforms).tolist() == [
        draw(ops, rows[i], maxima[i], t, u) for i, t, u in zip(at, temperatures, uniforms, strict=True)
    ]


@pytest.mark.parametrize("vocabulary", [17, 1025, 32003])
def test_every_instruction_set_gives_the_same_bits(all_ops: list[RowOps], vocabulary: int) -> None:
    rows = rows_of(vocabulary, "plain")
    row, maximum = rows[0], float(rows[0].max())
    for other in all_ops[1:]:
        assert_same_bits(other.log_sum_exp(rows), all_ops[0].log_sum_exp(rows))
        assert weight_sum(other, row, maximum, 0.7) == weight_sum(all_ops[0], row, maximum, 0.7)
        assert draw(other, row, maximum, 0.7, 0.3) == draw(all_ops[0], row, maximum, 0.7, 0.3)
        np.testing.assert_array_equal(other.argmax(rows)[0], all_ops[0].argmax(rows)[0])
