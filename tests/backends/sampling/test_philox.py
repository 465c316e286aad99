"""The generator against the known answers of Random123's own test file, and what is built on it."""

from __future__ import annotations

import numpy as np
import pytest

from twofold.backends.sampling.philox import derive_seed, philox, uniform, uniforms

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "answer"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES, ONES, ONES, ONES), (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], answer: tuple[int, int, int, int]
) -> None:
    assert philox(counter, key) == answer


def test_uniform_takes_the_first_53_bits() -> None:
    high, low, _, _ = philox((7, 0, 0, 0), (5, 1))
    assert uniform(5 + (1 << 32), 7) == ((high << 32 | low) >> 11) / 2**53


def test_numbers_are_uniform_over_positions_and_over_seeds() -> None:
    for numbers in ([uniform(1, p) for p in range(4096)], [uniform(s, 1) for s in range(4096)]):
        counts = np.histogram(numbers, bins=64, range=(0, 1))[0]
        assert ((counts - 64) ** 2 / 64).sum() < 120  # chi-square, 63 degrees: p ≈ 2e-5
        assert abs(np.corrcoef(numbers[:-1], numbers[1:])[0, 1]) < 0.06


def test_derived_seeds_differ_and_the_first_is_the_seed() -> None:
    assert derive_seed(9, 0) == 9
    assert len({derive_seed(9, index) for index in range(1000)}) == 1000
    assert derive_seed(2**64 - 1, 3) < 2**64


def test_many_numbers_are_those_of_one_by_one() -> None:
    seeds = [*range(20), 2**64 - 1, 2**63, 12345678901234567890]
    positions = [7 * seed % 100_003 for seed in range(len(seeds) - 1)] + [2**40 + 3]
    expected = [uniform(seed, position) for seed, position in zip(seeds, positions, strict=True)]
    assert uniforms(seeds, positions) == expected
    assert uniforms(seeds[:3], positions[:3]) == expected[:3]
