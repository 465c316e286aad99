"""API keys, stored as hashes.

A key is ``tf-`` and 256 random bits. Its length makes guessing impossible, so SHA-256 suffices where a password would
need a slow hash. The hash of a request's key is compared with the hash of each known key, in constant time, so that
neither the hashes nor the times of comparisons reveal a key.

Keys are in a TOML file that people can read and edit; it contains only their hashes.

    [[key]]
    id = "laptop"
    hash = "sha256:…"
    tenant = "research"
    tiers = ["default", "flex"]              # default: all
    created = 2026-01-01T00:00:00Z
    expires = 2027-01-01T00:00:00Z           # default: never
    requests_per_minute = 600                # default of each: no limit
    tokens_per_minute = 100000
    bytes_per_minute = 10000000
    concurrent = 8
    kv_tokens = 65536
    share_cache = true                       # default: false
    metrics = "all"                          # default: "own"
    sees = "all"                             # default: "own"
    admin = true                             # default: false

The file is replaced as a whole, so a reader sees the old version or the new one. Only its owner may read it.
``KeyFile`` looks for a new version at most once a second. A broken or missing version changes nothing and causes a
warning: a typing error must neither lock everyone out nor admit anyone.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import msgspec
import orjson
from msgspec import Meta, Struct
from starlette.datastructures import Headers

from twofold.api.base import ServiceTier
from twofold.core.errors import (
    AccessError,
    NotFoundError,
    ParameterError,
    ResourceError,
    TwofoldError,
    UsageError,
    closest_match,
    did_you_mean,
    unreadable,
)
from twofold.core.request import MAX_NAME_CHARS
from twofold.host.paths import open_own, private_folder, write_whole
from twofold.server.edge.quotas import Quota

KEY_PREFIX: Final = "tf-"
KEY_BYTES: Final = 32
SINGLE_PREFIX: Final = "api-key:"
"""Prefix of the ids of keys that are not in the file; ids in the file have no colon."""
MAX_KEYS: Final = 1024
"""Each request is compared with all keys, which takes about 0.1 µs per key."""
MAX_KEY_CHARS: Final = 512
TIERS: Final[tuple[ServiceTier, ...]] = get_args(ServiceTier)
BEARER: Final = "bearer"
MetricsView = Literal["own", "all"]
"""Tenants whose metrics, or requests, a key can see."""
HASH_PREFIX: Final = "sha256:"
LOOK_EVERY_S: Final = 1.0
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
HEADING: Final = "# API keys of this server; only their hashes. Written by `twofold keys`, read again on change.\n"

Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._@-]{0,99}\Z", max_length=MAX_NAME_CHARS)]
Time = Annotated[datetime, Meta(tz=True)]
Limit = Annotated[int, Meta(gt=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The sender of a request, by its key. Without keys, all requests have the same caller, with empty id and tenant.

    id           name of the key in ``keys ls``, logs and accounts
    tenant       owner of the key, which can use the files, batches, responses and records of its tenant
    tiers        service tiers that it may request
    share_cache  share the prefix cache with the tenant's other keys that set this flag
    metrics      tenants that /metrics shows
    sees         tenants whose requests the live view shows with their ids and sizes
    admin        may list, load and unload models and stop the server
    anonymous    has sent no key to a server with keys; only paths that need none are open to it
    """

    id: str = ""
    tenant: str = ""
    tiers: tuple[ServiceTier, ...] = TIERS
    quota: Quota = field(default_factory=Quota)
    share_cache: bool = False
    metrics: MetricsView = "all"
    sees: MetricsView = "own"
    admin: bool = False
    anonymous: bool = False

    @property
    def cache_salt(self) -> str:
        """Only prompts with the same salt share cached prefixes."""
        return f"tenant:{self.tenant}" if self.share_cache else f"key:{self.id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey(Caller):
    """A key without its text; ``hash`` is the SHA-256 of the text. Times are in UTC. ``created`` is None if unknown,
    ``expires`` if the key never expires."""

    id: str
    hash: bytes
    tenant: str
    metrics: MetricsView = "own"
    created: datetime | None = None
    expires: datetime | None = None

    def expired(self, now: datetime) -> bool:
        return self.expires is not None and now >= self.expires


ANYONE: Final = Caller(sees="all", admin=True)
"""The caller of every request to a server without keys."""


class KeyRing:
    """The keys of a server. If ``required`` is not set and there are none, requests need no key."""

    def __init__(self, keys: Iterable[ApiKey] = (), *, required: bool = True) -> None:
        self._keys = tuple(keys)
        self.required = required or bool(self._keys)
        if len({key.id for key in self._keys}) < len(self._keys):
            raise ParameterError("Two API keys have the same id.", param="keys")
        if len(self._keys) > MAX_KEYS:
            raise ParameterError(f"There are {len(self._keys)} keys; the maximum is {MAX_KEYS}.", param="keys")

    def caller(self, headers: Headers, now: datetime) -> Caller:
        """The caller of a request with these headers. ``now`` is in UTC. Raises AccessError."""
        if not self.required:
            return ANYONE
        return self.find(presented_key(headers), now)

    def named(self, tenant: str, key_id: str, now: datetime) -> Caller:
        """The caller that created a batch, by its current key. Raises AccessError for a removed or expired key."""
        if not self.required:
            return Caller(id=key_id, tenant=tenant)
        key = next((key for key in self._keys if key.id == key_id and key.tenant == tenant), None)
        if key is None or key.expired(now):
            ended = "was removed" if key is None else "has expired"
            raise AccessError(
                f"The API key that created this batch {ended}.", hint="Create the batch with a valid key."
            )
        return key

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
    """Keys from --api-key or TWOFOLD_API_KEY; each has all rights and is a tenant of its own.

    Ids are derived from the texts, so that each key finds its files again, in whatever order the keys are given. People
    choose these texts, so a slow hash (scrypt, RFC 7914) keeps them from being guessed from an id in a log.
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
    return ApiKey(id=name, hash=hash_key(text), tenant=name, metrics="all", sees="all", admin=True)


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


class KeyTable(Struct, kw_only=True, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A table of the file; ``ApiKey`` and ``Quota`` describe its fields."""

    id: Name
    hash: Annotated[str, Meta(pattern=rf"^{HASH_PREFIX}[0-9a-fA-F]{{64}}\Z")]
    tenant: Name
    tiers: Annotated[tuple[ServiceTier, ...], Meta(min_length=1)] = TIERS
    created: Time | None = None
    expires: Time | None = None
    requests_per_minute: Limit | None = None
    tokens_per_minute: Limit | None = None
    bytes_per_minute: Limit | None = None
    concurrent: Limit | None = None
    kv_tokens: Limit | None = None
    share_cache: bool = False
    metrics: MetricsView = "own"
    sees: MetricsView = "own"
    admin: bool = False


LIMITS: Final = Quota.__dataclass_fields__.keys()
NAME_RULE: Final = "1 to 100 letters, digits and ._@-"
RULES: Final = {
    "id": NAME_RULE,
    "hash": f"{HASH_PREFIX} and 64 hex digits",
    "tenant": NAME_RULE,
    "tiers": f"a list of {', '.join(TIERS)}",
    "created": "a time with its zone: 2026-01-01T00:00:00Z",
    "expires": "a time with its zone: 2027-01-01T00:00:00Z",
}
"""Fields whose types msgspec's errors do not describe well."""


class KeyFile:
    """The current keys of a file, together with ``fixed`` ones.

    ``warn`` gets a sentence for each version of the file that cannot be read. Raises UsageError or ResourceError if the
    first version cannot be read.
    """

    def __init__(self, path: Path, fixed: Iterable[ApiKey] = (), *, warn: Callable[[str], None]) -> None:
        self._path = path
        self._fixed = tuple(fixed)
        self._warn = warn
        self._version = _version(path)
        self._looked = -LOOK_EVERY_S
        self._ring = self._read()

    def ring(self, now: float) -> KeyRing:
        """The keys at the time ``now``, in seconds of a monotonic clock."""
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            version = _version(self._path)
            if version != self._version:
                self._version = version
                try:
                    self._ring = self._read()
                except TwofoldError as error:
                    self._warn(f"The old API keys stay valid. {error}")
        return self._ring

    def _read(self) -> KeyRing:
        return KeyRing((*self._fixed, *read_keys(self._path)), required=True)


def add_key(path: Path, key_id: str, *, now: datetime, tenant: str | None = None, **rest: Any) -> tuple[ApiKey, str]:
    """Adds a new key; returns it with its text, which is not stored. Creates the file if it does not exist.

    ``tenant`` is ``key_id`` by default; ``rest`` are fields of ApiKey. Raises ParameterError for an id that is in use.
    """
    text = new_key()
    key = ApiKey(id=key_id, hash=hash_key(text), tenant=key_id if tenant is None else tenant, created=now, **rest)
    with _edited(path) as keys:
        if any(other.id == key_id for other in keys):
            raise ParameterError(f"There is a key {key_id!r} already.", param="id", hint="Choose another id.")
        keys.append(key_of(_table(key), "the new key"))
    return key, text


def remove_key(path: Path, key_id: str) -> ApiKey:
    """Removes a key; running servers refuse it after at most a second. Raises NotFoundError for an unknown id."""
    with _edited(path) as keys:
        found = next((key for key in keys if key.id == key_id), None)
        if found is None:
            close = closest_match(key_id, [key.id for key in keys])
            raise NotFoundError(f"There is no key {key_id!r:.100}.", hint=f"Did you mean {close!r}?" if close else None)
        keys.remove(found)
    return found


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The keys in a file. Raises UsageError for a missing or invalid file, ResourceError if the disk fails."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UsageError(f"The key file {path} is longer than {MAX_FILE_BYTES:,} bytes.")
        content = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise unreadable(f"The key file {path}", error) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"The key file {path} is not valid TOML: {error}.") from None
    return _keys_of(content, path)


def _keys_of(content: dict[str, Any], path: Path) -> tuple[ApiKey, ...]:
    tables = content.pop("key", [])
    if content or not isinstance(tables, list):
        raise UsageError(f"The key file {path} may hold only [[key]] tables.")
    keys = tuple(key_of(table, f"key {number} in {path}") for number, table in enumerate(tables, 1))
    for name in ("id", "hash"):
        if len({getattr(key, name) for key in keys}) < len(keys):
            raise UsageError(f"The key file {path} has two keys of the same {name}.")
    return keys


def key_of(table: object, where: str) -> ApiKey:
    """The key that a table of the file describes; ``where`` names the table in errors. Raises ParameterError."""
    try:
        read = msgspec.convert(table, KeyTable)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), where) from None
    return ApiKey(
        id=read.id,
        hash=bytes.fromhex(read.hash.removeprefix(HASH_PREFIX)),
        tenant=read.tenant,
        tiers=tuple(tier for tier in TIERS if tier in read.tiers),
        quota=Quota(**{name: getattr(read, name) for name in LIMITS}),
        created=read.created and read.created.astimezone(UTC),
        expires=read.expires and read.expires.astimezone(UTC),
        share_cache=read.share_cache,
        metrics=read.metrics,
        sees=read.sees,
        admin=read.admin,
    )


def _invalid(fault: str, where: str) -> ParameterError:
    """The error for a table that msgspec refuses because of ``fault``."""
    field = re.search(r"(?<=`\$\.)\w+|(?<=field `)[^`]*", fault)
    name = "key" if field is None else field[0]
    if "unknown field" in fault:
        hint = did_you_mean(name, KeyTable.__struct_fields__)
        return ParameterError(f"{where} has an unknown field {name!r:.60}.", param=name, hint=hint)
    rule = f"{name} must be {RULES[name]}" if name in RULES else fault
    return ParameterError(f"{where} is not valid: {rule}.", param=name)


def _table(key: ApiKey) -> dict[str, Any]:
    """The table of the file that describes a key, without fields at their defaults."""
    limits = {name: getattr(key.quota, name) for name in LIMITS}
    same = {name: getattr(key, name) for name in KeyTable.__struct_fields__ if name not in (*limits, "hash")}
    table = KeyTable(hash=HASH_PREFIX + key.hash.hex(), **same, **limits)
    return dict(msgspec.to_builtins(table, builtin_types=(datetime,)))


def _text(keys: Sequence[ApiKey]) -> str:
    tables = (
        "\n[[key]]\n" + "".join(f"{name} = {_value(value)}\n" for name, value in _table(key).items()) for key in keys
    )
    return HEADING + "".join(tables)


def _value(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return orjson.dumps(value).decode("utf-8")  # names, numbers, true and lists of names are the same in TOML


@contextmanager
def _edited(path: Path) -> Iterator[list[ApiKey]]:
    """A context with the keys in a file, as a list to change; at the end it is written. Concurrent editors wait."""
    try:
        private_folder(path.parent)
        with os.fdopen(open_own(path.with_name(f".{path.name}.lock"), os.O_WRONLY | os.O_CREAT), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = list(read_keys(path)) if path.exists() else []
            yield keys
            write_whole(path, _text(keys).encode(), sync=True)
    except OSError as error:
        raise ResourceError(f"The key file {path} cannot be written: {error.strerror}.") from None


def _version(path: Path) -> tuple[int, int, int] | None:
    """A value that changes when the file does; None without a file."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
