"""The MAC of a segment's blocks: any pieces give one MAC, any other byte or key gives another."""

from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from twofold.engine.config import EngineOptions
from twofold.engine.kv.segments import StoreKeys
from twofold.engine.kv_mac import DIRECT_BYTES, PayloadMac
from twofold.host.digest import CHUNK, KEY_BYTES, SUM_BYTES, UniversalHash, universal_hash

KEYS = StoreKeys(b"s" * 32, b"i" * 32)
NAME = b"n" * 32
KERNEL = EngineOptions().open_backend().universal_hash()


def mac(data: bytes, pieces: tuple[int, ...] = (), keys: StoreKeys = KEYS, name: bytes = NAME, group: int = 0) -> bytes:
    made, view = PayloadMac(keys, name, group, KERNEL), memoryview(data)
    for size in pieces:
        made.update(view[:size])
        view = view[size:]
    made.update(view)
    return made.digest()


def sums(data: NDArray[np.uint8], key: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """uint64 [chunks, passes], as ``host.digest`` defines them."""
    words, keys = data.view("<u4").reshape(-1, CHUNK // 4), key.view("<u4")
    found = []
    for start in range(0, SUM_BYTES // 4, 2):
        mixed = words + keys[start : start + CHUNK // 4]
        found.append((mixed[:, ::2].astype(np.uint64) * mixed[:, 1::2]).sum(axis=1, dtype=np.uint64))
    return np.stack(found, axis=1)


@pytest.mark.parametrize("chunks", [1, 2, 7])
@pytest.mark.parametrize("made", [KERNEL, universal_hash])
def test_a_hash_has_the_sums_of_its_definition(made: UniversalHash, chunks: int) -> None:
    rng = np.random.default_rng(chunks)
    data, key = (rng.integers(0, 256, size, dtype=np.uint8) for size in (chunks * CHUNK, KEY_BYTES))
    assert (made(data, key).view(np.uint64).reshape(chunks, -1) == sums(data, key)).all()


@given(st.integers(0, 3 * DIRECT_BYTES), st.lists(st.integers(0, DIRECT_BYTES + CHUNK), max_size=6))
def test_pieces_of_any_sizes_give_one_mac(size: int, pieces: list[int]) -> None:
    data = Random(size).randbytes(size)
    assert mac(data, tuple(pieces)) == mac(data)


@given(st.integers(1, 4 * CHUNK), st.data())
def test_each_bit_counts(size: int, chosen: st.DataObject) -> None:
    data = bytearray(Random(size).randbytes(size))
    before = mac(bytes(data))
    data[chosen.draw(st.integers(0, size - 1))] ^= 1 << chosen.draw(st.integers(0, 7))
    assert mac(bytes(data)) != before


def test_zeros_at_the_end_and_every_key_count() -> None:
    data = Random(3).randbytes(CHUNK + 1)
    others = [
        mac(data + b"\0"),
        mac(data, group=1),
        mac(data, name=b"m" * 32),
        mac(data, keys=StoreKeys(b"t" * 32, b"i" * 32)),
        mac(data[CHUNK:] + data[:CHUNK]),
    ]
    assert len({mac(data), *others}) == 6
