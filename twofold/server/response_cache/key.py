"""Which requests may be answered from kept answers, and by what they are found again.

The key is a digest of what determines an answer: tenant and cache salt, the model's identity, and each job's prompt and
parameters. Jobs, not bodies: whatever a body says about the form of its reply (streaming, labels, the dialect) is not
in them, and what its chat template and its tools came to is. So what is found was made from the same tokens.

Deterministic requests qualify: those at temperature 0, those that make vectors, and with ``seeded`` those that name a
seed. Others do only where they ask for it, with the header ``x-twofold-cache: keep``; ``skip`` keeps any request out.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final, Protocol

from twofold.core.errors import ModelNotFoundError
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest

VERSION: Final = 1
"""Of what is digested. Another version finds nothing of this one."""
HEAD_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class ResponseCacheKey:
    """A request whose answer may be kept: who asks, what is run, and the digest of both."""

    digest: bytes
    tenant: str
    jobs: tuple[EngineRequest, ...]


def replay_key(
    tenant: str, identity: str, jobs: Sequence[EngineRequest], *, asked: bool | None = None, seeded: bool = False
) -> ResponseCacheKey | None:
    """The key of a request of ``jobs`` for the model with this ``identity``; None where it must be run.

    ``asked`` is what the request says about it itself, None where it says nothing.
    """
    if asked is False or not jobs:
        return None
    if not asked and not all(_is_determined(job, seeded) for job in jobs):
        return None
    digest = hashlib.sha256()
    _digest(digest, (VERSION, tenant, identity, len(jobs)))
    for job in jobs:
        _digest(digest, (job.options.tenant, job.options.cache_salt))
        _digest(digest, (job.prompt, job.token_ids))
        _digest(digest, _effective(job))
    return ResponseCacheKey(digest.digest(), tenant, tuple(jobs))


def model_identity(path: Path, settings: Mapping[str, object]) -> str:
    """What a model's answers depend on beside the request: its file, and ``settings`` of the engine and the program.

    The file counts by its size, its time and its first 1 MiB, which holds its description; reading all of it would take
    seconds. Raises ModelNotFoundError where it cannot be read.
    """
    try:
        with path.open("rb") as file:
            head = hashlib.sha256(file.read(HEAD_BYTES)).hexdigest()
        stat = path.stat()
    except OSError as error:
        raise ModelNotFoundError(f"{path} cannot be read: {error.strerror}.") from error
    digest = hashlib.sha256()
    _digest(digest, (head, stat.st_size, stat.st_mtime_ns, dict(sorted(settings.items()))))
    return digest.hexdigest()


def _is_determined(job: EngineRequest, seeded: bool) -> bool:
    params = job.params
    return not isinstance(params, SamplingParams) or params.greedy or (seeded and params.seed is not None)


def _effective(job: EngineRequest) -> object:
    """The parameters without what does not matter: no seed changes the most likely token."""
    params = job.params
    if isinstance(params, SamplingParams) and params.greedy and params.seed is not None:
        return replace(params, seed=None)
    return params


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def _digest(digest: _Digest, value: object) -> None:
    """Adds a value so that no two different ones add the same bytes; equal numbers are equal, whatever their type."""
    match value:
        case str():
            data = value.encode("utf-8", "surrogatepass")
            digest.update(b"s%d:" % len(data) + data)
        case bool() | None:
            digest.update(repr(value).encode() + b";")
        case int() | float():
            digest.update(repr(int(value) if value == value // 1 and abs(value) < 2**63 else value).encode() + b";")
        case Mapping():
            _digest_all(digest, b"m", [part for item in value.items() for part in item])
        case Sequence():
            _digest_sequence(digest, value)
        case _ if is_dataclass(value):
            parts = [getattr(value, each.name) for each in fields(value)]
            _digest_all(digest, type(value).__name__.encode(), parts)
        case _:
            raise TypeError(f"{type(value).__name__} is no part of a request")


def _digest_sequence(digest: _Digest, values: Sequence[Any]) -> None:
    """Whole numbers are added at once, since there may be many token ids."""
    types = set(map(type, values))
    if types in ({float}, {int, float}) and all(float(each).is_integer() for each in values):
        values, types = [*map(int, values)], {int}
    try:
        ids = array("i", values) if types == {int} else None
    except OverflowError:
        ids = None
    if ids is None:
        _digest_all(digest, b"l", values)
    else:
        digest.update(b"t%d:" % len(ids) + ids.tobytes())


def _digest_all(digest: _Digest, kind: bytes, parts: Sequence[Any]) -> None:
    digest.update(b"%s%d:" % (kind, len(parts)))
    for part in parts:
        _digest(digest, part)
