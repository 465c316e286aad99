"""Metrics of replicas as they are when a page is written. So a replica that has left has no series any more, and the
series of nodes, which choose their own names, are at most as many as there are replicas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from twofold.observe.metrics.instruments import NODE, Instruments, MetricFamily, Values

LABELS: Final = ("model_name", "engine", NODE)


class ReplicaFigures(NamedTuple):
    """A replica of a model: ``node`` is the name of its machine, "" for the server's; ``requests`` are open there."""

    model: str
    number: int
    node: str
    state: str
    requests: int

    @property
    def labels(self) -> tuple[str, ...]:
        return (self.model, str(self.number), self.node)


class ReplicaMetrics:
    """``read`` returns the replicas of all models; its owner sets it."""

    def __init__(self, instruments: Instruments) -> None:
        self.read: Callable[[], Iterable[ReplicaFigures]] = tuple
        states = MetricFamily("twofold:replicas", "Replicas by their present state; always 1.", (*LABELS, "state"))
        requests = MetricFamily("twofold:replica_requests", "Open requests of a replica.", LABELS)
        instruments.source(
            states.name, lambda: Values(states, [((*each.labels, each.state), 1) for each in self.read()])
        )
        instruments.source(
            requests.name, lambda: Values(requests, [(each.labels, each.requests) for each in self.read()])
        )
