"""How the replicas of a model change while it serves: they are drained, replaced, started and ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, Final

from twofold.core.errors import NotFoundError, ParameterError, TwofoldError, WorkerError
from twofold.core.tasks import start_task
from twofold.fleet.dispatch import Dispatch
from twofold.fleet.joining import check_number
from twofold.fleet.placement import Placement
from twofold.fleet.relay import BlockRelay
from twofold.fleet.replica import FleetReplica
from twofold.fleet.routing.router import Role

log = logging.getLogger("twofold.serve")
LEAVE_CHECK_S: Final = 0.02


def unavailable(name: str, error: TwofoldError | None) -> TwofoldError:
    """The error of requests for a model that failed with an ``error``, or was unloaded."""
    reason = "It was unloaded." if error is None else str(error)
    return WorkerError(f"The model {name} is not available. {reason}", hint="Retry later.")


class Lifecycle:
    """The changes of the ``replicas`` of a model, which are those of its fleet; one change at a time.

    make     makes a replica with a number, which is then started here
    forget   is called with each replica that has ended
    changed  is set whenever a replica becomes ready or ends
    """

    def __init__(
        self,
        name: str,
        options: Mapping[str, Any],
        replicas: dict[int, FleetReplica],
        requests: Dispatch[FleetReplica],
        relay: BlockRelay,
        make: Callable[[int, Role], FleetReplica],
        forget: Callable[[FleetReplica], None],
        placement: Placement | None,
    ) -> None:
        self.changed = asyncio.Event()
        self._name, self._options = name, options
        self._replicas, self._requests, self._relay = replicas, requests, relay
        self._make, self._forget = make, forget
        self._placement = placement
        self._changing = asyncio.Lock()
        self._closed = False
        self._leaves: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Ends waiting for the requests of nodes that leave. No replica is started afterwards."""
        self._closed = True
        for leave in self._leaves:
            leave.cancel()
        await asyncio.gather(*self._leaves, return_exceptions=True)

    @property
    def own(self) -> list[FleetReplica]:
        """The replicas that the server starts, on this machine or on its cluster, by number."""
        slots = () if self._placement is None else self._placement.slots
        return [each for _, each in sorted(self._replicas.items()) if each.node is None or each.slot in slots]

    @property
    def size(self) -> int:
        """The number of such replicas, with those that wait for room on a cluster."""
        return len(self.own) if self._placement is None else len(self._placement.slots)

    @property
    def problem(self) -> str | None:
        """Which replicas wait for room on a cluster, and why; None without any."""
        return None if self._placement is None else self._placement.problem

    async def drain(self, number: int) -> None:
        """Moves the requests of a replica to the others, and ends its process; a node leaves.

        Raises NotFoundError, and ParameterError if no other replica is ready.
        """
        async with self._changing:
            await self._drain(number)

    async def restart(self, *, room: bool = True) -> bool:
        """Replaces the processes of the server's replicas, one after the other, and moves their requests.

        With ``room`` for one more, also on the cluster, each new replica is ready before the old one is drained.
        Otherwise the old process ends first, and a single replica's requests wait. Returns whether there was room.
        Raises ParameterError if the server starts none, and the error of a replica that fails; the later ones are not
        replaced then.
        """
        async with self._changing:
            if not self.size:
                raise ParameterError(
                    f"The server starts no replica of {self._name}: all are nodes that join by themselves.",
                    param="model",
                    hint="`twofold fleet drain` makes a node leave.",
                )
            room = room and self._options.get("kv_store") is None
            for replica in self._present(self.own):
                room = room and await self._start([replica.role], keep=False)
                await (self._drain(replica.number) if room else self._replace(replica))
            log.info("the replicas of the model %s were replaced%s", self._name, "" if room else " in place")
            return room

    async def scale(self, replicas: int) -> None:
        """Starts replicas, on this machine or on the cluster, or drains them, those with the highest numbers first.

        Raises ParameterError, and the error of a replica that cannot be loaded here: the new ones are closed then. The
        cluster may start replicas later; ``problem`` says so.
        """
        check_number(replicas, self._options, [each.role for each in self.own])
        async with self._changing:
            if self._placement is not None:
                self._placement.give_up_missing(self.size - replicas)
            for replica in self._present(self.own[::-1][: max(0, self.size - replicas)]):
                await self._drain(replica.number)
            await self._start(["both"] * (replicas - self.size))

    def _present(self, replicas: Sequence[FleetReplica]) -> Iterator[FleetReplica]:
        """Those of the replicas that are still there when it is their turn."""
        return (each for each in replicas if self._replicas.get(each.number) is each)

    async def _start(self, roles: Sequence[Role], *, keep: bool = True) -> bool:
        """Starts a replica for each role and waits until they are ready. Raises the error of one that cannot be loaded:
        all are closed then. Returns False if the cluster has no room; with ``keep`` it starts them later."""
        if self._placement is not None:
            return await self._placement.start(len(roles), keep=keep)
        new = [self._add(role) for role in roles]
        try:
            await self._until_loaded(new)
        except BaseException:
            for replica in new:
                await self._remove(replica)
            raise
        return True

    async def _replace(self, replica: FleetReplica) -> None:
        """Ends the process of a replica, and waits for the one that is started instead."""
        if replica.state in ("ready", "silent"):
            self._empty(replica)
            await replica.replace()
        if replica.node is None:
            await self._until_loaded([replica])
        elif self._placement is not None and not await self._placement.until_joined([replica.slot]):
            why = self._placement.problem or f"A replica of {self._name} is not ready."
            raise WorkerError(why, hint="The other replicas were not replaced. Retry when it is ready.")

    def _add(self, role: Role) -> FleetReplica:
        if self._closed:
            raise unavailable(self._name, None)
        number = next(number for number in count() if number not in self._replicas)
        replica = self._replicas[number] = self._make(number, role)
        replica.start()
        return replica

    async def _drain(self, number: int) -> None:
        replica = self._replicas.get(number)
        if replica is None:
            known = ", ".join(map(str, sorted(self._replicas)))
            raise NotFoundError(f"{self._name} has no replica {number}.", hint=f"Its replicas: {known}.")
        if not any(each.usable for each in self._replicas.values() if each is not replica):
            raise ParameterError(
                f"Replica {number} is the only one of {self._name} that is ready.",
                param="replica",
                hint="`twofold fleet restart` replaces its process; `twofold unload` ends it.",
            )
        self._empty(replica)
        if replica.node is None:
            await self._remove(replica)
        else:
            if self._placement is not None:
                self._placement.give_up([replica.slot])
            await replica.leave()

    def begin_leave(self, replica: FleetReplica) -> None:
        """A node wants to end."""
        if not replica.draining:
            replica.draining = True
            task = start_task(self._let_leave(replica), f"leave {replica.number} of {self._name}")
            self._leaves.add(task)
            task.add_done_callback(self._leaves.discard)

    async def _let_leave(self, replica: FleetReplica) -> None:
        """Ends a node's connection when others have its requests. While no other replica is ready, it keeps them."""
        self._requests.line.lose(replica.number)
        self._requests.assign()
        while replica.requests and not any(each.usable for each in self._replicas.values()):
            await asyncio.sleep(LEAVE_CHECK_S)
        self._empty(replica)
        await replica.leave()

    def _empty(self, replica: FleetReplica) -> None:
        """Moves the requests of a replica to others."""
        log.info("replica %d of the model %s is drained", replica.number, self._name)
        replica.draining = True
        self._relay.lose(replica.number)
        self._requests.lose(replica, "drained")
        self._requests.assign()

    async def _remove(self, replica: FleetReplica) -> None:
        await replica.close()
        self._replicas.pop(replica.number, None)
        self._forget(replica)

    async def _until_loaded(self, replicas: Sequence[FleetReplica]) -> None:
        """Waits until replicas are ready. Raises the error of one that is not."""
        while any(each.state == "loading" or each.draining for each in replicas):
            self.changed.clear()
            await self.changed.wait()
        for each in replicas:
            if each.state in ("failed", "closed"):
                raise each.error or unavailable(self._name, None)
