"""Prefill and decode apart: where a request continues after its first token.

Prompts go to replicas that prefill (``fleet.line``). When a prompt is computed there, its request moves to a replica
that decodes, if it is predicted to end sooner there:

    gain  = n · (t_here − t_there) − pause
    t     = seconds of a decode step with it / (1 − share of the replica's time that prompts take, lately)
    n     = tokens that it has still to generate: as many as requests of the model usually do, up to its limit
    pause = predicted TTFT of what has to be computed there again: the prompt's last block, and the tokens so far

If a gain is predicted while its prompt is computed, its blocks are transferred in parts. Each part has the blocks that
are computed when the part begins; the next part begins when it has arrived. The blocks that are missing at the first
token are transferred while the request continues where it is, so only the pause delays its tokens. If a transfer
fails, or the other replica has no room, the request stays. Transferred blocks are cached like others and may be
evicted. A move uses the same lease, resume and bits as a move after a failure (``fleet.dispatch``, ``fleet.resume``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from operator import add
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from twofold.core.params import SamplingParams
from twofold.engine.scheduler.forecast import predict
from twofold.engine.scheduler.step_time import StepShape
from twofold.fleet.dispatch import Dispatch, DispatchTarget
from twofold.fleet.relay import BlockRelay
from twofold.fleet.routing.router import BlockFetch, Choice, Role
from twofold.fleet.streams import RequestStream
from twofold.observe.served import FetchedBlocks, ServedHandover

REVIEW_S: Final = 0.25
"""Interval at which requests that stayed are looked at again: prompts may arrive behind them."""
FIRST_LENGTH: Final = 128.0
"""Tokens that a request usually generates, until some have ended."""
LENGTH_WEIGHT: Final = 0.1
MIN_GAIN: Final = 0.05
"""Least gain, as a share of the predicted seconds: step times are predicted about that well."""
MAX_TRIES: Final = 3
"""Transfers of a request before it stays where it is."""


class HandoverTarget(DispatchTarget, Protocol):
    """A replica with a role."""

    role: Role

    def prompt_share(self, now: float) -> float:
        """The share of its time that prompts take, lately."""
        ...


R = TypeVar("R", bound=HandoverTarget)


@dataclass(slots=True)
class _Candidate:
    """A request that may move away from the replica that has this lease of it.

    target   where its blocks were transferred last
    moving   whether a transfer is under way
    tries    transfers after the first token that brought nothing
    early    bytes of its blocks that were transferred before its first token
    nbytes   of all of them
    seconds  of the transfers after the first token, which was given at ``first_at``
    """

    stream: RequestStream
    lease: str
    target: int | None = None
    moving: bool = False
    tries: int = 0
    early: int = 0
    nbytes: int = 0
    seconds: float = 0.0
    first_at: float = 0.0

    def arrive(self, found: FetchedBlocks | None, now: float) -> None:
        """A transfer has ended."""
        self.moving = False
        if found is None:
            self.tries += self.stream.proven
            return
        self.nbytes += found.nbytes
        if self.stream.proven:
            self.seconds += min(found.seconds, now - self.first_at)
        else:
            self.early += found.nbytes

    def note(self, replica: int | None, gain_s: float) -> None:
        """Notes in its record that it moves to a replica, or that it stays."""
        tokens = self.stream.delivered.tokens
        self.stream.route.handover = ServedHandover(replica, tokens, gain_s, self.nbytes, self.seconds, self.early)


class _Offer(NamedTuple):
    """What moving to a replica would bring; ``fetch``: the blocks that it lacks."""

    replica: int
    gain_s: float
    cached: int
    fetch: BlockFetch | None


class Handovers(Generic[R]):
    """The requests that prefill replicas have, and where each of them would continue."""

    def __init__(
        self, requests: Dispatch[R], replicas: Mapping[int, R], relay: BlockRelay, clock: Callable[[], float]
    ) -> None:
        self._requests = requests
        self._replicas = replicas
        self._relay = relay
        self._clock = clock
        self._candidates: dict[str, _Candidate] = {}
        self._length = FIRST_LENGTH
        self._next = 0.0
        requests.on_sent, requests.on_first = self._add, self._hurry

    def _add(self, request_id: str) -> None:
        """A replica gets a request."""
        holder = self._requests.leases.holder(request_id)
        assert holder is not None, "it has a replica"
        if self._targets(holder[1]):
            self._candidates[request_id] = _Candidate(self._requests.streams[request_id], holder[0])

    def _hurry(self, request_id: str) -> None:
        """A replica has given the first token of a request."""
        candidate = self._candidates.get(request_id)
        if candidate is not None:
            candidate.first_at, self._next = self._clock(), 0.0

    def review(self) -> None:
        """Moves requests that gain by it; called after a replica has reported its work."""
        now = self._clock()
        if not self._candidates or now < self._next:
            return
        self._next = now + REVIEW_S
        for request_id, each in list(self._candidates.items()):
            holder = self._requests.leases.holder(request_id)
            if holder is None or holder[0] != each.lease:
                self._drop(request_id)
            elif not each.moving:
                self._consider(request_id, each, holder[1], now)

    def _drop(self, request_id: str) -> None:
        """A request ended, or is elsewhere."""
        each = self._candidates.pop(request_id)
        if each.stream.over and each.stream.delivered.tokens:
            tokens = each.stream.delivered.tokens / max(1, each.stream.request.completions)
            self._length += LENGTH_WEIGHT * (tokens - self._length)

    def _targets(self, source: int) -> list[R]:
        """Replicas to which requests of this one may move: one of the two must be for one phase only."""
        here = self._replicas[source].role
        if here == "decode":
            return []
        roles = ("decode", "both") if here == "prefill" else ("decode",)
        return [each for number, each in self._replicas.items() if number != source and each.role in roles]

    def _consider(self, request_id: str, candidate: _Candidate, source: int, now: float) -> None:
        stream = candidate.stream
        able = [each for each in self._targets(source) if each.usable and each.takes(stream.request.options.tenant)]
        able = [each for each in able if each.number == candidate.target] or able
        offers = [
            offer
            for each in able
            if not self._relay.busy(each.number) and (offer := self._offer(candidate, source, each, now)) is not None
        ]
        best = max(offers, key=lambda offer: offer.gain_s, default=None)
        if best is None:
            return
        least = MIN_GAIN * self._tokens_left(stream) * self._step_s(source, stream, now)
        if best.gain_s <= least or candidate.tries >= MAX_TRIES:
            candidate.note(None, best.gain_s)
        elif best.fetch is None:
            del self._candidates[request_id]
            candidate.note(best.replica, best.gain_s)
            choice = Choice(best.replica, "sooner at a replica that decodes", best.cached)
            self._requests.move(request_id, choice)
        else:
            candidate.moving, candidate.target = True, best.replica
            self._relay.prefetch(stream.request, best.fetch, best.replica, partial(self._arrive, request_id, candidate))

    def _offer(self, candidate: _Candidate, source: int, target: R, now: float) -> _Offer | None:
        """What moving to a replica would bring; None without predictions, and before the first token if there is
        nothing to transfer."""
        stream, line = candidate.stream, self._requests.line
        request = stream.request
        if not isinstance(request.params, SamplingParams) or not stream.delivered.completions:
            return None
        numbers, last = [source, target.number], len(request.token_ids) - 1
        cached = line.cached(request, numbers, usable=False)
        if not stream.proven and (candidate.early or cached[0] > cached[1]):  # with those of the step under way
            cached[0] = min(last, cached[0] + self._replicas[source].ahead(now).rows)
        fetch = self._relay.find(numbers, 1, cached, last)
        if fetch is None and not stream.proven:
            return None
        kept = line.cached(request, [target.number])[0]
        reach = kept if fetch is None else fetch.tokens if stream.proven else last - last % fetch.block_size
        here, there = self._step_s(source, stream, now), self._step_s(target.number, stream, now)
        tokens = len(request.token_ids) + stream.delivered.tokens
        pause_s = predict(target.ahead(now), tokens, reach, line.unknown(now)).ttft_s
        left = self._tokens_left(stream) - (0.0 if fetch is None else fetch.seconds / here)
        return _Offer(target.number, left * (here - there) - pause_s, reach, fetch)

    def _tokens_left(self, stream: RequestStream) -> float:
        """Tokens of each completion still to come. Lengths are taken as memoryless: what is left does not depend on
        what is there."""
        params = stream.request.params
        limit = params.max_tokens if isinstance(params, SamplingParams) else None
        made = stream.delivered.tokens / max(1, stream.request.completions)
        return self._length if limit is None else max(0.0, min(self._length, limit - made))

    def _step_s(self, number: int, stream: RequestStream, now: float) -> float:
        """Seconds of a token of the request at a replica, which has it already or would have it."""
        replica, count = self._replicas[number], stream.request.completions
        work = replica.ahead(now)
        position = len(stream.request.token_ids) + stream.delivered.tokens // max(1, count) + 1
        own = StepShape(count, count, count * position, count * position)
        here = self._requests.leases.holder(stream.request.request_id)
        has = stream.proven and here is not None and here[1] == number and work.decode.rows >= count
        shape = work.decode if has else StepShape(*map(add, work.decode, own))
        model = work.step_time if work.step_time.ready else self._requests.line.unknown(now)
        return (model.predict(shape) or 0.0) / (1.0 - replica.prompt_share(now))

    def _arrive(self, request_id: str, candidate: _Candidate, found: FetchedBlocks | None) -> None:
        """A transfer has ended: the request moves, or the next blocks follow."""
        now, holder = self._clock(), self._requests.leases.holder(request_id)
        candidate.arrive(found, now)
        if found is not None and holder is not None and holder[0] == candidate.lease:
            self._consider(request_id, candidate, holder[1], now)
