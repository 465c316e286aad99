"""Keys of the response cache, and the requests that qualify for it.

A key is a digest of everything that determines an output: tenant, cache salt, the model's identity, and the prompt and
parameters of each request to the engine. Bodies are not part of it, so requests that differ in streaming, labels or API
protocol share an entry; a hit was computed from the same tokens.

Deterministic requests qualify: those at temperature 0, those for vectors, and with ``seeded`` those with a seed. The
header ``x-twofold-cache: keep`` includes any other request, ``skip`` excludes any.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import msgspec

from twofold.core.errors import ModelNotFoundError
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest

VERSION: Final = 2
"""Of the digest. Another version does not find the entries of this one."""
HEAD_BYTES: Final = 1 << 20
MAX_INT: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class ResponseCacheKey:
    """A request that qualifies: its tenant, its requests to the engine, and the digest of all."""

    digest: bytes
    tenant: str
    jobs: tuple[EngineRequest, ...]


def cache_key(
    tenant: str, identity: str, jobs: Sequence[EngineRequest], *, asked: bool | None = None, seeded: bool = False
) -> ResponseCacheKey | None:
    """The key of a request of ``jobs`` for the model with this ``identity``; None if it does not qualify.

    ``asked`` is the choice of the request's header, None without one.
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
    """A digest of what outputs depend on besides the request: the model's file and ``settings`` of engine and program.

    The file is identified by its size, its time and its first 1 MiB, which has the metadata, since reading all of it
    would take seconds. Raises ModelNotFoundError where it cannot be read.
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
    """The parameters without the seed of greedy sampling, which has no effect."""
    params = job.params
    if isinstance(params, SamplingParams) and params.greedy and params.seed is not None:
        return replace(params, seed=None)
    return params


class _Digest(Protocol):
    def update(self, data: bytes, /) -> None: ...


def _digest(digest: _Digest, value: object) -> None:
    """Adds a value, so that different values add different bytes; equal numbers are equal, whatever their type."""
    digest.update(msgspec.msgpack.encode(_plain(value)))


def _plain(value: object) -> object:
    """A value as lists, numbers and bytes, which msgpack writes unambiguously."""
    match value:
        case None | bool():
            return value
        case str():
            return value.encode("utf-8", "surrogatepass")
        case int() | float():
            whole = value == value // 1 and abs(value) < MAX_INT
            return int(value) if whole else value if isinstance(value, float) else [b"int", str(value).encode()]
        case Mapping():
            return [b"map", *(_plain(part) for item in value.items() for part in item)]
        case Sequence():
            whole = set(map(type, value)) == {int} and max(map(abs, value)) < MAX_INT  # token ids, perhaps many
            return [b"list", value if whole else [_plain(part) for part in value]]
        case _ if is_dataclass(value):
            return [type(value).__name__.encode(), *(_plain(getattr(value, each.name)) for each in fields(value))]
        case _:
            raise TypeError(f"{type(value).__name__} is not part of a request")
