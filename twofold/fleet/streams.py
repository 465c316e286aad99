"""The stream of a request from the replicas that work on it, one after the other, to its reader."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from twofold.core.forecast import RequestProgress
from twofold.core.request import DeliveredCompletion, EngineRequest
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.scheduler.queue import COMPLETION_WEIGHT, PROMPT_WEIGHT, TenantAccount
from twofold.engine.stream import OutputStream
from twofold.fleet.checks import OutputCheck
from twofold.fleet.resume import DeliveredRequest
from twofold.fleet.routing.router import Choice
from twofold.observe.served import FetchedBlocks, MoveCause, ServedHandover, ServedMove, ServedRequest, ServedRoute

MAX_ENDS: Final = 3
"""Processes that may crash in a row with a request that gave no new token: then it is taken as the cause."""
MAX_UNREAD: Final = 1 << 20
"""Maximum bytes of a stream that its reader has not taken; a stream with more is cut."""


@dataclass(slots=True)
class RequestRoute:
    """A request's way through a model's replicas.

    retries   how often it went on elsewhere, because a replica ended or stopped answering
    choice    where it went first, and why, ``placed_s`` seconds after its arrival; None while no replica was there
    fetched   what it fetched from another replica
    lost      why it left the last replica, until it continues at another one
    moves     where it continued
    handover  how it moved, or why it did not, if a replica is for decode
    """

    retries: int = 0
    choice: Choice | None = None
    placed_s: float = 0.0
    fetched: FetchedBlocks | None = None
    lost: MoveCause | None = None
    moves: list[ServedMove] = field(default_factory=list)
    handover: ServedHandover | None = None

    def served(self, output: RequestOutput | None) -> ServedRoute:
        """Where it went, and the error of the prediction if it has an output."""
        choice = self.choice
        assert choice is not None, "it waits"
        predicted_s = None if choice.prediction is None else self.placed_s + choice.prediction.ttft_s
        took_s = None if output is None or self.retries else output.metrics.ttft_s
        error = (predicted_s - took_s) / took_s if predicted_s is not None and took_s else None
        more = self.fetched, tuple(self.moves), self.handover
        return ServedRoute(choice.replica, choice.reason, choice.cached, predicted_s, error, *more)


@dataclass(frozen=True, slots=True)
class StreamReader:
    """What the reader of a stream takes otherwise than as its deltas.

    direct    takes a delta at once and returns True, or returns False. It is called while the reader waits for a delta,
              and saves waking it; never with the last delta, or with one that has an error
    progress  is called with how far the request is, until its first token, if it asks for that
    record    the record of the request, for observers
    """

    direct: Callable[[OutputDelta], bool] | None = None
    progress: Callable[[RequestProgress], None] | None = None
    record: ServedRequest | None = None


class RequestStream(OutputStream):
    """The stream of ``request``: its deltas, of which the last one has its whole output. ``aclose`` aborts it; then its
    output so far arrives as ``partial_output``.

    route      its way through the replicas
    delivered  what was delivered to its reader, or will be as soon as it reads
    outputs    what replicas may send of it
    begun   the part of it that the last replica had when it began
    ends    replicas that crashed with the request since its last token
    proven  whether its present replica has given a token of it
    account its tenant's, which counts its prompt once and each token that is delivered
    """

    def __init__(
        self,
        request: EngineRequest,
        pause: Callable[[bool], None],
        close: Callable[[RequestStream, bool], None],
        reader: StreamReader | None = None,
    ) -> None:
        """``pause`` is that of ``OutputStream``; ``close`` is called once, when the reader has the whole output (True),
        or leaves."""
        super().__init__(pause, MAX_UNREAD)
        self.request = request
        self.reader = reader or StreamReader()
        self.route = RequestRoute()
        self.delivered = DeliveredRequest(request)
        self.outputs = OutputCheck(request)
        self._note = self.delivered.noted.append if self.delivered.completions else None
        self.begun: tuple[DeliveredCompletion, ...] = ()
        self.ends = 0
        self.proven = False
        self.account = TenantAccount()
        self._charged = 0
        self._close: Callable[[RequestStream, bool], None] | None = close
        self._left: asyncio.Future[RequestOutput | None] | None = None

    def __aiter__(self) -> RequestStream:
        return self

    async def __anext__(self) -> OutputDelta:
        """The next delta. Raises the TwofoldError that ended the request early."""
        if self._close is None:
            raise StopAsyncIteration
        try:
            delta = await self.take()
        except BaseException:
            self._end(whole=False)
            raise
        if delta.request is not None:
            self._end(whole=True)
        return delta

    async def aclose(self) -> None:
        """The reader takes no more. Further calls do nothing."""
        self._end(whole=False)

    def _end(self, *, whole: bool) -> None:
        close, self._close = self._close, None
        if close is not None:
            close(self, whole)

    @property
    def suspect(self) -> bool:
        """Whether the next crash of its replica would end it."""
        return self.ends == MAX_ENDS - 1

    @property
    def paused(self) -> bool:
        """Whether its reader does not keep up."""
        return self._paused

    def place(self, choice: Choice, placed_at: float, account: TenantAccount) -> None:
        """It goes to the chosen replica, which will serve it on this account."""
        self.account, route = account, self.route
        if route.choice is None:
            route.choice, route.placed_s = choice, placed_at - self.request.arrived
            account.service += PROMPT_WEIGHT * (len(self.request.token_ids) - (choice.cached or 0))
        elif route.lost is not None:
            route.moves.append(ServedMove(choice.replica, route.lost))
            route.lost = None

    def next_try(self, lease: str) -> EngineRequest:
        """The request for the next replica, under the id of its lease."""
        request = self.delivered.rest(lease) if self.began else replace(self.request, request_id=lease)
        self.begun = request.delivered
        self.outputs.restart()
        self.proven = False
        return request

    def hear(self, delta: OutputDelta, now: float) -> None:
        """Takes a delta of the replica that has its lease, at this time on the hub's clock."""
        if delta.scored is None or delta.token_ids:
            self.ends, self.proven = 0, True
        if delta.request is None and delta.error is None:
            self._charged += len(delta.token_ids)
            self.account.service += COMPLETION_WEIGHT * len(delta.token_ids)
            if self._note is not None:
                self._note((delta, now))
            if not self.request.stream:
                self.began = True
                return
        elif delta.request is not None:
            whole = self.delivered.whole(delta.request, self.begun)
            self.account.service += COMPLETION_WEIGHT * (whole.metrics.output_tokens - self._charged)
            delta = replace(delta, request=whole)
        if delta.request_id != self.request.request_id:
            delta = replace(delta, request_id=self.request.request_id)
        self.push(delta)

    def push(self, delta: OutputDelta) -> None:
        """Adds a delta, or passes it on at once; after ``leave`` keeps only the whole output."""
        if self._left is None:
            direct, waiter = self.reader.direct, self._waiter
            waits = waiter is not None and not waiter.done() and delta.request is None and delta.error is None
            try:
                if direct is None or not waits or not direct(delta):
                    super().push(delta)
            except Exception as error:  # the other streams of the step go on
                self._error = error
                self._wake()
            self.began = True
        elif delta.request is not None:
            self.over, self.whole = True, delta.request

    def leave(self) -> None:
        """The reader has left; ``settle`` must be called later."""
        self._deltas.clear()
        self._left = asyncio.get_running_loop().create_future()

    def settle(self, output: RequestOutput | None = None) -> None:
        """Takes the request's output so far: ``output`` of a replica, or else that of the last delta."""
        assert self._left is not None, "settle must follow leave"
        self._left.set_result(self.whole if output is None else self.delivered.whole(output, self.begun))

    async def partial_output(self, limit_s: float) -> RequestOutput | None:
        """The output so far of an aborted request, None if that is unknown; None for any other request, and if it does
        not arrive in time."""
        if self._left is None:
            return None
        done, _ = await asyncio.wait({self._left}, timeout=limit_s)
        return self._left.result() if done else None
