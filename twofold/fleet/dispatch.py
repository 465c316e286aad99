"""Which replica works on which request, and where the requests of a lost replica continue.

It has no processes, no sockets and no clock, so a simulation can run it (``benchmarks/fleet_simulation.py``).

Laws
    Each token is told once, in order: only the replica that has the lease of a request is heard.
    What a replica gets of a request is what its reader was told, so the next token is the one after it.
    A replica that loses a lease is told to abort, as long as it can be reached.
    Without requests nothing is held: no lease, no stream, no replica with requests.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from twofold.core.errors import ParameterError, TwofoldError
from twofold.core.forecast import RequestProgress
from twofold.core.request import EngineRequest
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.fleet.leases import Leases
from twofold.fleet.messages import Abort, SetPaused, ToWorker
from twofold.fleet.streams import MAX_ENDS, DispatchHandle, RequestStream


class DispatchTarget(Protocol):
    """A replica: its number, whether requests may go there, its open requests, and sequences that wait there."""

    number: int
    requests: int
    waiting: int

    @property
    def usable(self) -> bool: ...

    def send(self, message: ToWorker) -> None: ...


R = TypeVar("R", bound=DispatchTarget)


class ReplicaRouter(Protocol[R]):
    """Chooses the replica for a request."""

    def choose(self, request: EngineRequest, replicas: Sequence[R]) -> R:
        """One of the replicas, of which there is at least one; all of them are usable."""


class FewestRequests:
    """Chooses the replica with the fewest requests, the first one of several."""

    def choose(self, request: EngineRequest, replicas: Sequence[R]) -> R:  # noqa: ARG002
        return min(replicas, key=lambda replica: replica.requests)


class Dispatch(Generic[R]):
    """The requests of a model. ``replicas`` is the list of its owner, which calls ``assign`` when one becomes usable,
    and ``lose`` when one is not any more."""

    def __init__(self, replicas: dict[int, R], router: ReplicaRouter[R]) -> None:
        self.streams: dict[str, RequestStream] = {}
        self.leaving: dict[str, tuple[RequestStream, R]] = {}
        self.leases: Leases[int] = Leases()
        self._replicas = replicas
        self._router = router

    @property
    def waiting(self) -> int:
        """Requests that no replica has."""
        return len(self.leases.waiting)

    @property
    def usable(self) -> list[R]:
        return [replica for replica in self._replicas.values() if replica.usable]

    def open(self, request: EngineRequest, handle: DispatchHandle) -> RequestStream:
        """Adds a request. Raises ParameterError if its id is in use."""
        request_id = request.request_id
        leaving = any(stream.request.request_id == request_id for stream, _ in self.leaving.values())
        if request_id in self.streams or leaving:
            raise ParameterError(f"The request id {request_id!r} is in use.", param="request_id")
        stream = RequestStream(request, handle, lambda paused: self._pause(request_id, paused=paused))
        self.streams[request_id] = stream
        self.leases.open(request_id)
        self.assign()
        return stream

    def close(self, stream: RequestStream, *, whole: bool) -> None:
        """The reader of a request has its ``whole`` output, or leaves. If the request runs, it is aborted; its output
        so far arrives later."""
        request_id = stream.request.request_id
        del self.streams[request_id]
        if whole:
            return
        stream.leave()
        holder = self.leases.holder(request_id)
        if not stream.over:
            self._end_lease(request_id)
        if stream.over or holder is None:
            stream.settle()
        else:
            lease, number = holder
            self.leaving[lease] = stream, self._replicas[number]
            self._replicas[number].send(Abort(lease))
        self.assign()

    def assign(self) -> None:
        """Gives requests that wait to replicas, in order of arrival."""
        usable = self.usable
        for request_id in self.leases.waiting:
            stream = self.streams[request_id]
            replicas = self._candidates(stream, usable)
            if not replicas:
                continue
            replica = self._router.choose(stream.request, replicas)
            lease = self.leases.grant(request_id, replica.number)
            replica.requests += 1
            replica.waiting += 1
            replica.send(stream.next_try(lease))
            if stream.paused:
                replica.send(SetPaused(lease, True))

    def lose(self, replica: R, error: TwofoldError | None = None) -> None:
        """Takes its requests from a replica. With an ``error`` its process has crashed, perhaps because of one of them:
        a request with MAX_ENDS crashes gets the error."""
        for lease, (stream, holder) in list(self.leaving.items()):
            if holder is replica:
                del self.leaving[lease]
                stream.settle()
        replica.requests = 0
        for request_id, lease in self.leases.lose(replica.number):
            stream = self.streams[request_id]
            stream.handle.retries += 1
            if error is None:
                replica.send(Abort(lease))
                continue
            stream.ends += 1
            if stream.ends >= MAX_ENDS:
                self.fail(stream, error)

    def fail(self, stream: RequestStream, error: TwofoldError) -> None:
        """Ends a request with an error."""
        if not stream.over:
            self._end_lease(stream.request.request_id)
            stream.break_off(error)

    def fail_all(self, error: TwofoldError) -> None:
        for stream in self.streams.values():
            self.fail(stream, error)

    # -- what replicas tell --------------------------------------------------------------------------------------------

    def hear(self, replica: R, delta: OutputDelta, now: float) -> None:
        """Passes a delta on, unless its lease has ended."""
        lease = delta.request_id
        request_id, holder = self.leases.leased.get(lease, (None, None))  # not ``request_of``: this runs for each token
        if request_id is not None and holder == replica.number:
            if delta.request is not None or delta.error is not None:
                self._end_lease(request_id)
            stream = self.streams[request_id]
            first = not stream.proven
            stream.hear(delta, now)
            if first:  # suspects may wait for it
                self.assign()
        elif (leaving := self.leaving.get(lease)) is not None and leaving[1] is replica:
            leaving[0].hear(delta, now)

    def hear_progress(self, replica: R, progress: RequestProgress) -> None:
        request_id = self.leases.request_of(progress.request_id, replica.number)
        if request_id is not None and (asker := self.streams[request_id].handle.progress) is not None:
            asker(replace(progress, request_id=request_id))

    def hear_failure(self, replica: R, lease: str, error: TwofoldError) -> None:
        """The replica refuses a request."""
        request_id = self.leases.request_of(lease, replica.number)
        if request_id is not None:
            self.fail(self.streams[request_id], error)
            self.assign()

    def hear_gone(self, replica: R, lease: str, output: RequestOutput | None) -> None:
        """The replica has aborted a request whose reader has left."""
        leaving = self.leaving.get(lease)
        if leaving is not None and leaving[1] is replica:
            del self.leaving[lease]
            leaving[0].settle(output)

    def stream_of(self, replica: R, lease: str) -> RequestStream | None:
        """The request that a replica calls by this id; None if it has no such lease."""
        request_id = self.leases.request_of(lease, replica.number)
        if request_id is not None:
            return self.streams[request_id]
        leaving = self.leaving.get(lease)
        return None if leaving is None else leaving[0]

    def check_idle(self) -> None:
        """Asserts that nothing is held without requests."""
        assert self.streams or not (len(self.leases) or self.leaving), "a request was forgotten"
        assert self.streams or not any(replica.requests for replica in self._replicas.values()), "a count is wrong"

    def _candidates(self, stream: RequestStream, usable: list[R]) -> list[R]:
        """The replicas that may get a request. Until a suspect has given a token, it is the only such request of its
        replica, so that another request cannot crash the process in its stead."""
        if not any(each.suspect for each in self.streams.values()):
            return usable
        unproven = Counter[int]()
        apart, waits = set(), False
        for request_id, each in self.streams.items():
            holder = self.leases.holder(request_id)
            waits |= each.suspect and holder is None
            if holder is not None and not each.proven:
                unproven[holder[1]] += 1
                if each.suspect:
                    apart.add(holder[1])
        if stream.suspect:
            return [replica for replica in usable if not unproven[replica.number]]
        if waits and usable and len(apart) < len(usable):  # the next replica without such requests is for a suspect
            rest = [replica.number for replica in usable if replica.number not in apart]
            apart.add(min(rest, key=lambda number: unproven[number]))
        return [replica for replica in usable if replica.number not in apart]

    def _pause(self, request_id: str, *, paused: bool) -> None:
        holder = self.leases.holder(request_id)
        if holder is not None:
            lease, number = holder
            self._replicas[number].send(SetPaused(lease, paused))

    def _end_lease(self, request_id: str) -> None:
        """The request needs no replica any more."""
        holder = self.leases.holder(request_id)
        if holder is not None:
            self._replicas[holder[1]].requests -= 1
        self.leases.end(request_id)
