"""Which replica works on which request: leases, each with the number of its try. Pure: no clock, no I/O.

    waiting → leased    ``grant``: one replica gets the request
    leased  → waiting   ``lose``: its replica ended, or stopped answering; ``release``: it moves
    any     → gone      ``end``: the request has ended, or its reader has left

Laws
    A request has at most one lease, and a lease at most one request.
    A lease's id is never used again, so what a replica reports under an earlier one is recognised and dropped.
    Requests that wait are granted in the order in which they arrived.
    Without requests there are no leases.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

R = TypeVar("R", bound=Hashable)
TRY_MARK: Final = "\x1f"
"""Stands between a request's id and the number of a later try; ids of requests have no control characters."""


def lease_id(request_id: str, number: int) -> str:
    """The id under which replicas know a try of a request: the first try has the request's own."""
    return request_id if number == 1 else f"{request_id}{TRY_MARK}{number}"


class Leases(Generic[R]):
    """The leases of a hub's requests. ``R`` identifies a replica.

    leased  the request of each lease, and the replica that has it
    """

    def __init__(self) -> None:
        self._tries: dict[str, int] = {}
        self.leased: dict[str, tuple[str, R]] = {}
        self._lease: dict[str, str] = {}
        self._waiting: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self._tries)

    @property
    def waiting(self) -> tuple[str, ...]:
        """Requests without a lease, in order of arrival."""
        return tuple(self._waiting)

    def open(self, request_id: str) -> None:
        """Adds a request, which waits for its first lease."""
        assert request_id not in self._tries, "a request's id is unique"
        self._tries[request_id] = 0
        self._waiting[request_id] = None

    def grant(self, request_id: str, replica: R) -> str:
        """Leases a waiting request to a replica; returns the lease's id."""
        del self._waiting[request_id]
        self._tries[request_id] += 1
        lease = self._lease[request_id] = lease_id(request_id, self._tries[request_id])
        self.leased[lease] = request_id, replica
        return lease

    def holder(self, request_id: str) -> tuple[str, R] | None:
        """The lease of a request and its replica; None while it waits."""
        lease = self._lease.get(request_id)
        return None if lease is None else (lease, self.leased[lease][1])

    def request_of(self, lease: str, replica: R) -> str | None:
        """The request that a replica reports about; None if it has no such lease any more."""
        request_id, holder = self.leased.get(lease, (None, None))
        return request_id if holder == replica else None

    def lose(self, replica: R) -> list[tuple[str, str]]:
        """Ends the leases of a replica. Its requests wait again, before those that arrived after them. Returns the
        requests with their former leases."""
        lost = [(request_id, lease) for lease, (request_id, holder) in self.leased.items() if holder == replica]
        for request_id, lease in lost:
            del self._lease[request_id], self.leased[lease]
        if lost:
            waiting = {*self._waiting, *(request_id for request_id, _ in lost)}
            self._waiting = {request_id: None for request_id in self._tries if request_id in waiting}
        return lost

    def release(self, request_id: str) -> None:
        """Ends the lease of a request, which waits again."""
        del self.leased[self._lease.pop(request_id)]
        self._waiting[request_id] = None

    def end(self, request_id: str) -> None:
        """Removes a request with its lease, if it has one."""
        del self._tries[request_id]
        self._waiting.pop(request_id, None)
        lease = self._lease.pop(request_id, None)
        if lease is not None:
            del self.leased[lease]
