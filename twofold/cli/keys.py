"""``twofold keys``: the file of API keys of a server."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from cyclopts import Parameter

from twofold.cli.console import note, print_json, print_table, write_out
from twofold.cli.options import FLAG, LIST, Json
from twofold.core.errors import ParameterError
from twofold.host.paths import data_folder

if TYPE_CHECKING:
    from twofold.server.edge.keys import ApiKey


QUOTA_UNITS: Final = {
    "requests_per_minute": " requests/min",
    "tokens_per_minute": " tokens/min",
    "bytes_per_minute": " bytes/min",
    "concurrent": " at a time",
    "kv_tokens": " KV tokens",
}
"""Quotas, and their units in the list."""


@Parameter(name="*", group="A new key")
@dataclass(frozen=True, slots=True, kw_only=True)
class KeyOptions:
    """Permissions and quotas of a new key."""

    tenant: Annotated[
        str | None,
        Parameter(
            help="Tenant whose files, batches, responses and records the key can see (default: a tenant of its own)."
        ),
    ] = None
    tier: Annotated[list[str], LIST, Parameter(help="Allowed service tier; repeatable (default: all).")] = field(
        default_factory=list
    )
    requests_per_minute: Annotated[int | None, Parameter(help="Max requests per minute.")] = None
    tokens_per_minute: Annotated[int | None, Parameter(help="Max prompt and output tokens per minute.")] = None
    bytes_per_minute: Annotated[
        int | None, Parameter(help="Max bytes of request bodies per minute, uploads included.")
    ] = None
    concurrent: Annotated[int | None, Parameter(help="Max concurrent requests.")] = None
    kv_tokens: Annotated[int | None, Parameter(help="Max tokens in the KV cache.")] = None
    expires_days: Annotated[float | None, Parameter(help="Days until the key expires (default: never).")] = None
    share_cache: Annotated[
        bool, FLAG, Parameter(help="Share the prefix cache with the tenant's other keys that set this flag.")
    ] = False
    admin: Annotated[
        bool, FLAG, Parameter(help="May list, load and unload models (`twofold ps`) and stop the server.")
    ] = False
    metrics: Annotated[
        Literal["own", "all"] | None,
        Parameter(help="Tenants that /metrics names: its own (default), or all, for the key that Prometheus uses."),
    ] = None
    sees: Annotated[
        Literal["own", "all"] | None,
        Parameter(help="Tenants whose requests the live view shows with ids and sizes: its own (default), or all."),
    ] = None

    def fields(self, now: datetime) -> dict[str, Any]:
        """Fields of ``ApiKey`` for a key created at ``now``."""
        from twofold.server.edge.quotas import Quota  # noqa: PLC0415 - start-up time

        found: dict[str, Any] = {name: getattr(self, name) for name in ("tenant", "share_cache", "admin")}
        found["quota"] = Quota(**{name: getattr(self, name) for name in QUOTA_UNITS})
        if self.metrics is not None:
            found["metrics"] = self.metrics
        if self.sees is not None:
            found["sees"] = self.sees
        if self.tier:
            found["tiers"] = tuple(self.tier)
        if self.expires_days is not None:
            found["expires"] = now + timedelta(days=self.expires_days)
        return found


def keys(
    action: Annotated[Literal["add", "ls", "rm"], Parameter(help="add, ls or rm.")],
    id: Annotated[str | None, Parameter(help="Key id, as shown in logs and usage.")] = None,
    /,
    *,
    file: Annotated[Path | None, Parameter(help="Key file (default: api-keys.toml in the data folder).")] = None,
    json: Json = False,
    options: KeyOptions = KeyOptions(),
) -> None:
    """Create, list and remove API keys, which are stored as hashes. Servers notice changes within a second."""
    from twofold.server.edge.keys import add_key, read_keys, remove_key  # noqa: PLC0415

    path = file or data_folder() / "api-keys.toml"
    if action == "ls":
        _list(read_keys(path) if path.exists() else (), json)
        return
    if id is None:
        raise ParameterError(f"keys {action} needs the key's id.", param="id", hint=f"twofold keys {action} laptop")
    if action == "rm":
        remove_key(path, id)
        note(f"Removed {id} from {path}.")
        return
    now = datetime.now(UTC)
    key, text = add_key(path, id, now=now, **options.fields(now))
    if json:
        print_json({"id": key.id, "tenant": key.tenant, "key": text})
    else:
        write_out(f"{text}\n")
    note(f"Stored as a hash in {path}; the key is shown only now. Serve with --api-keys {path}.")


def _list(found: tuple[ApiKey, ...], json: bool) -> None:
    if json:
        print_json([_described(key) for key in found])
        return
    if not found:
        note("There are no keys.")
        return
    print_table([("ID", "TENANT", "TIERS", "EXPIRES", "QUOTAS", "MORE"), *map(_row, found)])


def _row(key: ApiKey) -> tuple[str, ...]:
    """The row of a key in the list."""
    expires = "never" if key.expires is None else key.expires.date().isoformat()
    limits = [(getattr(key.quota, name), unit) for name, unit in QUOTA_UNITS.items()]
    quotas = ", ".join(f"{limit:,}{unit}" for limit, unit in limits if limit is not None)
    rights = {
        "shared cache": key.share_cache,
        "all metrics": key.metrics == "all",
        "all live": key.sees == "all",
        "admin": key.admin,
    }
    more = [name for name, given in rights.items() if given]
    return key.id, key.tenant, ", ".join(key.tiers), expires, quotas or "none", ", ".join(more)


def _described(key: ApiKey) -> dict[str, Any]:
    return {
        "id": key.id,
        "tenant": key.tenant,
        "tiers": list(key.tiers),
        "created": None if key.created is None else key.created.isoformat(),
        "expires": None if key.expires is None else key.expires.isoformat(),
        "share_cache": key.share_cache,
        "metrics": key.metrics,
        "sees": key.sees,
        "admin": key.admin,
        **{name: getattr(key.quota, name) for name in QUOTA_UNITS},
    }
