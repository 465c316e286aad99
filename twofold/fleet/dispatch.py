"""Which replica works on which request, and where the requests of a lost replica continue.

It has no processes, no sockets and no clock, so a simulation can run it (``benchmarks/fleet/simulation.py``).

Laws
    Each token is delivered once, in order: only the replica that has the lease of a request is heard.
    What a replica gets of a request is what was delivered to its reader, so the next token is the one after it.
    A replica that loses a lease gets an abort, as long as it can be reached.
    Without requests nothing is held: no lease, no stream, no replica with requests.
    Tenants of a class that wait get the same service from all replicas together (``fleet.line``).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from twofold.core.errors import ParameterError, TwofoldError, UsageError, WorkerError
from twofold.core.forecast import RequestProgress
from twofold.core.request import EngineRequest
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.fleet.checks import NO_BOUNDS
from twofold.fleet.leases import Leases
from twofold.fleet.line import Place, WaitingLine, WaitingRequest
from twofold.fleet.messages import Abort, SetPaused, ToWorker
from twofold.fleet.routing.index import PrefixIndex
from twofold.fleet.routing.load import SentPrompt
from twofold.fleet.routing.router import Choice, Router
from twofold.fleet.streams import MAX_ENDS, RequestRoute, RequestStream, StreamReader
from twofold.observe.served import MoveCause

log = logging.getLogger("twofold.serve")


class DispatchTarget(Place, Protocol):
    """A replica: its open requests, and sequences that wait there."""

    waiting: int

    def send(self, message: ToWorker) -> None: ...

    def open_request(self, prompt: SentPrompt, tenant: str) -> None:
        """A request is sent there."""

    def close_request(self, tenant: str) -> None:
        """A request does not need it any more."""

    def clear(self) -> None:
        """It has no requests any more."""


R = TypeVar("R", bound=DispatchTarget)


class Dispatch(Generic[R]):
    """The requests of a model. ``replicas`` is the list of its owner, which calls ``assign`` when one becomes usable or
    reports its work, and ``lose`` when one is not usable any more. ``before_sending`` is called before a request that
    fetches blocks is sent, ``on_sent`` after any request was sent to a replica, ``on_first`` after a replica has given
    its first token of a request. ``bounds`` are those of the model's outputs.

    Each request is handled alone: one that fails here gets an error, and the others go on."""

    def __init__(
        self,
        replicas: dict[int, R],
        router: Router,
        clock: Callable[[], float],
        prefixes: PrefixIndex | None = None,
    ) -> None:
        self.streams: dict[str, RequestStream] = {}
        self.leaving: dict[str, tuple[RequestStream, R]] = {}
        self.leases: Leases[int] = Leases()
        self.line: WaitingLine[R] = WaitingLine(replicas, router, clock, prefixes)
        self._entries: dict[str, WaitingRequest] = {}
        self._suspects: dict[str, WaitingRequest] = {}
        self._replicas = replicas
        self._clock = clock
        self.before_sending: Callable[[EngineRequest, Choice, RequestRoute], None] | None = None
        self.on_sent: Callable[[str], None] | None = None
        self.on_first: Callable[[str], None] | None = None
        self.bounds = NO_BOUNDS

    @property
    def waiting(self) -> int:
        """Requests that no replica has."""
        return len(self.leases.waiting)

    @property
    def usable(self) -> list[R]:
        return [replica for replica in self._replicas.values() if replica.usable]

    def open(self, request: EngineRequest, reader: StreamReader | None = None) -> RequestStream:
        """Adds a request. Raises ParameterError if its id is in use."""
        request_id = request.request_id
        leaving = any(stream.request.request_id == request_id for stream, _ in self.leaving.values())
        if request_id in self.streams or leaving:
            raise ParameterError(f"The request id {request_id!r} is in use.", param="request_id")
        stream = RequestStream(request, lambda paused: self._pause(request_id, paused=paused), self.close, reader)
        self.streams[request_id] = stream
        self.leases.open(request_id)
        entry = self._entries[request_id] = self.line.entry(request)
        replica = None if self._suspects else self.line.only(entry)
        if replica is None:
            self.line.add(entry)
            self.assign()
            return stream
        entry.choice, entry.placed_at = Choice(replica.number, "the only replica"), entry.arrival
        with self._alone(stream):
            self._grant(entry, replica)
        return stream

    def close(self, stream: RequestStream, whole: bool) -> None:
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
        """Gives requests that wait to replicas, as far as these take them."""
        closed = self._part_suspects() if self._suspects else ()
        for entry, replica in self.line.take(closed):
            with self._alone(self.streams[entry.request.request_id]):
                self._grant(entry, replica)

    def _grant(self, entry: WaitingRequest, replica: R) -> None:
        request_id, choice = entry.request.request_id, entry.choice
        assert choice is not None, "a request goes where it was placed"
        stream = self.streams[request_id]
        stream.place(choice, entry.placed_at, self.line.account(entry))
        lease = self.leases.grant(request_id, replica.number)
        replica.open_request(SentPrompt(entry.tokens, choice.cached or 0, stream.request.completions), entry.tenant)
        request = stream.next_try(lease)
        if choice.fetch is not None and self.before_sending is not None:
            self.before_sending(request, choice, stream.route)
        replica.send(request)
        if stream.paused:
            replica.send(SetPaused(lease, True))
        if self.on_sent is not None:
            self.on_sent(request_id)

    def _part_suspects(self) -> set[int]:
        """Sends suspects to replicas, and returns those that must get no other request. Until a suspect has given a
        token, it is the only such request of its replica, so that another request cannot crash the process in its
        stead. Requests of other hubs of the same node still can."""
        self._suspects = {
            request_id: entry
            for request_id, entry in self._suspects.items()
            if request_id in self.streams and self.streams[request_id].suspect
        }
        unproven, closed = Counter[int](), set[int]()
        for request_id, each in self.streams.items():
            holder = self.leases.holder(request_id)
            if holder is not None and not each.proven:
                unproven[holder[1]] += 1
                if each.suspect:
                    closed.add(holder[1])
        for request_id, entry in self._suspects.items():
            if self.leases.holder(request_id) is None:
                rest = [number for number, each in self._replicas.items() if each.usable and number not in closed]
                if not rest:
                    break
                number = min(rest, key=lambda number: unproven[number])
                closed.add(number)  # it takes no other request, so it becomes free for the suspect
                if not unproven[number]:
                    replica = self._replicas[number]
                    entry.choice, entry.placed_at = self.line.choose(entry.request, [replica]), self._clock()
                    with self._alone(self.streams[request_id]):
                        self._grant(entry, replica)
        return closed

    def show_places(self) -> None:
        """Gives requests that wait here their places in the queue, if they ask for their progress."""
        now = self._clock()
        for entry, replica, ahead in self.line.places():
            request = entry.request
            if (asker := self.streams[request.request_id].reader.progress) is not None:
                waiting = ahead + replica.waiting
                asker(RequestProgress(request.request_id, now - entry.arrival, waiting, 0, 0, len(request.token_ids)))

    def lose(self, replica: R, cause: MoveCause, error: TwofoldError | None = None) -> None:
        """Takes its requests from a replica. With an ``error`` its process has crashed, perhaps because of one of them:
        a request with MAX_ENDS crashes gets the error."""
        for lease, (stream, holder) in list(self.leaving.items()):
            if holder is replica:
                del self.leaving[lease]
                stream.settle()
        replica.clear()
        self.line.lose(replica.number)
        for request_id, lease in self.leases.lose(replica.number):
            with self._alone(self.streams[request_id]):
                self._continue(request_id, cause, error)
            if error is None:
                replica.send(Abort(lease))

    def _continue(self, request_id: str, cause: MoveCause, error: TwofoldError | None) -> None:
        """A request has lost its replica: it waits for another one."""
        stream, entry = self.streams[request_id], self._entries[request_id]
        stream.route.retries += 1
        stream.route.lost = cause
        entry.tokens = len(stream.request.token_ids) + stream.delivered.tokens
        stream.ends += error is not None
        if error is not None and stream.ends >= MAX_ENDS:
            self.fail(stream, error)
        elif stream.suspect:
            self._suspects[request_id] = entry
        else:
            self.line.add(entry, again=True)

    def move(self, request_id: str, choice: Choice) -> None:
        """A request continues at the chosen replica; the one that has it gets an abort."""
        holder, entry = self.leases.holder(request_id), self._entries[request_id]
        assert holder is not None, "a replica has it"
        lease, number = holder
        self._replicas[number].close_request(entry.tenant)
        self._replicas[number].send(Abort(lease))
        self.leases.release(request_id)
        self.streams[request_id].route.lost = "handover"
        entry.tokens = len(entry.request.token_ids) + self.streams[request_id].delivered.tokens
        entry.choice, entry.placed_at = choice, self._clock()
        self._grant(entry, self._replicas[choice.replica])

    def fail(self, stream: RequestStream, error: TwofoldError) -> None:
        """Ends a request with an error."""
        if not stream.over:
            self._end_lease(stream.request.request_id)
            stream.break_off(error)

    def _break(self, stream: RequestStream, error: Exception) -> None:
        """Ends a request after an unexpected exception; the replica that has it gets an abort."""
        log.error("a request failed in the dispatch", exc_info=error)
        request_id = stream.request.request_id
        if request_id in self._entries:
            holder = self.leases.holder(request_id)
            self._end_lease(request_id)
            if holder is not None:
                self._replicas[holder[1]].send(Abort(holder[0]))
        what = f"The server failed with a {type(error).__name__}."
        stream.break_off(WorkerError(what, hint="Retry; the server log has the cause."))

    def fail_all(self, error: TwofoldError) -> None:
        for stream in self.streams.values():
            self.fail(stream, error)

    @contextmanager
    def _alone(self, stream: RequestStream) -> Iterator[None]:
        """An unexpected exception ends this request with an error, and nothing else."""
        try:
            yield
        except Exception as error:
            self._break(stream, error)

    # -- what replicas report ------------------------------------------------------------------------------------------

    def hear(self, replica: R, delta: OutputDelta, now: float) -> None:
        """Passes a delta on, unless its lease has ended. Raises PeerError, and passes nothing on, if it cannot be."""
        lease = delta.request_id
        request_id, holder = self.leases.leased.get(lease, (None, None))  # not ``request_of``: this runs for each token
        if request_id is not None and holder == replica.number:
            stream = self.streams[request_id]
            waited = not stream.proven
            stream.outputs.check(delta, stream.begun, self.bounds)
            if delta.request is not None or delta.error is not None:
                self._end_lease(request_id)
            try:
                stream.hear(delta, now)
            except Exception as error:  # the other requests of the step go on
                self._break(stream, error)
            first = waited and stream.proven
            if first and self.on_first is not None and not stream.over:
                self.on_first(request_id)
            if first and self._suspects:  # they may wait for it
                self.assign()
        elif (leaving := self.leaving.get(lease)) is not None and leaving[1] is replica:
            leaving[0].outputs.check(delta, leaving[0].begun, self.bounds)
            leaving[0].hear(delta, now)

    def hear_progress(self, replica: R, progress: RequestProgress) -> None:
        request_id = self.leases.request_of(progress.request_id, replica.number)
        if request_id is not None and (asker := self.streams[request_id].reader.progress) is not None:
            asker(replace(progress, request_id=request_id))

    def hear_failure(self, replica: R, lease: str, error: TwofoldError) -> None:
        """The replica refuses a request."""
        request_id = self.leases.request_of(lease, replica.number)
        if request_id is not None:
            stream = self.streams[request_id]
            if stream.begun and isinstance(error, UsageError):  # another replica took it, so its caller is not at fault
                error = WorkerError(f"A replica refused to continue the request: {error}", hint="Retry.")
            self.fail(stream, error)
            self.assign()

    def hear_gone(self, replica: R, lease: str, output: RequestOutput | None) -> None:
        """The replica has aborted a request whose reader has left."""
        leaving = self.leaving.get(lease)
        if leaving is not None and leaving[1] is replica:
            if output is not None:
                leaving[0].outputs.check_output(output, leaving[0].begun, self.bounds)
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
        left = self._entries or self.line.requests or self.line.names
        assert self.streams or not left, "a request still waits"
        assert self.streams or not any(replica.requests for replica in self._replicas.values()), "a count is wrong"

    def _pause(self, request_id: str, *, paused: bool) -> None:
        holder = self.leases.holder(request_id)
        if holder is not None:
            lease, number = holder
            self._replicas[number].send(SetPaused(lease, paused))

    def _end_lease(self, request_id: str) -> None:
        """The request needs no replica any more."""
        holder, entry = self.leases.holder(request_id), self._entries.pop(request_id)
        if holder is not None:
            self._replicas[holder[1]].close_request(entry.tenant)
        else:
            self.line.remove(request_id)
        self.line.forget(request_id)
        self.leases.end(request_id)
