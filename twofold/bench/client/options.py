"""How a client behaves, whatever it sends."""

from __future__ import annotations

from dataclasses import dataclass

from twofold.core.errors import ParameterError


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """
    request_timeout_s   most seconds of a request from when the client turned to it; then it is ``late``
    drain_s             most seconds after the last was due until what is open is ``unfinished``; None is without end
    reuse_connections   whether a connection serves more than one request
    most_connections    most connections at once; what is due meanwhile waits. None is what the process may open
    """

    request_timeout_s: float = 600.0
    drain_s: float | None = None
    reuse_connections: bool = True
    most_connections: int | None = None

    def __post_init__(self) -> None:
        if not self.request_timeout_s > 0:
            raise ParameterError("The request timeout must be above 0 seconds.", param="request_timeout_s")
        if self.drain_s is not None and not self.drain_s >= 0:
            raise ParameterError("The drain period cannot be negative.", param="drain_s")
        if self.most_connections is not None and self.most_connections < 1:
            raise ParameterError("There must be at least 1 connection.", param="most_connections")
