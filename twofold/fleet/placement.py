"""The replicas of a model that a cluster runs and that join as nodes: their number, and why some are missing."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from itertools import count as numbers
from itertools import islice
from typing import Final, Protocol

from twofold.core.units import count
from twofold.fleet.replica import FleetReplica

CHECK_S: Final = 0.05
JOIN_S: Final = 600.0
"""Maximum seconds of the wait for a new replica, unless the cluster reports earlier why it does not run."""


class Cluster(Protocol):
    """Runs replicas elsewhere. Each has a slot, a number by which the cluster and the link of its node name it."""

    def slots(self, model: str) -> frozenset[int]:
        """The replicas that a model shall have."""

    def place(self, model: str, slots: Iterable[int]) -> None:
        """Begins to start and end replicas until a model has these."""

    def problems(self, model: str) -> Mapping[int, str]:
        """Why replicas do not run."""


class Placement:
    """The replicas of a model on a cluster; ``replicas`` are all of its fleet."""

    def __init__(self, cluster: Cluster, model: str, replicas: Mapping[int, FleetReplica]) -> None:
        self._cluster = cluster
        self._model = model
        self._replicas = replicas

    @property
    def slots(self) -> frozenset[int]:
        return self._cluster.slots(self._model)

    @property
    def _joined(self) -> set[int | None]:
        """Slots of replicas that are ready."""
        return {each.slot for each in self._replicas.values() if each.usable}

    @property
    def problem(self) -> str | None:
        """Which replicas are missing, and why; None without any."""
        missing = sorted(self.slots - self._joined)
        if not missing:
            return None
        problems = self._cluster.problems(self._model)
        why = next((problems[slot] for slot in missing if slot in problems), "still starting")
        verb = "is" if len(missing) == 1 else "are"
        return f"{len(missing)} of {count(len(self.slots), 'replica')} of {self._model} {verb} not ready: {why}."

    async def start(self, more: int, *, keep: bool) -> bool:
        """Lets the cluster run further replicas, and waits until they are ready or it says why not. Returns whether
        they are ready; those that are not are given up unless ``keep``."""
        taken = self.slots | self._joined | set(self._cluster.problems(self._model))
        new = set(islice((slot for slot in numbers() if slot not in taken), more))
        self._cluster.place(self._model, self.slots | new)
        ready = False
        try:
            ready = await self.until_joined(new)
        finally:
            if not (ready or keep):
                self.give_up(new)
        return ready

    async def until_joined(self, slots: Iterable[int | None]) -> bool:
        """Waits until replicas are ready; returns False if the cluster says why the missing ones do not run."""
        try:
            async with asyncio.timeout(JOIN_S):
                while missing := set(slots) - self._joined:
                    if missing <= set(self._cluster.problems(self._model)):
                        return False
                    await asyncio.sleep(CHECK_S)
        except TimeoutError:
            return False
        return True

    def give_up(self, slots: Iterable[int | None]) -> None:
        """Lets the cluster end replicas."""
        self._cluster.place(self._model, self.slots - set(slots))

    def give_up_missing(self, number: int) -> None:
        """Gives up so many replicas at most that are not there, the latest first."""
        self.give_up(sorted(self.slots - self._joined, reverse=True)[: max(0, number)])
