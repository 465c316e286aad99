"""A cache of derived merge rules in files, named by the hash of their vocabulary.

A file that is missing, damaged or from another version is computed again.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from twofold.text.tokenizers.merges import Pairs, derive_merges

_VERSION = b"twofold merges 1\n"
_DIGEST_BYTES = hashlib.sha256().digest_size


def cached_merges(pieces: Sequence[str], folder: Path) -> Pairs:
    """``derive_merges(pieces)``, read from ``folder`` if it is there, otherwise written; a failed write is no error."""
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
