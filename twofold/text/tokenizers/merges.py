"""Merge rules from scores: the two pieces that the last merge of each piece joins.

SentencePiece always merges the neighbours whose union has the best score. An encoder that works with ranked pairs needs
the pairs. A piece of n characters can be cut in n - 1 ways, but only one cut matters: no merge that crosses the border
of a piece happens before the piece is there, so its inside goes through the same merges in any text, and the last of
them is always the same. Keeping that one halves the rules of a large vocabulary (513,511 to 236,243 for Gemma 3).

The pieces are numbered by rank, best score first; equal scores rank by id.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Pairs: TypeAlias = NDArray[np.int32]
"""int32 [rules, 2]: ranks of the left and the right piece, best rule first."""

_Hashes: TypeAlias = NDArray[np.uint64]
_BASE = 0x9E3779B97F4A7C15
_FILTER_BITS = 22
MAX_CUTS: Final = 256
"""Cuts of a piece among which its last merge is searched; usual vocabularies have pieces of at most 32 characters."""


def derive_merges(pieces: Sequence[str]) -> Pairs:
    """Rules that merge exactly in the order of ``pieces``: best first, without duplicates and empty ones."""
    if not pieces:
        return np.zeros((0, 2), np.int32)
    whole, left, right = _cuts(pieces)
    return np.array(_last_merges(pieces, whole, left, right), np.int32).reshape(-1, 2)


def _cuts(pieces: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """All ways to cut a piece into two pieces, as ranks (whole, left, right), ordered by whole.

    A prefix is found by a polynomial hash modulo 2^64, for all positions at once; hits are compared as text afterwards.
    """
    lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
    ends = np.cumsum(lengths)
    starts = ends - lengths
    sums, inverse = _prefix_sums(pieces)
    hashes = (sums[ends] - sums[starts]) * inverse[starts]
    whole = np.repeat(np.arange(len(pieces)), lengths)
    cut = np.arange(len(whole))
    inner = cut > starts[whole]
    whole, cut = whole[inner], cut[inner]
    lookup = _Lookup(hashes)
    for_left = (sums[cut] - sums[starts[whole]]) * inverse[starts[whole]]
    for_right = (sums[ends[whole]] - sums[cut]) * inverse[cut]
    maybe = lookup.maybe(for_left) & lookup.maybe(for_right)
    whole, left, right = whole[maybe], lookup.find(for_left[maybe]), lookup.find(for_right[maybe])
    hit = (left >= 0) & (right >= 0)
    return _confirmed(pieces, whole[hit], left[hit], right[hit])


def _prefix_sums(pieces: Sequence[str]) -> tuple[_Hashes, _Hashes]:
    """Σ character · base^position before each position of the joined pieces, and base^-position."""
    characters = np.frombuffer("".join(pieces).encode("utf-32-le"), np.uint32).astype(np.uint64) + np.uint64(1)
    count = len(characters) + 1
    sums = np.zeros(count, np.uint64)
    np.cumsum(characters * _powers(_BASE, count)[:-1], out=sums[1:])
    return sums, _powers(pow(_BASE, -1, 1 << 64), count)


def _powers(base: int, count: int) -> _Hashes:
    factors = np.full(count, base, np.uint64)
    factors[0] = 1
    powers: _Hashes = np.multiply.accumulate(factors)
    return powers


class _Lookup:
    """Finds hashes among those of the pieces: a bitmap rejects most hashes that are absent, binary search decides."""

    def __init__(self, hashes: _Hashes) -> None:
        self._order = np.argsort(hashes)
        self._sorted = hashes[self._order]
        self._seen = np.zeros(1 << _FILTER_BITS, np.bool_)
        self._seen[self._bucket(hashes)] = True

    @staticmethod
    def _bucket(hashes: _Hashes) -> NDArray[np.int64]:
        return (hashes >> np.uint64(64 - _FILTER_BITS)).astype(np.int64)

    def maybe(self, wanted: _Hashes) -> NDArray[np.bool_]:
        return self._seen[self._bucket(wanted)]

    def find(self, wanted: _Hashes) -> NDArray[np.int64]:
        """Index of each wanted hash, -1 if it is unknown."""
        place = np.minimum(np.searchsorted(self._sorted, wanted), len(self._sorted) - 1)
        return np.where(self._sorted[place] == wanted, self._order[place], -1)


def _confirmed(
    pieces: Sequence[str], whole: NDArray[np.int64], left: NDArray[np.int64], right: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    triples = zip(whole.tolist(), left.tolist(), right.tolist(), strict=True)
    same = np.fromiter((pieces[w] == pieces[a] + pieces[b] for w, a, b in triples), np.bool_, len(whole))
    return whole[same], left[same], right[same]


def _last_merges(
    pieces: Sequence[str], whole: NDArray[np.int64], left: NDArray[np.int64], right: NDArray[np.int64]
) -> list[tuple[int, int]]:
    history = _History(pieces)
    rules: list[tuple[int, int]] = []
    borders = np.flatnonzero(np.diff(whole, prepend=-1, append=len(pieces))).tolist()
    cuts = list(zip(left.tolist(), right.tolist(), strict=True))
    for (first, last), piece in zip(pairwise(borders), whole[borders[:-1]].tolist(), strict=True):
        rules += history.settle(piece, cuts[first:last])
    return rules


class _History:
    """The merges of all pieces so far, in rank order; finds the cut of the next piece that is its last merge."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self._left = list(range(len(pieces)))
        self._right = list(range(len(pieces)))
        self._single = [len(piece) == 1 for piece in pieces]
        self._merged: dict[tuple[int, int], int] = {}

    def settle(self, piece: int, cuts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Rules for ``piece``: its last merge if that is certain, else all cuts (superfluous ones never fire), also if
        there are so many that the search would take long.

        A piece that ranks before one of its parts can be merged only after that part: its rank is not its age, so how
        it is merged, and what is made of it, counts as unknown.
        """
        if 1 < len(cuts) <= MAX_CUTS:
            cuts = next(([cut] for cut in cuts if self._older(cut, piece) and self._stays(*cut, piece)), cuts)
        if len(cuts) == 1 and self._older(cuts[0], piece) and all(map(self._known, cuts[0])):
            self._left[piece], self._right[piece] = cuts[0]
        for cut in cuts:
            self._merged[cut] = piece
        return cuts

    def _older(self, parts: tuple[int, int], piece: int) -> bool:
        return all(self._single[part] or part < piece for part in parts)

    def _known(self, piece: int) -> bool:
        return self._single[piece] or self._left[piece] != piece

    def _stays(self, left: int, right: int, limit: int) -> bool:
        """Whether left|right are two pieces when all merges ranked before ``limit`` are done.

        Walks back in time along the border: the younger of the two neighbours is undone, and no merge across the
        border may have come before it.
        """
        if not (self._known(left) and self._known(right)):
            return False
        while True:
            if self._merged.get((left, right), limit) < limit:
                return False
            left_age = -1 if self._single[left] else left
            right_age = -1 if self._single[right] else right
            if left_age > right_age:
                limit, left = left_age, self._right[left]
            elif right_age < 0:
                return True
            else:
                limit, right = right_age + 1, self._left[right]


_VERSION = b"twofold merges 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size


def cached_merges(pieces: Sequence[str], folder: Path) -> Pairs:
    """``derive_merges(pieces)``, kept in a file of ``folder`` that is named by the hash of its vocabulary.

    A file that is missing, damaged or from another version is computed again; a failed write is no error.
    """
    path = folder / f"{_name(pieces)}.merges"
    pairs = _read(path, len(pieces))
    if pairs is None:
        pairs = derive_merges(pieces)
        with suppress(OSError):
            _write(path, pairs)
    return pairs


def _name(pieces: Sequence[str]) -> str:
    lengths = np.fromiter(map(len, pieces), "<i4", len(pieces)).tobytes()
    return hashlib.sha256(_VERSION + lengths + "".join(pieces).encode()).hexdigest()


def _read(path: Path, count: int) -> Pairs | None:
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, body = data[:_DIGEST_BYTES], data[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest or len(body) % 8:
        return None
    pairs = np.frombuffer(body, "<i4").reshape(-1, 2).astype(np.int32)
    fits = len(pairs) == 0 or (pairs.min() >= 0 and pairs.max() < count)
    return pairs if fits else None


def _write(path: Path, pairs: Pairs) -> None:
    body = pairs.astype("<i4").tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(hashlib.sha256(body).digest() + body)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(name)
        raise
