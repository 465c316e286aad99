"""Each operation of the reference against a formula written out for one value, row or pair."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from twofold.backends.reference import NumpyOps, PagedCache, ReferenceModel, gelu_tanh, silu, softcap
from twofold.core.kv_layout import KVType
from twofold.core.model import GroupedAttention, KVGroup, Paged, RopePairs, RopeSpec
from twofold.core.step import BlockMove, MoveKind
from twofold.models.ops import Batch, TensorRef, Wanted

Array = NDArray[np.float32]

RNG = np.random.default_rng(3)
MATRIX = RNG.standard_normal((6, 4)).astype(np.float32)
VECTOR = RNG.standard_normal((1, 4)).astype(np.float32)
WEIGHTS = {"matrix": MATRIX, "vector": VECTOR}
EVERYTHING = GroupedAttention(heads=2, kv_heads=1, head_dim=4, scale=0.5)


GROUPS = (KVGroup(Paged(None, 1, 4), (0, 2)), KVGroup(Paged(2, 1, 4), (1,), 1))


def batch(positions: list[int], starts: list[int], tables: list[list[int]], wanted: list[int] | None = None) -> Batch:
    """Tokens are 0, 1, 2 … ."""
    rows = np.arange(len(positions), dtype=np.int32)
    logit_rows = rows if wanted is None else np.array(wanted, np.int32)
    return Batch(
        rows, np.array(positions, np.int32), np.array(starts, np.int32), np.array([tables], np.int32), logit_rows
    )


def paged(layers: int = 1, kv_type: KVType = "f32") -> PagedCache:
    return PagedCache([KVGroup(Paged(None, 1, 4), tuple(range(layers)))], [8], 2, kv_type)


def ops(over: Batch, cache: PagedCache | None = None) -> NumpyOps:
    return NumpyOps(WEIGHTS, cache or paged(), over)


ONE_STEP = batch([0, 1, 2], [0, 3], [[5, 2]])


def rows(count: int, width: int) -> Array:
    return RNG.standard_normal((count, width)).astype(np.float32)


def test_embed_scales_the_tokens_rows() -> None:
    np.testing.assert_array_equal(ops(ONE_STEP).embed(TensorRef("matrix", 6, 4), 2.0), MATRIX[:3] * 2)


def test_linear_uses_the_referenced_rows_only() -> None:
    x = rows(3, 4)
    part = TensorRef("matrix", 2, 4, first_row=3)
    np.testing.assert_allclose(ops(ONE_STEP).linear(x, part), x @ MATRIX[3:5].T, rtol=1e-6)


def test_linear_uses_the_referenced_columns_only() -> None:
    x = rows(3, 2)
    part = TensorRef("matrix", 6, 2, first_column=1)
    np.testing.assert_allclose(ops(ONE_STEP).linear(x, part), x @ MATRIX[:6, 1:3].T, rtol=1e-6)


def test_linear_adds_its_bias() -> None:
    x, square = rows(3, 4), TensorRef("matrix", 4, 4)
    y = ops(ONE_STEP).linear(x, square, TensorRef("vector", 1, 4))
    np.testing.assert_allclose(y, x @ MATRIX[:4].T + VECTOR, rtol=1e-6)


def test_rms_norm() -> None:
    x = np.array([[3.0, 4.0, 0.0, 0.0]], np.float32)
    expected = x / math.sqrt(25 / 4 + 0.5) * VECTOR
    np.testing.assert_allclose(ops(ONE_STEP).rms_norm(x, TensorRef("vector", 1, 4), 0.5), expected, rtol=1e-6)


def test_head_norm_is_a_norm_of_each_head() -> None:
    x, weight, numpy_ops = rows(3, 8), TensorRef("vector", 1, 4), ops(ONE_STEP)
    halves = [numpy_ops.rms_norm(half, weight, 1e-5) for half in np.hsplit(x, 2)]
    np.testing.assert_array_equal(numpy_ops.head_norm(x, weight, 1e-5, heads=2), np.hstack(halves))


@pytest.mark.parametrize(
    ("activation", "expected"),
    [(silu, lambda x: x / (1 + math.exp(-x))), (gelu_tanh, lambda x: x * (1 + math.erf(x / math.sqrt(2))) / 2)],
)
def test_activations(activation: object, expected: object) -> None:
    x = np.linspace(-6, 6, 25, dtype=np.float32)
    values = activation(x)  # type: ignore[operator]
    np.testing.assert_allclose(values, [expected(float(v)) for v in x], atol=6e-4)  # type: ignore[operator]


def test_activations_of_huge_values_do_not_overflow() -> None:
    huge = np.array([-1e6, 1e6], np.float32)
    np.testing.assert_allclose(silu(huge), [0, 1e6])
    np.testing.assert_allclose(gelu_tanh(huge), [0, 1e6])


def test_gated_and_softcap() -> None:
    gate, up = rows(3, 8), rows(3, 8)
    np.testing.assert_array_equal(ops(ONE_STEP).gated(gate, up, "silu"), silu(gate) * up)
    np.testing.assert_array_equal(ops(ONE_STEP).gated(gate, up, "gelu_tanh"), gelu_tanh(gate) * up)
    np.testing.assert_allclose(softcap(np.array([1e9, -1e9, 0.01], np.float32), 5.0), [5, -5, 0.01], rtol=1e-5)


@pytest.mark.parametrize(("pairs", "first", "second"), [("adjacent", 2, 3), ("halves", 1, 3)])
def test_rope_turns_pairs_and_keeps_the_rest(pairs: RopePairs, first: int, second: int) -> None:
    """Pair 1 of each head of the row at position 2, of 4 rotated values among 6."""
    x = rows(3, 12)
    turned = ops(ONE_STEP).rope(x, 2, RopeSpec(4, 100.0, pairs)).reshape(3, 2, 6)
    heads, angle = x.reshape(3, 2, 6), 2 * 100.0**-0.5
    a, b = heads[2, :, first], heads[2, :, second]
    np.testing.assert_allclose(turned[2, :, first], a * math.cos(angle) - b * math.sin(angle), rtol=1e-5)
    np.testing.assert_allclose(turned[2, :, second], b * math.cos(angle) + a * math.sin(angle), rtol=1e-5)
    np.testing.assert_array_equal(turned[:, :, 4:], heads[:, :, 4:])


def test_store_kv_follows_the_block_table() -> None:
    cache = paged(layers=2)
    two = batch([1, 2, 0], [0, 2, 3], [[5, 2], [7, 0]])
    k, v = rows(3, 4), rows(3, 4)
    NumpyOps(WEIGHTS, cache, two).store_kv(1, k, v)
    np.testing.assert_array_equal(cache.k[1][[5, 2, 7], [1, 0, 0]], k)
    np.testing.assert_array_equal(cache.v[1][[5, 2, 7], [1, 0, 0]], v)
    assert np.count_nonzero(cache.k[0]) + np.count_nonzero(cache.k[1]) == k.size


def attended(q: Array, k: Array, v: Array, scale: float = 0.5) -> Array:
    """Softmax attention of one query over the given keys."""
    share = np.exp(k @ q * scale)
    result: Array = share / share.sum() @ v
    return result


def test_attention_is_causal_and_shares_kv_heads() -> None:
    numpy_ops, q, k, v = ops(ONE_STEP), rows(3, 8), rows(3, 4), rows(3, 4)
    numpy_ops.store_kv(0, k, v)
    mixed = numpy_ops.attention(0, q, EVERYTHING)
    for row, head in np.ndindex(3, 2):
        part = slice(4 * head, 4 * head + 4)
        expected = attended(q[row, part], k[: row + 1], v[: row + 1])
        np.testing.assert_allclose(mixed[row, part], expected, rtol=1e-5)


def test_a_window_counts_the_row_itself() -> None:
    numpy_ops, q, k, v = ops(ONE_STEP), rows(3, 8), rows(3, 4), rows(3, 4)
    numpy_ops.store_kv(0, k, v)
    mixed = numpy_ops.attention(0, q, GroupedAttention(2, 1, 4, window=2))
    np.testing.assert_allclose(mixed[2, :4], attended(q[2, :4], k[1:], v[1:]), rtol=1e-5)
    np.testing.assert_allclose(mixed[0, :4], v[0], rtol=1e-6)


def test_attention_caps_scores() -> None:
    numpy_ops, q, k, v = ops(ONE_STEP), rows(3, 8) * 100, rows(3, 4), rows(3, 4)
    numpy_ops.store_kv(0, k, v)
    mixed = numpy_ops.attention(0, q, GroupedAttention(2, 1, 4, softcap=1e-6))
    np.testing.assert_allclose(mixed[2, :4], v.mean(axis=0), rtol=1e-4)


def test_a_later_step_sees_what_earlier_ones_stored() -> None:
    cache, q, k, v = paged(), rows(3, 8), rows(3, 4), rows(3, 4)
    whole = ops(ONE_STEP)
    whole.store_kv(0, k, v)
    expected = whole.attention(0, q, EVERYTHING)
    for positions in ([0, 1], [2]):
        step = ops(batch(positions, [0, len(positions)], [[5, 2]]), cache)
        step.store_kv(0, k[positions], v[positions])
        np.testing.assert_allclose(step.attention(0, q[positions], EVERYTHING), expected[positions], rtol=1e-6)


def test_sequences_without_rows_are_skipped() -> None:
    gap = batch([0, 0], [0, 1, 1, 2], [[5], [6], [7]])
    numpy_ops, q, k, v = ops(gap), rows(2, 8), rows(2, 4), rows(2, 4)
    numpy_ops.store_kv(0, k, v)
    np.testing.assert_allclose(numpy_ops.attention(0, q, EVERYTHING), np.hstack([v, v]), rtol=1e-6)


def test_each_group_of_layers_goes_by_its_own_tables() -> None:
    cache = PagedCache(GROUPS, [8, 3], 2)
    step = replace(ONE_STEP, block_tables=np.array([[[5, 2]], [[0, 1]]], np.int32))
    q, stored = rows(3, 8), [(rows(3, 4), rows(3, 4)) for _ in range(3)]
    numpy_ops = NumpyOps(WEIGHTS, cache, step)
    for layer, (k, v) in enumerate(stored):
        numpy_ops.store_kv(layer, k, v)
    np.testing.assert_array_equal(cache.k[2][[5, 5, 2], [0, 1, 0]], stored[2][0])
    np.testing.assert_array_equal(cache.v[1][[0, 0, 1], [0, 1, 0]], stored[1][1])
    for layer, (k, v) in enumerate(stored):
        mixed = numpy_ops.attention(layer, q, EVERYTHING)
        np.testing.assert_allclose(mixed[2, :4], attended(q[2, :4], k, v), rtol=1e-5)


def test_blocks_move_within_their_group_and_to_the_host_and_back() -> None:
    cache = PagedCache(GROUPS, [8, 4], 2, host_slots=[2, 2])
    for arrays in cache.k, cache.v:
        for layer, blocks in arrays.items():
            blocks[:] = np.arange(len(blocks)).reshape(-1, 1, 1) + 10 * layer
    cache.move([BlockMove(MoveKind.COPY, 0, 1, 2), BlockMove(MoveKind.COPY, 0, 2, 3)])
    cache.move([BlockMove(MoveKind.OUT, 1, 3, 1), BlockMove(MoveKind.COPY, 1, 0, 3), BlockMove(MoveKind.IN, 1, 1, 0)])
    for arrays in cache.k, cache.v:
        assert arrays[0][:, 0, 0].tolist() == [0, 1, 1, 1, 4, 5, 6, 7]
        assert arrays[2][:, 1, 3].tolist() == [20, 21, 21, 21, 24, 25, 26, 27]
        assert arrays[1][:, 0, 0].tolist() == [13, 11, 12, 10]


def test_a_float16_cache_rounds() -> None:
    cache = paged(kv_type="f16")
    k = np.full((3, 4), 1 + 2**-12, np.float32)
    ops(ONE_STEP, cache).store_kv(0, k, k)
    assert cache.k[0][5, 0, 0] == 1.0


def test_a_reference_model_is_a_forward() -> None:
    def decode(o: NumpyOps) -> tuple[Array, Array]:
        x = o.embed(TensorRef("matrix", 6, 4), 1.0)
        return o.select(x, Wanted.LOGITS), o.select(x, Wanted.HIDDEN)

    model = ReferenceModel(decode, WEIGHTS, paged(), 4, 4, max_rows=9)
    assert (model.vocab_size, model.hidden_size, model.max_rows, model.max_logit_rows) == (4, 4, 9, 9)
    asked = replace(batch([0, 1, 2], [0, 3], [[5, 2]], wanted=[0, 2]), hidden_rows=np.array([1], np.int32))
    np.testing.assert_array_equal(model.run(asked), MATRIX[[0, 2]])
    np.testing.assert_array_equal(model.hidden, MATRIX[[1]])
    model.run(batch([0], [0, 1], [[5]]))
    assert model.hidden.shape == (0, 4)
