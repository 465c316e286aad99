"""``twofold ps | load | unload | stop``: the models of a running server."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Annotated, Any, TypeAlias
from urllib.parse import quote

from cyclopts import Parameter

from twofold.cli.console import note, print_json, print_table
from twofold.cli.options import DURATION, FLAG, Json
from twofold.core.errors import AccessError, NetworkError, NotFoundError, TimeLimitError, UsageError
from twofold.core.units import count, format_bytes

MODELS = "/v1/twofold/models"
RESPONSE_TIMEOUT_S = 30.0
LOAD_TIMEOUT_S = 3600.0
POLL_S = 0.2

Url: TypeAlias = Annotated[str, Parameter(name=("--url", "-u"), help="URL of the server.")]
Key: TypeAlias = Annotated[
    str | None, Parameter(help="Admin API key, if the server has keys: twofold keys add NAME --admin.")
]
Model: TypeAlias = Annotated[str, Parameter(help="Name of the model on the server.")]
DEFAULT_URL = "http://127.0.0.1:8000"


def ps(*, url: Url = DEFAULT_URL, api_key: Key = None, json: Json = False) -> None:
    """List the models of a running server: loaded or not, in use or idle."""
    models = ask(url, api_key, "GET", MODELS)["data"]
    if json:
        print_json(models)
        return
    print_table([("NAME", "STATE", "MEMORY", "RUNNING", "WAITING", "IDLE", "UNLOADS"), *map(_row, models)])


def load(model: Model, /, *, url: Url = DEFAULT_URL, api_key: Key = None, json: Json = False) -> None:
    """Load a model of a running server, and wait until it is loaded."""
    found = ask(url, api_key, "POST", f"{MODELS}/{quote(model)}/load", LOAD_TIMEOUT_S)
    print_json(found) if json else note(f"Loaded {found['id']}.")


def unload(
    model: Model,
    /,
    *,
    timeout: Annotated[float, DURATION, Parameter(help="Time limit for its running requests.")] = 600.0,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    json: Json = False,
) -> None:
    """Unload a model of a running server, once its running requests have finished. Later requests load it again."""
    found = ask(url, api_key, "POST", f"{MODELS}/{quote(model)}/unload")
    until = time.monotonic() + timeout
    if found["state"] == "ready" and not json:
        note(f"Waiting for {count(found['running'] + found['waiting'], 'request')} of {found['id']}.")
    while found["state"] in ("ready", "loading"):
        if time.monotonic() > until:
            raise TimeLimitError(
                f"{found['id']} is still in use after {timeout:g} s.",
                hint="It is unloaded when its last request ends; raise --timeout to wait longer.",
            )
        time.sleep(POLL_S)
        found = next(each for each in ask(url, api_key, "GET", MODELS)["data"] if each["id"] == found["id"])
    print_json(found) if json else note(f"Unloaded {found['id']}.")


def stop(
    model: Annotated[str | None, Parameter(help="Name of the model on the server.")] = None,
    /,
    *,
    server: Annotated[bool, FLAG, Parameter(help="Stop the server: running requests may finish.")] = False,
    timeout: Annotated[float, DURATION, Parameter(help="Time limit for the model's running requests.")] = 600.0,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
) -> None:
    """Unload a model of a running server; or stop the server itself with --server."""
    if server == (model is not None):
        raise UsageError("stop needs a model or --server.", hint="twofold ps lists the models.")
    if model is not None:
        unload(model, timeout=timeout, url=url, api_key=api_key)
        return
    ask(url, api_key, "POST", "/v1/twofold/shutdown")
    note(f"The server at {url} is stopping; running requests may finish.")


def ask(
    url: str,
    api_key: str | None,
    method: str,
    path: str,
    limit_s: float = RESPONSE_TIMEOUT_S,
    sent: Mapping[str, Any] | None = None,
) -> Any:
    """The JSON in a server's response. Raises AccessError, NotFoundError, UsageError or NetworkError for an error."""
    import orjson  # noqa: PLC0415 - start-up time

    from twofold.bench.client.target import ServerTarget, exchange  # noqa: PLC0415
    from twofold.bench.endpoints.values import redirection  # noqa: PLC0415

    headers = {} if api_key is None else {"authorization": f"Bearer {api_key}"}
    if sent is not None:
        headers["content-type"] = "application/json"
    data = None if sent is None else orjson.dumps(sent)
    status, told, body = exchange(ServerTarget.of(url), method, path, data, headers, limit_s)
    if (moved := redirection(status, told)) is not None:
        raise moved
    try:
        found = orjson.loads(body)
        message = None if status == 200 else str(found["error"]["message"])
    except (orjson.JSONDecodeError, KeyError, TypeError):
        raise NetworkError(f"{url} is not a Twofold server (status {status}).", hint="Check --url.") from None
    if message is None:
        return found
    if status in (401, 403):
        raise AccessError(message, hint="Give an admin key with --api-key or TWOFOLD_API_KEY.")
    if status == 404:
        raise NotFoundError(message, hint="twofold ps lists the models.")
    raise UsageError(message) if status < 500 else NetworkError(message)


def _row(use: dict[str, Any]) -> tuple[str, ...]:
    loaded = use["state"] == "ready"
    unloads = "never" if use["unloads_in_s"] is None else f"in {_time(use['unloads_in_s'])}"
    return (
        ", ".join(use["names"]),
        use["state"],
        format_bytes(use["bytes"]) if loaded else "-",
        str(use["running"]),
        str(use["waiting"]),
        "-" if use["idle_s"] is None else _time(use["idle_s"]),
        unloads if loaded and not use["running"] else "-",
    )


def _time(seconds: float) -> str:
    """12 s, 5 min, 3.2 h."""
    for unit, size in (("s", 60), ("min", 60), ("h", 48)):
        if seconds < size:
            return f"{seconds:.0f} {unit}" if unit != "h" else f"{seconds:.1f} h"
        seconds /= 60
    return f"{seconds / 24:.0f} d"
