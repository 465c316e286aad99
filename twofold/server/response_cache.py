"""The response cache returns exact repeats of deterministic requests at once. It is off by default.

    key = cache.key(tenant, identity, jobs, asked)        None: the request does not qualify
    outputs = await cache.get(key, request_id)            None: a miss
    await cache.put(key, outputs)                         after the request ran

Invariants
- A tenant never gets the outputs of another: its name is part of the digest, and checked again.
- Entries live for ``ttl_s`` and take at most ``max_bytes`` together. If space is needed, the tenant with the most bytes
  loses its least recently used entry, so a tenant cannot evict the entries of others.
- No request fails because of the file: a cache that cannot be read counts as empty.

A key is a digest of everything that determines an output: tenant, cache salt, the model's identity, and the prompt and
parameters of each request to the engine. Bodies are not part of it, so requests that differ in streaming, labels or API
protocol share an entry; the cached output was computed from the same tokens.

Deterministic requests qualify: those at temperature 0, those for vectors, and with ``seeded`` those with a seed. The
header ``x-twofold-cache: keep`` includes any other request, ``skip`` excludes any.

Completions, log-probabilities and vectors are stored; the prompt is not, because a later request has it. Outputs that a
deadline, a disconnect or an error cut short are not stored. A cached output was neither queued nor computed: its times
and its work are 0, and its whole prompt counts as cached.
"""

from __future__ import annotations

import hashlib
import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import msgspec

from twofold.core.errors import ResourceError
from twofold.core.params import SamplingParams
from twofold.core.record import SequenceRecord
from twofold.core.report import RequestMetrics
from twofold.core.request import EngineRequest
from twofold.engine.outputs import CompletionOutput, Logprobs, OutputDelta, RequestOutput, ScoredPrompt
from twofold.server.storage.database import Database, SingleThread, evict, shares_schema

CACHE_HEADER: Final = "x-twofold-cache"
"""A header of requests, with the value keep or skip."""
HIT_HEADER: Final = (CACHE_HEADER.encode(), b"hit")
"""The header of a reply from the cache."""
ROW_BYTES: Final = 256
"""Size of an entry without its data, approximately."""
MAX_SHARE: Final = 8
"""An output larger than 1/8 of the cache is not stored."""
MAX_WRITES: Final = 64
"""Outputs that wait to be written; further ones are not stored."""
SCORED: Final = 256
"""Tokens of a prompt whose log-probabilities are in one delta."""
SCHEMA_VERSION: Final = 2
SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS answers (
    digest BLOB PRIMARY KEY,
    tenant TEXT NOT NULL,
    expires REAL NOT NULL,
    used REAL NOT NULL,
    size INTEGER NOT NULL
);
CREATE TABLE IF NOT EXISTS bodies (digest BLOB PRIMARY KEY, data BLOB NOT NULL);
CREATE TRIGGER IF NOT EXISTS bodies_go AFTER DELETE ON answers
BEGIN DELETE FROM bodies WHERE digest = old.digest; END;
CREATE INDEX IF NOT EXISTS answers_by_use ON answers (tenant, used);
CREATE INDEX IF NOT EXISTS answers_by_end ON answers (expires);
""" + shares_schema("answers")
DIGEST_VERSION: Final = 2
"""The version of the digest. Another version does not find the entries of this one."""
MAX_INT: Final = 1 << 63
WHOLE: Final = frozenset({"stop", "length", "repetition"})
"""Finish reasons of whole completions."""
FAST: Final = 1
"""Compression level of zlib."""


@dataclass(frozen=True, slots=True)
class ResponseCacheSettings:
    """``seeded`` includes requests with a seed. ``ttl_s`` counts from the time when an output is stored."""

    ttl_s: float = 86_400.0
    max_bytes: int = 256 << 20
    seeded: bool = False


class ResponseCache:
    """The cache in the file at ``path``, in memory if it is None; ``now`` returns seconds since 1970.

    Raises ResourceError if the file cannot be opened.
    """

    def __init__(self, path: Path | None, settings: ResponseCacheSettings, now: Callable[[], float]) -> None:
        self._settings = settings
        self._now = now
        self._file = Database(path, SCHEMA, SCHEMA_VERSION, durable=False)
        self._thread = SingleThread("response-cache")
        self._writes = 0
        self._closed = False

    def key(
        self, tenant: str, identity: str, jobs: Sequence[EngineRequest], asked: bool | None = None
    ) -> ResponseCacheKey | None:
        """See ``cache_key``."""
        return cache_key(tenant, identity, jobs, asked=asked, seeded=self._settings.seeded)

    async def get(self, key: ResponseCacheKey, request_id: str) -> tuple[RequestOutput, ...] | None:
        """The outputs of the key's jobs, as outputs of the request ``request_id``; None on a miss."""
        return None if self._closed else await self._thread.call(self._find, key, request_id)

    async def put(self, key: ResponseCacheKey, outputs: Sequence[RequestOutput]) -> None:
        """Stores the outputs, if they are whole and fewer than MAX_WRITES wait. Never raises."""
        if self._closed or self._writes >= MAX_WRITES:
            return
        self._writes += 1
        try:
            await self._thread.call(self._store, key, tuple(outputs))
        finally:
            self._writes -= 1

    def close(self) -> None:
        """Completes the write in progress. A closed cache counts as empty."""
        self._closed = True
        self._thread.close()
        self._file.close()

    def _find(self, key: ResponseCacheKey, request_id: str) -> tuple[RequestOutput, ...] | None:
        try:
            data = self._file.use(lambda connection: _look_up(connection, key, self._now()))
        except ResourceError:
            return None
        return None if data is None else unpack(data, key.jobs, request_id)

    def _store(self, key: ResponseCacheKey, outputs: tuple[RequestOutput, ...]) -> None:
        data = pack(outputs)
        if data is None or len(data) > self._settings.max_bytes // MAX_SHARE or len(outputs) != len(key.jobs):
            return
        with suppress(ResourceError):
            self._file.use(lambda connection: self._insert(connection, key, data))

    def _insert(self, sql: sqlite3.Connection, key: ResponseCacheKey, data: bytes) -> None:
        now, size = self._now(), len(data) + ROW_BYTES
        sql.execute("DELETE FROM answers WHERE expires <= ?", (now,))
        sql.execute("DELETE FROM answers WHERE digest = ?", (key.digest,))
        row = (key.digest, key.tenant, now + self._settings.ttl_s, now, size)
        sql.execute("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", row)
        sql.execute("INSERT INTO bodies VALUES (?, ?)", (key.digest, data))
        evict(sql, "answers", "used", self._settings.max_bytes)


def _look_up(connection: sqlite3.Connection, key: ResponseCacheKey, now: float) -> bytes | None:
    """Returns the data of a key, and makes it the most recently used one; None for an unknown key."""
    known = connection.execute(
        "UPDATE answers SET used = ? WHERE digest = ? AND tenant = ? AND expires > ?",
        (now, key.digest, key.tenant, now),
    ).rowcount
    if not known:
        return None
    row: tuple[bytes] | None = connection.execute("SELECT data FROM bodies WHERE digest = ?", (key.digest,)).fetchone()
    return None if row is None else row[0]


@dataclass(frozen=True, slots=True)
class ResponseCacheKey:
    """The key of a request that qualifies: its tenant, its requests to the engine, and a digest of both."""

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
    _digest(digest, (DIGEST_VERSION, tenant, identity, len(jobs)))
    for job in jobs:
        _digest(digest, (job.options.tenant, job.options.cache_salt))
        _digest(digest, (job.prompt, job.token_ids, job.answered))
        _digest(digest, _effective(job))
    return ResponseCacheKey(digest.digest(), tenant, tuple(jobs))


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


@dataclass(frozen=True, slots=True)
class CachedOutput:
    """The output of one request to the engine. ``sampled`` has the number of tokens of each completion, including those
    that best_of dropped."""

    outputs: tuple[CompletionOutput, ...]
    sampled: tuple[int, ...]
    prompt_logprobs: tuple[Logprobs | None, ...] | None
    embedding: tuple[float, ...] | None


def pack(outputs: Sequence[RequestOutput]) -> bytes | None:
    """The bytes to store; None if an output was cut short or contains lone surrogates."""
    if not outputs or not all(map(_is_whole, outputs)):
        return None
    stored = [
        CachedOutput(
            output.outputs,
            tuple(len(times) for times in output.metrics.token_times),
            output.prompt_logprobs,
            output.embedding,
        )
        for output in outputs
    ]
    try:
        return zlib.compress(msgspec.msgpack.encode(stored), FAST)
    except UnicodeEncodeError:
        return None


def unpack(data: bytes, jobs: Sequence[EngineRequest], request_id: str) -> tuple[RequestOutput, ...] | None:
    """The outputs of ``jobs``; None if the bytes are not from ``pack``, or are for another number of jobs."""
    try:
        stored = msgspec.msgpack.decode(zlib.decompress(data), type=list[CachedOutput])
    except (zlib.error, msgspec.MsgspecError, ValueError):
        return None
    if len(stored) != len(jobs):
        return None
    return tuple(_output(each, job, request_id) for each, job in zip(stored, jobs, strict=True))


def deltas(output: RequestOutput) -> Iterator[OutputDelta]:
    """A cached output as deltas: its scored prompt, one per completion, the last one with the whole output."""
    for start in range(0, len(output.prompt_logprobs or ()), SCORED):
        scored = ScoredPrompt(start, (output.prompt_logprobs or ())[start : start + SCORED])
        yield OutputDelta(output.request_id, 0, "", (), scored=scored)
    if not output.outputs:
        yield OutputDelta(output.request_id, 0, "", (), None, "stop", request=output)
    for completion in output.outputs:
        yield OutputDelta(
            output.request_id,
            completion.index,
            completion.text,
            completion.token_ids,
            completion.logprobs,
            completion.finish_reason,
            completion.stop_reason,
            output if completion is output.outputs[-1] else None,
            cached=output.metrics.cached_tokens,
        )


def _is_whole(output: RequestOutput) -> bool:
    made = bool(output.outputs) or output.embedding is not None
    return (
        made
        and output.finished
        and not output.metrics.open_ended
        and all(one.finish_reason in WHOLE for one in output.outputs)
    )


def _output(stored: CachedOutput, job: EngineRequest, request_id: str) -> RequestOutput:
    ids = job.token_ids
    reasons = tuple(one.finish_reason for one in stored.outputs if one.finish_reason is not None)
    metrics = RequestMetrics(
        arrival=0.0,
        first_scheduled=0.0,
        first_token=0.0,
        finished=0.0,
        token_times=tuple((0.0,) * count for count in stored.sampled),
        prompt_tokens=len(ids),
        cached_tokens=len(ids),
        request_id=request_id,
        finish_reasons=reasons,
        record=SequenceRecord(cached=len(ids)),
    )
    return RequestOutput(
        request_id,
        job.prompt,
        ids,
        stored.prompt_logprobs,
        stored.outputs,
        metrics,
        finished=True,
        embedding=stored.embedding,
    )
