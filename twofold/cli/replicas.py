"""``twofold fleet status | drain | restart | scale``: the replicas of a running server's models."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from urllib.parse import quote

from cyclopts import Parameter

from twofold.cli.console import note, print_json, print_table
from twofold.cli.options import Json
from twofold.cli.remote import DEFAULT_URL, LOAD_TIMEOUT_S, MODELS, Key, Url, ask
from twofold.core.errors import AccessError, UsageError
from twofold.core.units import count

ABOUT = "/v1/twofold/server"
TITLES = ("MODEL", "REPLICA", "ROLE", "WHERE", "STATE", "REQUESTS", "WAITING", "KV BLOCKS HELD", "CACHED", "RESTARTS")
ModelOption = Annotated[str | None, Parameter(help="Name of the model on the server (default: its only loaded one).")]


def status(*, url: Url = DEFAULT_URL, api_key: Key = None, json: Json = False) -> None:
    """List the replicas of a running server's models: their states, requests and KV caches."""
    models = _loaded(url, api_key)
    if json:
        print_json([{"model": model["id"], **model["fleet"]} for model in models])
        return
    rows = [_row(model["id"], each) for model in models for each in model["fleet"]["replicas"]]
    print_table([TITLES, *rows])
    for model in models:
        fleet = model["fleet"]
        note(f"{model['id']}: router {fleet['router']}, {count(fleet['waiting'], 'request')} without a replica")
        scaling = fleet["autoscale"]
        if fleet["problem"] is not None and (scaling is None or scaling["problem"] != fleet["problem"]):
            note(fleet["problem"])
        if scaling is not None:
            note(f"{model['id']}: {_decision(scaling)}")


def drain(
    replica: Annotated[int, Parameter(help="Number of the replica; twofold fleet status lists them.")],
    /,
    *,
    model: ModelOption = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    json: Json = False,
) -> None:
    """Move the requests of a replica to others, and end it."""
    name = model or _only(url, api_key)
    found = _post(url, api_key, name, "/replicas/drain", {"replica": replica})
    print_json(found) if json else note(f"Drained replica {replica} of {name}.")


def restart(*, model: ModelOption = None, url: Url = DEFAULT_URL, api_key: Key = None, json: Json = False) -> None:
    """Replace a model's replicas one after the other, each after its successor is ready if there is room for one more.

    Requests continue on the others.
    """
    name = model or _only(url, api_key)
    found = _post(url, api_key, name, "/replicas/restart", None)
    how = (
        "in place, for lack of room or because of --kv-store"
        if found["in_place"]
        else "each after its successor was ready"
    )
    print_json(found) if json else note(f"Restarted the replicas of {name}: {how}.")


def scale(
    replicas: Annotated[
        int, Parameter(help="Number of the model's replicas, not counting nodes that join by themselves.")
    ],
    /,
    *,
    model: ModelOption = None,
    url: Url = DEFAULT_URL,
    api_key: Key = None,
    json: Json = False,
) -> None:
    """Start or drain replicas of a model, on the server's machine or on its Ray cluster."""
    name = model or _only(url, api_key)
    found = _post(url, api_key, name, "/replicas", {"replicas": replicas})
    print_json(found) if json else note(found["problem"] or f"{name} has {count(replicas, 'replica')}.")


def _post(url: str, api_key: str | None, model: str, path: str, body: dict[str, int] | None) -> Any:
    return ask(url, api_key, "POST", f"{MODELS}/{quote(model)}{path}", LOAD_TIMEOUT_S, body)


def _loaded(url: str, api_key: str | None) -> list[dict[str, Any]]:
    """The loaded models of a server with their replicas. Raises AccessError without admin rights."""
    about = ask(url, api_key, "GET", ABOUT)
    loaded = [model for model in about.get("models", ()) if model["state"] == "ready"]
    if "models" not in about or any(model["fleet"] is None for model in loaded):
        raise AccessError(
            f"{url} shows replicas to administrators only.", hint="Give an admin key with --api-key or TWOFOLD_API_KEY."
        )
    return loaded


def _only(url: str, api_key: str | None) -> str:
    """The only loaded model of a server."""
    names = [str(model["id"]) for model in _loaded(url, api_key)]
    if len(names) != 1:
        found = f"has several loaded models: {', '.join(names)}" if names else "has no loaded model"
        raise UsageError(f"{url} {found}.", hint="Name one with --model; twofold ps lists the models.")
    return names[0]


def _decision(scaling: dict[str, Any]) -> str:
    """The last decision of the autoscaler in words."""
    bounds, at = f"{scaling['minimum']} to {scaling['maximum']}", datetime.fromtimestamp(scaling["at"]).astimezone()
    text = f"autoscale of {bounds} wants {scaling['wanted']} at {at:%H:%M:%S}: {scaling['reason']}"
    if scaling["measured"] is not None:
        text += f"; measured {scaling['measured']:.0%}"
    return text if scaling["problem"] is None else f"{text}; not done: {scaling['problem']}"


def _row(model: str, replica: dict[str, Any]) -> tuple[str, ...]:
    blocks = replica["blocks"]
    where = replica["node"] or ("-" if replica["pid"] is None else f"process {replica['pid']}")
    held, cached = ("-", "-") if blocks is None else (str(blocks["held"]), str(blocks["cached"]))
    counts = (replica["requests"], replica["waiting"])
    state = replica["state"] if replica["error"] is None else f"{replica['state']}: {replica['error']}"
    return (
        model,
        str(replica["number"]),
        replica["role"],
        where,
        state,
        *map(str, counts),
        held,
        cached,
        str(replica["restarts"]),
    )
