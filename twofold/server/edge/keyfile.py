"""The file of API keys: TOML that people can read and edit, without any key in it.

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
    admin = true                             # default: false

It is replaced as a whole, so a reader sees the old one or the new one, and only its owner may read it.
``KeyFile`` looks for a new version at most once a second. One that is broken or gone changes nothing, and
is warned of: an editor's mistake shall neither lock everybody out nor let anybody in.
"""

from __future__ import annotations

import binascii
import fcntl
import os
import re
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import orjson

from twofold.api.base import ServiceTier
from twofold.core.errors import (
    NotFoundError,
    ParameterError,
    ResourceError,
    TwofoldError,
    UsageError,
    closest_match,
    unreadable,
)
from twofold.core.request import MAX_NAME_CHARS
from twofold.server.edge.keys import METRICS_VIEWS, TIERS, ApiKey, KeyRing, MetricsView, hash_key, new_key
from twofold.server.edge.quotas import Quota

HASH_PREFIX: Final = "sha256:"
HASH_BYTES: Final = 32
LOOK_EVERY_S: Final = 1.0
MAX_FILE_BYTES: Final = 4 * 1024 * 1024
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,99}")
LIMITS: Final = tuple(limit.name for limit in fields(Quota))
KNOWN: Final = ("id", "hash", "tenant", "tiers", "created", "expires", "share_cache", "metrics", "admin", *LIMITS)
HEADING: Final = "# API keys of this server; only their hashes. Written by `twofold keys`, read again on change.\n"


class KeyFile:
    """The keys in a file, together with ``fixed`` ones, as they are now.

    ``warn`` gets a sentence for each version of the file that cannot be read. Raises UsageError or ResourceError where
    the first one cannot.
    """

    def __init__(self, path: Path, fixed: Iterable[ApiKey] = (), *, warn: Callable[[str], None]) -> None:
        self._path = path
        self._fixed = tuple(fixed)
        self._warn = warn
        self._version = _version(path)
        self._looked = -LOOK_EVERY_S
        self._ring = self._read()

    def ring(self, now: float) -> KeyRing:
        """The keys at the time ``now``, in seconds of any clock that does not go back."""
        if now - self._looked >= LOOK_EVERY_S:
            self._looked = now
            version = _version(self._path)
            if version != self._version:
                self._version = version
                self.reload()
        return self._ring

    def reload(self) -> None:
        """Reads the file now, as for SIGHUP; keeps the old keys where it cannot be read."""
        try:
            self._ring = self._read()
        except TwofoldError as error:
            self._warn(f"The old API keys stay valid. {error}")

    def _read(self) -> KeyRing:
        return KeyRing((*self._fixed, *read_keys(self._path)), required=True)


def add_key(path: Path, key_id: str, *, now: datetime, tenant: str | None = None, **rest: Any) -> tuple[ApiKey, str]:
    """Adds a new key; returns it with its text, which is nowhere else. The file is made where there is none.

    ``tenant`` is ``key_id`` where it is None; ``rest`` are fields of ApiKey. ParameterError for an id that is taken.
    """
    text = new_key()
    key = ApiKey(id=key_id, hash=hash_key(text), tenant=key_id if tenant is None else tenant, created=now, **rest)
    with _edited(path) as keys:
        if any(other.id == key_id for other in keys):
            raise ParameterError(f"There is a key {key_id!r} already.", param="id", hint="Choose another id.")
        keys.append(key_of(_fields(key), "the new key"))
    return key, text


def remove_key(path: Path, key_id: str) -> ApiKey:
    """Takes a key out of the file; servers refuse it within a second. Raises NotFoundError where there is none."""
    with _edited(path) as keys:
        found = next((key for key in keys if key.id == key_id), None)
        if found is None:
            close = closest_match(key_id, [key.id for key in keys])
            raise NotFoundError(f"There is no key {key_id!r:.100}.", hint=f"Did you mean {close!r}?" if close else None)
        keys.remove(found)
    return found


def read_keys(path: Path) -> tuple[ApiKey, ...]:
    """The keys in a file. Raises UsageError where it is missing or not right, ResourceError for a disk's fault."""
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
    for field in ("id", "hash"):
        if len({getattr(key, field) for key in keys}) < len(keys):
            raise UsageError(f"The key file {path} has two keys of the same {field}.")
    return keys


def key_of(table: object, where: str) -> ApiKey:
    """The key that a table of the file describes; ``where`` it stands goes into errors. Raises ParameterError."""
    if not isinstance(table, dict):
        raise ParameterError(f"{where} must be a table.", param="key")
    for name in table:
        if name not in KNOWN:
            close = closest_match(name, KNOWN)
            raise ParameterError(
                f"{where} has an unknown field {name!r:.60}.",
                param=name,
                hint=f"Did you mean {close!r}?" if close else f"Known: {', '.join(KNOWN)}.",
            )
    return ApiKey(
        id=_name(table, "id", where),
        hash=_hash(table.get("hash"), where),
        tenant=_name(table, "tenant", where),
        tiers=_tiers(table.get("tiers"), where),
        quota=Quota(**{name: table[name] for name in LIMITS if name in table}),
        created=_moment(table, "created", where),
        expires=_moment(table, "expires", where),
        share_cache=_flag(table, "share_cache", where),
        metrics=_metrics(table.get("metrics", "own"), where),
        admin=_flag(table, "admin", where),
    )


def _name(table: dict[str, Any], field: str, where: str) -> str:
    value = table.get(field)
    if not isinstance(value, str) or not NAME.fullmatch(value) or len(value) > MAX_NAME_CHARS:
        raise ParameterError(f"{field} of {where} must be a name of letters, digits and ._@-.", param=field)
    return value


def _hash(value: object, where: str) -> bytes:
    digits = value.removeprefix(HASH_PREFIX) if isinstance(value, str) and value.startswith(HASH_PREFIX) else ""
    try:
        digest = binascii.unhexlify(digits)
    except (binascii.Error, ValueError):
        digest = b""
    if len(digest) != HASH_BYTES:
        raise ParameterError(f"hash of {where} must be {HASH_PREFIX} and {2 * HASH_BYTES} hex digits.", param="hash")
    return digest


def _tiers(value: object, where: str) -> tuple[ServiceTier, ...]:
    if value is None:
        return TIERS
    listed = value if isinstance(value, list | tuple) else ()
    if not listed or not all(tier in TIERS for tier in listed):
        raise ParameterError(f"tiers of {where} must be a list of {', '.join(TIERS)}.", param="tiers")
    return tuple(tier for tier in TIERS if tier in listed)


def _moment(table: dict[str, Any], field: str, where: str) -> datetime | None:
    value = table.get(field)
    if value is None:
        return None
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise ParameterError(f"{field} of {where} must be a moment with its zone: 2027-01-01T00:00:00Z.", param=field)
    return value.astimezone(UTC)


def _flag(table: dict[str, Any], field: str, where: str) -> bool:
    value = table.get(field, False)
    if not isinstance(value, bool):
        raise ParameterError(f"{field} of {where} must be true or false.", param=field)
    return value


def _metrics(value: object, where: str) -> MetricsView:
    for view in METRICS_VIEWS:
        if value == view:
            return view
    raise ParameterError(f"metrics of {where} must be {' or '.join(METRICS_VIEWS)}.", param="metrics")


def _fields(key: ApiKey) -> dict[str, Any]:
    """The table that describes a key; what says nothing is left out."""
    table: dict[str, Any] = {"id": key.id, "hash": HASH_PREFIX + key.hash.hex(), "tenant": key.tenant}
    if key.tiers != TIERS:
        table["tiers"] = list(key.tiers)
    optional = {"created": key.created, "expires": key.expires, **{name: getattr(key.quota, name) for name in LIMITS}}
    table.update((name, value) for name, value in optional.items() if value is not None)
    table.update((name, True) for name in ("share_cache", "admin") if getattr(key, name))
    if key.metrics != "own":
        table["metrics"] = key.metrics
    return table


def _text(keys: Sequence[ApiKey]) -> str:
    tables = (
        "\n[[key]]\n" + "".join(f"{name} = {_value(value)}\n" for name, value in _fields(key).items()) for key in keys
    )
    return HEADING + "".join(tables)


def _value(value: object) -> str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return orjson.dumps(value).decode("utf-8")  # names, numbers, true and lists of names are the same in TOML


@contextmanager
def _edited(path: Path) -> Iterator[list[ApiKey]]:
    """The keys in a file, to be changed; written back afterwards. Only one editor at a time."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with path.with_name(f".{path.name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = list(read_keys(path)) if path.exists() else []
            yield keys
            _replace(path, _text(keys))
    except OSError as error:
        raise ResourceError(f"The key file {path} cannot be written: {error.strerror}.") from None


def _replace(path: Path, text: str) -> None:
    """Writes a whole file in place of another one; mkstemp's files are their owner's alone."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _version(path: Path) -> tuple[int, int, int] | None:
    """Changes whenever the file does; None where it is not there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
