"""API keys, stored as hashes.

A key is ``tf-`` and 256 random bits. Its length makes guessing impossible, so SHA-256 suffices where a password would
need a slow hash. The hash of a request's key is compared with the hash of each known key, in constant time, so that
neither the hashes nor the times of comparisons reveal a key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, Literal, get_args

from starlette.datastructures import Headers

from twofold.api.base import ServiceTier
from twofold.core.errors import AccessError, ParameterError
from twofold.server.edge.quotas import Quota

KEY_PREFIX: Final = "tf-"
KEY_BYTES: Final = 32
SINGLE_PREFIX: Final = "api-key:"
"""Prefix of the ids of keys that are in no file; ids in files have no colon."""
MAX_KEYS: Final = 1024
"""Each request is compared with all keys, in about 0.1 µs each."""
MAX_KEY_CHARS: Final = 512
TIERS: Final[tuple[ServiceTier, ...]] = get_args(ServiceTier)
BEARER: Final = "bearer"
MetricsView = Literal["own", "all"]
"""Tenants whose figures /metrics shows to a key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A key, without its text.

    id        its name in ``keys ls``, logs and accounts
    hash      SHA-256 of its text
    tenant    its owner: the key can see the files, batches, responses and records of its tenant
    tiers     service tiers that it may request
    created, expires   in UTC; None: unknown, never
    share_cache        share the prefix cache with the tenant's other keys that set this flag
    metrics            tenants that /metrics shows
    admin              may list, load and unload models and stop the server
    """

    id: str
    hash: bytes
    tenant: str
    tiers: tuple[ServiceTier, ...] = TIERS
    quota: Quota = field(default_factory=Quota)
    created: datetime | None = None
    expires: datetime | None = None
    share_cache: bool = False
    metrics: MetricsView = "own"
    admin: bool = False

    @property
    def cache_salt(self) -> str:
        """Only prompts of the same salt share cached prefixes."""
        return f"tenant:{self.tenant}" if self.share_cache else f"key:{self.id}"

    def expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= self.expires


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request. Without keys, all requests have one caller without name and tenant."""

    key_id: str = ""
    tenant: str = ""
    tiers: tuple[ServiceTier, ...] = TIERS
    quota: Quota = field(default_factory=Quota)
    cache_salt: str = ""
    metrics: MetricsView = "all"
    admin: bool = False

    @classmethod
    def of(cls, key: ApiKey) -> Caller:
        return cls(key.id, key.tenant, key.tiers, key.quota, key.cache_salt, key.metrics, key.admin)


ANYONE: Final = Caller(admin=True)
"""The caller of every request to a server without keys."""


class KeyRing:
    """The keys of a server. With neither ``required`` nor keys, requests need no key."""

    def __init__(self, keys: Iterable[ApiKey] = (), *, required: bool = True) -> None:
        self._keys = tuple(keys)
        self.required = required or bool(self._keys)
        if len({key.id for key in self._keys}) < len(self._keys):
            raise ParameterError("Two API keys have the same id.", param="keys")
        if len(self._keys) > MAX_KEYS:
            raise ParameterError(f"There are {len(self._keys)} keys; the maximum is {MAX_KEYS}.", param="keys")

    def __len__(self) -> int:
        return len(self._keys)

    def caller(self, headers: Headers, now: datetime) -> Caller:
        """The caller of a request with these headers. ``now`` is in UTC. Raises AccessError."""
        if not self.required:
            return ANYONE
        return Caller.of(self.find(presented_key(headers), now))

    def named(self, tenant: str, key_id: str, now: datetime) -> Caller:
        """The caller that created a batch, by its current key. Raises AccessError for a removed or expired key."""
        if not self.required:
            return Caller(key_id=key_id, tenant=tenant, cache_salt=f"key:{key_id}")
        key = next((key for key in self._keys if key.id == key_id and key.tenant == tenant), None)
        if key is None or key.expired(now):
            ended = "was removed" if key is None else "has expired"
            raise AccessError(
                f"The API key that created this batch {ended}.", hint="Create the batch with a valid key."
            )
        return Caller.of(key)

    def find(self, text: str | None, now: datetime) -> ApiKey:
        """The key with this text. Raises AccessError for an unknown or expired key."""
        if not text:
            raise AccessError("Missing API key.", hint="Send it as Authorization: Bearer KEY, or as x-api-key: KEY.")
        presented = hash_key(text[: MAX_KEY_CHARS + 1])
        found = None
        for key in self._keys:
            if hmac.compare_digest(presented, key.hash):
                found = key
        if found is None:
            raise AccessError("Invalid API key.")
        if found.expired(now):
            raise AccessError("The API key has expired.")
        return found


def single_keys(texts: Sequence[str]) -> tuple[ApiKey, ...]:
    """Keys from --api-key or TWOFOLD_API_KEY: each a tenant with all rights.

    Ids are derived from the texts, so that each key finds its files again in any order. People choose these texts, so a
    slow hash (scrypt, RFC 7914) keeps them from being guessed from an id in a log.
    """
    for text in texts:
        if not text or not text.isascii() or not text.isprintable() or len(text) > MAX_KEY_CHARS or " " in text:
            raise ParameterError(
                f"An API key must be 1 to {MAX_KEY_CHARS} printable ASCII characters without spaces.", param="api_key"
            )
    return tuple(_single_key(text) for text in dict.fromkeys(texts))


def _single_key(text: str) -> ApiKey:
    digest = hashlib.scrypt(text.encode("ascii"), salt=SINGLE_PREFIX.encode("ascii"), n=2**14, r=8, p=1, dklen=6)
    name = SINGLE_PREFIX + digest.hex()
    return ApiKey(id=name, hash=hash_key(text), tenant=name, metrics="all", admin=True)


def presented_key(headers: Headers) -> str | None:
    """The key in a request's Authorization header (OpenAI), else in x-api-key (Anthropic)."""
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() == BEARER and text.strip():
        return text.strip()
    return headers.get("x-api-key") or None


def new_key() -> str:
    """The text of a new key."""
    return KEY_PREFIX + secrets.token_urlsafe(KEY_BYTES)


def hash_key(text: str) -> bytes:
    """SHA-256 of a key's text."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
