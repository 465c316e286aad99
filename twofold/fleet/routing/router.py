"""Routers: which replica a request goes to. The hub of a fleet and the simulator call the same code.

    round-robin    in turn
    least-loaded   the fewest open requests
    longest-match  the most cached tokens of the prompt, unless the replica has too many open requests
    predicted      the least predicted time to the first token

A prediction (``engine.scheduler.forecast``) takes the work of a replica, and how long steps take there by its own
step-time model. The request's own rows are those that the replica has no keys and values of. If the request's tier has
a target of TPOT, only replicas that meet it compete, as long as there is one.

Sending requests to the fullest replica that meets a target of TTFT (the load gradient of PolyServe, arXiv 2507.17769)
lost: with it 84% of Mooncake's first 1,500 requests, 12 a second, met the objective of docs/fleet.md instead of 94%.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Final, Literal, NamedTuple, Protocol

from twofold.core.errors import ParameterError, did_you_mean
from twofold.engine.scheduler.forecast import RoutePrediction, WorkAhead, predict
from twofold.engine.scheduler.step_time import StepTimeModel

Role = Literal["both", "prefill", "decode"]
"""What a replica is for. Prompts go to those that prefill; later, requests may move to those that decode
(``fleet.handover``)."""
BOUND: Final = 1.25
"""Multiple of the mean number of open requests above which a replica gets no request for its cache."""


@dataclass(frozen=True, slots=True)
class RoutedRequest:
    """What a router knows of a request.

    tokens         of its prompt
    matched        returns the cached tokens of the prompt by replica; called only by routers that use caches
    fetch          says what a replica could fetch of a prompt, given the cached tokens by replica; None: nothing
    tpot_target_s  of its tier; None: any
    """

    tokens: int
    matched: Callable[[], Sequence[int]]
    tpot_target_s: float | None = None
    fetch: Callable[[int, Sequence[int]], BlockFetch | None] | None = None


class RoutedReplica(Protocol):
    """A replica in the eyes of a router."""

    @property
    def ready(self) -> bool:
        """Whether it takes new requests: it is not lost, drained or loading."""
        ...

    @property
    def open(self) -> int:
        """Requests that were sent to it and have not ended."""
        ...

    def ahead(self) -> WorkAhead: ...


class BlockFetch(NamedTuple):
    """The first ``blocks`` blocks of a prompt come from the replica ``source``; of KV groups with windows, those that
    the row after ``goal`` blocks reads. The target lacks ``nbytes`` bytes of them, which are predicted to take so many
    seconds after ``wait_s``, when the source's step ends."""

    source: int
    blocks: int
    block_size: int
    goal: int
    nbytes: int
    seconds: float
    wait_s: float = 0.0

    @property
    def tokens(self) -> int:
        return self.blocks * self.block_size


class Choice(NamedTuple):
    """Where a request goes, and why. ``cached`` and ``prediction`` are None from routers that do not use them.
    With a ``fetch``, ``cached`` are the tokens that are cached after it."""

    replica: int
    reason: str
    cached: int | None = None
    prediction: RoutePrediction | None = None
    fetch: BlockFetch | None = None


class Router(Protocol):
    """Chooses replicas. ``watches``: whether it depends on open requests, so that ends must be known in order;
    ``predicts``: whether it depends on their work."""

    name: ClassVar[str]
    watches: ClassVar[bool]
    predicts: ClassVar[bool]

    def choose(self, request: RoutedRequest, replicas: Sequence[RoutedReplica]) -> Choice | None:
        """Returns the choice; None if no replica is ready."""
        ...


class RoundRobin:
    """Ready replicas in turn."""

    name: ClassVar[str] = "round-robin"
    watches: ClassVar[bool] = False
    predicts: ClassVar[bool] = False

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: RoutedRequest, replicas: Sequence[RoutedReplica]) -> Choice | None:  # noqa: ARG002 - protocol
        number = next((number for number in _from(self._last + 1, len(replicas)) if replicas[number].ready), None)
        if number is None:
            return None
        self._last = number
        return Choice(number, "its turn")


class LeastLoaded:
    """The replica with the fewest open requests; ties go to the next one after the last choice."""

    name: ClassVar[str] = "least-loaded"
    watches: ClassVar[bool] = True
    predicts: ClassVar[bool] = False

    def __init__(self) -> None:
        self._last = -1

    def choose(self, request: RoutedRequest, replicas: Sequence[RoutedReplica]) -> Choice | None:  # noqa: ARG002 - protocol
        able = [number for number in _from(self._last + 1, len(replicas)) if replicas[number].ready]
        if not able:
            return None
        self._last = min(able, key=lambda number: replicas[number].open)
        return Choice(self._last, f"fewest open requests: {replicas[self._last].open}")


class LongestMatch:
    """The replica with the longest cached prefix, unless it has too many open requests; ties go to the least loaded."""

    name: ClassVar[str] = "longest-match"
    watches: ClassVar[bool] = True
    predicts: ClassVar[bool] = False

    def choose(self, request: RoutedRequest, replicas: Sequence[RoutedReplica]) -> Choice | None:
        able = [number for number, replica in enumerate(replicas) if replica.ready]
        if not able:
            return None
        limit = math.ceil(BOUND * (sum(replicas[number].open for number in able) + 1) / len(able))
        matched = request.matched()
        light = (number for number in able if replicas[number].open < limit)
        number = max(light, key=lambda number: (matched[number], -replicas[number].open))
        return Choice(number, f"longest cached prefix of those with fewer than {limit} open requests", matched[number])


class Predicted:
    """The replica with the least predicted TTFT of those that meet the request's TPOT target.

    ``distort`` changes each predicted TTFT before it is compared: simulations try errors with it.
    """

    name: ClassVar[str] = "predicted"
    watches: ClassVar[bool] = True
    predicts: ClassVar[bool] = True

    def __init__(self, distort: Callable[[float], float] | None = None) -> None:
        self._distort = distort

    def choose(self, request: RoutedRequest, replicas: Sequence[RoutedReplica]) -> Choice | None:
        able = [number for number, replica in enumerate(replicas) if replica.ready]
        if not able:
            return None
        works = {number: replicas[number].ahead() for number in able}
        unknown = known_model(work.step_time for work in works.values())
        matched = request.matched()
        found = {number: predict(work, request.tokens, matched[number], unknown) for number, work in works.items()}
        fetches: dict[int, BlockFetch] = {}
        for number, work in works.items():
            fetch = None if request.fetch is None else request.fetch(number, matched)
            if fetch is None:
                continue
            sooner = _after_fetch(work, request.tokens, fetch, unknown)
            if sooner.ttft_s < found[number].ttft_s:
                fetches[number], found[number] = fetch, sooner
        seconds = {number: each.ttft_s for number, each in found.items()}
        if self._distort is not None:
            seconds = {number: self._distort(each) for number, each in seconds.items()}
        target = request.tpot_target_s
        fit = [number for number in able if target is None or found[number].tpot_s <= target]
        number = min(fit or able, key=seconds.__getitem__)
        reason = "least predicted TTFT"
        if target is not None:
            reason += " within the TPOT target" if fit else "; none meets the TPOT target"
        known_here, fetched = works[number].step_time.ready, fetches.get(number)
        cached = matched[number] if fetched is None else fetched.tokens
        return Choice(number, reason, cached, found[number] if known_here else None, fetched)


def known_model(models: Iterable[StepTimeModel]) -> StepTimeModel:
    """The first of the replicas' models that predicts; else, with the weights before the first step, any of them."""
    some = list(models)
    return next((model for model in some if model.ready), StepTimeModel.of_weights(some[0].basis))


def _after_fetch(work: WorkAhead, tokens: int, fetch: BlockFetch, unknown: StepTimeModel) -> RoutePrediction:
    """Predicts a prompt whose blocks are fetched before it waits."""
    found = predict(work, tokens, fetch.tokens, unknown)
    return found._replace(prefill_s=found.prefill_s + fetch.wait_s + fetch.seconds)


def make_router(name: str, distort: Callable[[float], float] | None = None) -> Router:
    """The router of that name. Raises ParameterError with the closest name for any other."""
    if name == Predicted.name:
        return Predicted(distort)
    makers: Mapping[str, Callable[[], Router]] = {each.name: each for each in (RoundRobin, LeastLoaded, LongestMatch)}
    if name in makers:
        return makers[name]()
    hint = did_you_mean(name, (*makers, Predicted.name))
    raise ParameterError(f"There is no router {name!r:.40}.", param="router", hint=hint)


def _from(first: int, count: int) -> Sequence[int]:
    """All numbers below ``count``, from ``first`` on and then from 0."""
    return [(first + step) % count for step in range(count)]
