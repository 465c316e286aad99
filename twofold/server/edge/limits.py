"""Limits of connections and request bodies: bytes, and seconds in each state."""

from __future__ import annotations

import resource
from dataclasses import dataclass, fields
from typing import Final

from twofold.core.errors import ParameterError
from twofold.text.templates.messages import MAX_DEPTH

KIB: Final = 1024
MIB: Final = 1024 * KIB
FILES_BESIDE_CONNECTIONS: Final = 256
"""Open files that a server needs besides connections: models, stores, workers, logs."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits of all connections (the first two), and of one connection. Times are in seconds.

    connections     open connections; beyond, the oldest without a request is closed; if there is none, requests on
                    further ones get a 503 except for /health and /ready
    spare           connections beyond those; any further one is closed at once
    head_bytes      bytes of the head of a request: its first line and its headers
    head_lines      lines of the head
    head_s          from the connection, or the first byte of a later request, to the end of the head
    keep_alive_s    between a response and the next request
    stall_s         time in which a client must read some of the sent bytes
    linger_s        time in which the rest of a refused request is read and dropped, so that the response arrives
    small_chunks    chunks of a body while they hold fewer than ``chunk_bytes`` on average
    """

    connections: int = 1000
    spare: int = 100
    head_bytes: int = 64 * KIB
    head_lines: int = 128
    head_s: float = 10.0
    keep_alive_s: float = 65.0
    stall_s: float = 30.0
    linger_s: float = 2.0
    small_chunks: int = 256
    chunk_bytes: int = 64

    def __post_init__(self) -> None:
        check_positive(self)

    @property
    def pulse_s(self) -> float:
        """Seconds between two checks of a connection's state; the times above are exact to two of these intervals."""
        return min(1.0, min(self.head_s, self.keep_alive_s, self.stall_s, self.linger_s) / 4)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Limits of one request body.

    bytes        its length
    seconds      time in which it must arrive
    depth        depth of nested objects and lists
    containers   number of objects and lists
    values       commas outside of strings, about the number of values; enough for the token ids of a context of 256K
    together     bytes of all bodies being read or processed, except for the first 64 KiB of each
    """

    bytes: int = 2 * MIB
    seconds: float = 30.0
    depth: int = MAX_DEPTH
    containers: int = 32_768
    values: int = 270_000
    together: int = 256 * MIB

    def __post_init__(self) -> None:
        check_positive(self)


def check_positive(limits: ConnectionLimits | BodyLimits) -> None:
    """Raises ParameterError for a limit that is not positive."""
    for field in fields(limits):
        value = getattr(limits, field.name)
        if not value > 0:
            raise ParameterError(f"{field.name} must be above 0, not {value!r:.60}.", param=field.name)


def affordable_connections(wanted: int) -> int:
    """The largest number of connections up to ``wanted`` for which this process may open files, spare ones included.

    Increases the soft limit of open files as far as needed and allowed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + FILES_BESIDE_CONNECTIONS + ConnectionLimits().spare
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - FILES_BESIDE_CONNECTIONS - ConnectionLimits().spare))
