"""How much a client may send, how fast, and how long a connection may stay in each of its states."""

from __future__ import annotations

import resource
from dataclasses import dataclass, fields
from typing import Final

from twofold.core.errors import ParameterError

KIB: Final = 1024
MIB: Final = 1024 * KIB
FILES_BESIDE_CONNECTIONS: Final = 256
"""Open files that a server needs for anything but connections: models, stores, workers, logs."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Of one connection, but for the first two. Times are in seconds.

    connections     open ones; beyond those the oldest that sent no request yet is closed, and where there is none
                    requests get a 503, but for the paths that tell whether the server lives
    spare           connections beyond those; what comes after them is closed unanswered
    head_bytes      of a request line with its headers
    head_lines      of it
    head_s          from the connection, or the first byte of a later request, to the end of the head
    keep_alive_s    between an answer and the next request
    stall_s         in which a client must read some of what waits for it
    linger_s        in which the rest of a request is thrown away after it was refused, so that the refusal arrives
    small_chunks    of a body sent in chunks, while they hold less than ``chunk_bytes`` on average
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
        """How often a connection is looked at; times above are exact to two of these."""
        return min(1.0, min(self.head_s, self.keep_alive_s, self.stall_s, self.linger_s) / 4)


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Of one request body.

    bytes        of it
    seconds      in which it must be there
    depth        of objects and lists inside each other
    containers   objects and lists in it
    values       in it, about: its commas outside of texts; room for the token ids of a context of 256K
    together     bytes of all bodies that are being read or answered, but for the first 64 KiB of each
    """

    bytes: int = 2 * MIB
    seconds: float = 30.0
    depth: int = 64
    containers: int = 32_768
    values: int = 270_000
    together: int = 256 * MIB

    def __post_init__(self) -> None:
        check_positive(self)


def check_positive(limits: ConnectionLimits | BodyLimits) -> None:
    """Raises ParameterError for a limit that lets nothing through."""
    for field in fields(limits):
        value = getattr(limits, field.name)
        if not value > 0:
            raise ParameterError(f"{field.name} must be above 0, not {value!r:.60}.", param=field.name)


def affordable_connections(wanted: int) -> int:
    """At most ``wanted`` connections, such that they and their spare ones fit into this process's open files, of which
    it asks for as many as it may have."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + FILES_BESIDE_CONNECTIONS + ConnectionLimits().spare
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return wanted
    soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return max(1, min(wanted, soft - FILES_BESIDE_CONNECTIONS - ConnectionLimits().spare))
