"""``twofold node`` and ``twofold fleet``: several machines behind one server."""

from __future__ import annotations

import asyncio
import platform
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from twofold.cli import replicas as running
from twofold.cli.console import DownloadProgress, note
from twofold.cli.options import BYTES, LIST
from twofold.core.errors import ParameterError

if TYPE_CHECKING:
    from twofold.fleet.joining import FleetAddress

MAX_NAME = 64

RoleFlag = Literal["both", "prefill", "decode"]

app = App(name="fleet", help="Replicas of a running server's models, and the certificates of a fleet's machines.")
for _command in (running.status, running.drain, running.restart, running.scale):
    app.command(_command)


@app.command
def init(folder: Annotated[Path, Parameter(help="Folder to write; it must not have certificates yet.")]) -> None:
    """Make the certificates of a new fleet: ca.pem and hub.pem for servers, ca.pem and node.pem for nodes.

    Anyone with hub.pem or node.pem can join. ca-key.pem is not needed afterwards; keep it away from both.
    """
    from twofold.fleet.certificates import create  # noqa: PLC0415 - start-up time

    create(folder)
    note(f"Wrote {folder}: ca.pem and hub.pem are for the server, ca.pem and node.pem for each node.")


def node(
    model: Annotated[str, Parameter(help="As for `twofold serve`: a name, or ALIAS=NAME; the server's name for it.")],
    *,
    join: Annotated[list[str], LIST, Parameter(help="HOST:PORT where a server awaits nodes; repeatable for several.")],
    fleet_certs: Annotated[
        Path | None, Parameter(help="Folder of the fleet's certificates; on the server's own machine none are needed.")
    ] = None,
    replicas: Annotated[int, Parameter(help="Worker processes; each has its own memory.")] = 1,
    threads: Annotated[int | None, Parameter(help="Threads of each worker (default: its part of the cores).")] = None,
    kv_cache_memory_bytes: Annotated[
        int | None,
        BYTES,
        Parameter(help="KV cache of each worker, e.g. 2G (default: as the server's, or by free memory)."),
    ] = None,
    draft_model: Annotated[
        str | None, Parameter(help="Name or path of the draft model, if the server uses one.")
    ] = None,
    role: Annotated[RoleFlag, Parameter(help="Phase of requests that its replicas compute.")] = "both",
    name: Annotated[str | None, Parameter(help="Name in the server's log (default: the host name).")] = None,
) -> None:
    """Run replicas of a model for servers on other machines. After SIGTERM other replicas take over its requests."""
    from twofold.fleet.certificates import context  # noqa: PLC0415 - start-up time
    from twofold.fleet.joining import MAX_REPLICAS  # noqa: PLC0415
    from twofold.fleet.node import NodeSettings, serve_until_terminated  # noqa: PLC0415
    from twofold.formats.fetch import sources  # noqa: PLC0415
    from twofold.host.machine import read_cpu  # noqa: PLC0415
    from twofold.host.paths import CacheFolders  # noqa: PLC0415
    from twofold.server.models.named_models import read_named_models  # noqa: PLC0415

    if not 1 <= replicas <= MAX_REPLICAS:
        raise ParameterError(f"replicas must be from 1 to {MAX_REPLICAS}.", param="replicas")
    cores = read_cpu().usable_cores
    if threads is not None and not 1 <= threads <= cores:
        raise ParameterError(f"threads must be from 1 to {cores}.", param="threads")
    if kv_cache_memory_bytes is not None and kv_cache_memory_bytes < 1:
        raise ParameterError("kv_cache_memory_bytes must be at least 1.", param="kv_cache_memory_bytes")
    hubs = _hubs(join, fleet_certs)
    tls = None if fleet_certs is None else context(fleet_certs, "node")
    (named,) = read_named_models((model,))
    cache, progress = CacheFolders.of().create().models, DownloadProgress()
    path = sources.resolve(named.source, cache=cache, progress=progress).path
    draft = None if draft_model is None else sources.resolve(draft_model, cache=cache, progress=progress).path
    options: dict[str, Any] = {"threads": threads or max(1, cores // replicas)}
    options |= {} if kv_cache_memory_bytes is None else {"kv_cache_memory_bytes": kv_cache_memory_bytes}
    settings = NodeSettings(
        hubs=hubs,
        model=named.names[0],
        path=path,
        name=(name or platform.node())[:MAX_NAME],
        context=tls,
        replicas=replicas,
        role=role,
        options=options,
        draft=draft,
        say=note,
    )
    note(f"Joining {', '.join(map(str, hubs))} with {named.names[0]}")
    asyncio.run(serve_until_terminated(settings))


def _hubs(join: list[str], certificates: Path | None) -> list[FleetAddress]:
    """The addresses of --join. Raises ParameterError, also for one that is given twice."""
    from twofold.fleet.joining import FleetAddress  # noqa: PLC0415 - start-up time

    hubs = [FleetAddress.of(each, certificates, "join") for each in join]
    if len(set(hubs)) < len(hubs):
        raise ParameterError("join names a server twice.", param="join", hint="Give each server once.")
    return hubs
