"""The memory of the paged cache: where layers and groups lie, and what moving a block changes."""

from __future__ import annotations

import ctypes
import sys
import tracemalloc
from array import array
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.backends.cpu.kernels.cache import LayerBlock
from twofold.backends.cpu.memory import KVCache, aligned_zeros
from twofold.core.errors import ResourceError
from twofold.core.model import KVGroup, Paged
from twofold.core.step import BlockMove, MoveKind

SHAPES = (LayerBlock(1, 32, 16, "f16"), LayerBlock(3, 16, 16, "f16"))
GROUPS = (KVGroup(Paged(None, 1, 32), (1, 4)), KVGroup(Paged(32, 3, 16), (0, 2, 3), 1))
BLOCKS, SLOTS = (5, 7), (2, 3)
LAYERS = range(5)


def group_of(layer: int) -> int:
    return 0 if layer in (1, 4) else 1


def first_byte(cache: KVCache, layer: int, block: int) -> int:
    return cache.layer_address(layer) + block * SHAPES[group_of(layer)].nbytes


def mark(cache: KVCache) -> None:
    """Every byte of every block becomes a function of layer and block."""
    for layer in LAYERS:
        for block in range(BLOCKS[group_of(layer)]):
            ctypes.memset(first_byte(cache, layer, block), 16 * layer + block + 1, SHAPES[group_of(layer)].nbytes)


def marks(cache: KVCache, layer: int) -> list[int]:
    """The mark that each of the layer's blocks is full of."""
    found = []
    for block in range(BLOCKS[group_of(layer)]):
        content = set(ctypes.string_at(first_byte(cache, layer, block), SHAPES[group_of(layer)].nbytes))
        assert len(content) == 1
        found.append(content.pop())
    return found


@pytest.fixture
def cache() -> KVCache:
    made = KVCache(GROUPS, 16, "f16", BLOCKS, SLOTS)
    mark(made)
    return made


def test_no_two_blocks_share_memory(cache: KVCache) -> None:
    for layer in LAYERS:
        assert cache.group_of(layer) == group_of(layer)
        assert cache.block_of(layer) == SHAPES[group_of(layer)]
        assert cache.layer_address(layer) % 64 == 0
        assert marks(cache, layer) == [16 * layer + block + 1 for block in range(BLOCKS[group_of(layer)])]
    assert sum(blocks.nbytes for blocks in cache._blocks) == 2 * 5 * SHAPES[0].nbytes + 3 * 7 * SHAPES[1].nbytes


MOVES = st.sampled_from((0, 1)).flatmap(
    lambda group: st.sampled_from(MoveKind).flatmap(
        lambda kind: st.builds(
            BlockMove,
            st.just(kind),
            st.just(group),
            st.integers(0, (SLOTS if kind is MoveKind.IN else BLOCKS)[group] - 1),
            st.integers(0, (SLOTS if kind is MoveKind.OUT else BLOCKS)[group] - 1),
        )
    )
)


@settings(max_examples=60, deadline=None)
@given(moves=st.lists(MOVES, max_size=12))
def test_moves_are_done_in_order_and_touch_nothing_else(moves: Sequence[BlockMove]) -> None:
    cache = KVCache(GROUPS, 16, "f16", BLOCKS, SLOTS)
    mark(cache)
    blocks = {layer: marks(cache, layer) for layer in LAYERS}
    slots = {layer: [0] * SLOTS[group_of(layer)] for layer in LAYERS}
    for move in moves:
        for layer in GROUPS[move.group].layers:
            source = slots if move.kind is MoveKind.IN else blocks
            target = slots if move.kind is MoveKind.OUT else blocks
            target[layer][move.target] = source[layer][move.source]
    cache.move(moves)
    assert {layer: marks(cache, layer) for layer in LAYERS} == blocks


def contents(cache: KVCache, group: int, blocks: Sequence[int]) -> bytes:
    """Blocks layer by layer, as a KV store has them."""
    places = ((layer, block) for layer in GROUPS[group].layers for block in blocks)
    return b"".join(ctypes.string_at(first_byte(cache, *place), SHAPES[group].nbytes) for place in places)


@settings(max_examples=60, deadline=None)
@given(group=st.sampled_from((0, 1)), data=st.data())
def test_blocks_are_copied_in_their_order_and_no_others(group: int, data: st.DataObject) -> None:
    cache = KVCache(GROUPS, 16, "f16", BLOCKS, SLOTS)
    mark(cache)
    any_blocks = st.permutations(range(BLOCKS[group]))
    blocks = data.draw(any_blocks)[: data.draw(st.integers(1, BLOCKS[group]))]
    copied = bytearray(len(blocks) * cache.block_nbytes(group))
    cache.read_blocks(group, array("i", blocks), memoryview(copied))
    assert copied == contents(cache, group, blocks)
    others = data.draw(any_blocks)[: len(blocks)]
    before = {layer: marks(cache, layer) for layer in LAYERS}
    cache.write_blocks(group, array("i", others), memoryview(bytes(copied)))
    for layer in GROUPS[group].layers:
        for block, source in zip(others, blocks, strict=True):
            before[layer][block] = 16 * layer + source + 1
    assert {layer: marks(cache, layer) for layer in LAYERS} == before


def test_a_block_is_copied_once(cache: KVCache) -> None:
    """Without a copy on the way: NumPy allocates less than a layer of a block meanwhile."""
    content = memoryview(bytearray(4 * cache.block_nbytes(1)))
    for copy in (cache.read_blocks, cache.write_blocks):
        tracemalloc.start()
        copy(1, [6, 0, 1, 3], content)
        assert tracemalloc.get_traced_memory()[1] < SHAPES[1].nbytes
        tracemalloc.stop()


def test_a_buffer_of_another_size_or_a_block_that_is_not_there_is_refused(cache: KVCache) -> None:
    size = cache.block_nbytes(0)
    for blocks, nbytes in (([0], 2 * size), ([0, 1], size), ([5], size), ([-1], size)):
        for copy in (cache.read_blocks, cache.write_blocks):
            with pytest.raises((AssertionError, ValueError)):
                copy(0, blocks, memoryview(bytearray(nbytes)))


@pytest.mark.parametrize("kind", MoveKind)
@pytest.mark.parametrize(("source", "target"), [(-1, 0), (0, -1), (7, 0), (0, 7)])
def test_a_block_that_is_not_there_is_refused(cache: KVCache, kind: MoveKind, source: int, target: int) -> None:
    with pytest.raises(AssertionError):
        cache.move([BlockMove(kind, 1, source, target)])


def test_without_host_slots_nothing_goes_out() -> None:
    cache = KVCache(GROUPS, 16, "f16", BLOCKS)
    with pytest.raises(AssertionError):
        cache.move([BlockMove(MoveKind.OUT, 0, 0, 0)])


def test_more_than_the_machine_has_is_refused() -> None:
    with pytest.raises(
        ResourceError, match=r"cannot provide the KV cache: of the memory that kv_cache_memory_bytes allows, .* TB"
    ) as caught:
        KVCache(GROUPS, 16, "f16", BLOCKS, (1 << 48, 0))
    assert "kv_cache_memory_bytes" in str(caught.value.hint)


def test_an_empty_group_takes_nothing() -> None:
    cache = KVCache(GROUPS[:1], 16, "f16", (0,))
    assert cache._blocks[0].nbytes == 0
    assert np.dtype(cache._blocks[0].dtype).itemsize == SHAPES[0].nbytes


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc/self/smaps")
def test_large_pages_can_be_given() -> None:
    """The system gives them to private memory that asked for them (``hg``); shared memory (``sh``) gets none."""
    address, owner = aligned_zeros(8 << 20)
    assert address % 64 == 0
    assert not owner.any()
    flags: list[str] = []
    inside = False
    for line in Path("/proc/self/smaps").read_text("ascii", errors="replace").splitlines():
        first, _, rest = line.partition(" ")
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            inside = start <= address < end
        elif inside and first == "VmFlags:":
            flags = rest.split()
    assert "hg" in flags
    assert "sh" not in flags
