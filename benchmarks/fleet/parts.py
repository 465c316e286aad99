"""Runs of a fleet under faults and changes: servers, nodes and clients of each, and the figures of what clients saw."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from benchmarks.fleet.clients import Outcome, Question, ask, comparable, figures, questions, under_faults
from benchmarks.fleet.faults import HubFaults, MachineFaults, WorkerFaults
from benchmarks.fleet.gaps import expected, gaps, kill, stop
from benchmarks.fleet.hubs import Hub, at_once, shared
from benchmarks.fleet.lifecycle import body_of, drain_under_streams, restart_under_load, scale_up
from benchmarks.fleet.machines import NODE_PORT, Machine, machines, plug, pull
from benchmarks.fleet.simulation import simulate
from benchmarks.http.processes import Recipe, Serving, serving

ENGINE: Final = ("--kv-cache-memory-bytes", "256M", "--max-model-len", "1024", "--threads", "1", "--log-level", "error")
STREAMS: Final = 32


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines with nodes: ``recipe`` starts the hub, ``start`` a node again, whose process is in ``started``."""

    hub: Machine
    others: list[Machine]
    recipe: Recipe
    started: dict[int, subprocess.Popen[bytes]]
    start: Callable[[int], None]


def reference(model: str, asked: Sequence[Question]) -> dict[str, str]:
    """The answers of a server without faults, by question."""
    with fleet(model, 1) as calm:
        return {key: comparable(ask(calm.url, each)) for key, each in {each.key: each for each in asked}.items()}


@contextmanager
def fleet(model: str, replicas: int) -> Iterator[Serving]:
    """A server with replicas of a model."""
    command = (sys.executable, "-m", "twofold", "serve", f"m={model}", "--port", "{port}", "--data-folder", "{folder}")
    with serving(Recipe("twofold", (*command, "--replicas", str(replicas), *ENGINE), "/ready")) as server:
        yield server


def faults(
    model: str, replicas: int, most: int, every_s: float, clients: int, seed: int, stops: float
) -> dict[str, Any]:
    """Runs the load under faults; returns the figures."""
    asked = questions("m", seed, 64)
    whole = reference(model, asked)
    with fleet(model, replicas) as server:
        injector = WorkerFaults(server=server.pid, seed=seed, most=most, every_s=every_s, stops=stops)
        injecting = threading.Thread(target=injector.run)
        injecting.start()
        began = time.monotonic()
        outcome = under_faults(server.url, asked, lambda each: whole[each.key], injector.stop, clients)
        injecting.join()
    counts = {"kills": injector.counts["kill"], "stops": injector.counts["stop"]}
    return {"replicas": replicas, "seconds": round(time.monotonic() - began, 1), **counts, **figures(outcome)}


@contextmanager
def joined(model: str, nodes: int) -> Iterator[Machines]:
    """Nodes on machines of their own, ready to join a hub."""
    twofold = (sys.executable, "-m", "twofold")
    with tempfile.TemporaryDirectory() as folder, machines(nodes) as (hub, others):
        certificates = ("--fleet-certs", f"{folder}/certificates")
        subprocess.run([*twofold, "fleet", "init", certificates[1]], check=True)
        started: dict[int, subprocess.Popen[bytes]] = {}

        def start(number: int) -> None:
            if number in started:
                started[number].wait()
            join = ("--join", f"{others[number].address}:{NODE_PORT}", "--name", f"node{number}", *certificates)
            command = [*others[number].prefix, *twofold, "node", f"m={model}", *join, "--threads", "1"]
            started[number] = subprocess.Popen(command, stderr=subprocess.DEVNULL)

        serve = (*twofold, "serve", f"m={model}", "--port", "{port}", "--data-folder", "{folder}", *ENGINE)
        listen = ("--replicas", "0", "--listen-nodes", f"0.0.0.0:{NODE_PORT}", *certificates)
        for number in range(nodes):
            start(number)
        try:
            yield Machines(hub, others, Recipe("twofold", (*serve, *listen), "/ready"), started, start)
        finally:
            for process in started.values():
                process.terminate()
                process.wait()


def machine_faults(model: str, nodes: int, most: int, every_s: float, clients: int, seed: int) -> dict[str, Any]:
    """Runs the load on a hub that computes nothing, with nodes on other machines, under faults; returns the figures."""
    asked = questions("m", seed, 64)
    whole = reference(model, asked)
    with joined(model, nodes) as found:

        def load() -> dict[str, Any]:
            with serving(found.recipe) as server:
                injector = MachineFaults(
                    hub=found.hub,
                    machines=found.others,
                    pids=lambda number: found.started[number].pid,
                    restart=found.start,
                    seed=seed,
                    most=most,
                    every_s=every_s,
                    lasts_s=(0.5, 4.0),
                )
                injecting = threading.Thread(target=injector.run)
                injecting.start()
                began = time.monotonic()
                outcome = under_faults(server.url, asked, lambda each: whole[each.key], injector.stop, clients)
                injecting.join()
                seconds = round(time.monotonic() - began, 1)
            return {"nodes": nodes, "seconds": seconds, "faults": dict(injector.counts), **figures(outcome)}

        return found.hub.run(load)


def aimed_faults(model: str, fault: str, trials: int) -> dict[str, Any]:
    """Lets the replica of each of several streams fail; returns the figures of ``benchmarks.fleet.gaps``."""
    with fleet(model, 1) as calm:
        texts = expected(calm.url, trials)
    if fault != "cable":
        with fleet(model, 2) as server:
            return {"fault": fault, **gaps(server.url, texts, {"kill": kill, "stop": stop}[fault])}
    with joined(model, 2) as found:

        def unplug(replica: Mapping[str, Any]) -> Callable[[], None]:
            node = found.others[int(replica["node"].removeprefix("node"))]
            pull(found.hub, node)
            return partial(plug, found.hub, node)

        def load() -> dict[str, Any]:
            with serving(found.recipe) as server:
                return gaps(server.url, texts, unplug)

        return {"fault": fault, **found.hub.run(load)}


def hub_faults(model: str, nodes: int, most: int, every_s: float, clients: int, seed: int) -> dict[str, Any]:
    """Runs the load on two servers that share nodes, under faults; returns the figures of both together."""
    asked = questions("m", seed, 64)
    whole = reference(model, asked)
    twofold = (sys.executable, "-m", "twofold")
    outcomes: list[Outcome] = []
    serve, node = (*twofold, "serve", f"m={model}", *ENGINE), (*twofold, "node", f"m={model}", "--threads", "1")
    with shared(serve, node, nodes) as (hubs, pids):
        injector = HubFaults(hubs=hubs, nodes=pids, seed=seed, most=most, every_s=every_s)

        def load(hub: Hub) -> None:
            stop, excuses = injector.stop, hub.excuses
            outcomes.append(under_faults(hub.url, asked, lambda each: whole[each.key], stop, clients, excuses))

        began = time.monotonic()
        at_once([injector.run, *(partial(load, hub) for hub in hubs)])
        seconds = round(time.monotonic() - began, 1)
    both = Outcome()
    for each in outcomes:
        both.answers += each.answers
        both.cut += each.cut
        both.different += each.different
        both.errors += each.errors
        both.gaps_s += each.gaps_s
    counts = {"nodes": nodes, "seconds": seconds, "faults": dict(injector.counts), "most_workers": injector.workers}
    return {**counts, "cut": both.cut, **figures(both)}


def changes(part: str, model: str, tokens: int, begin_s: float) -> dict[str, Any]:
    """Drains, restarts or scales replicas; returns the figures."""

    def answer(url: str, body: dict[str, Any]) -> str:
        return comparable(ask(url, Question("/v1/completions", body, stream=True)))

    if part == "scale":
        with fleet(model, 1) as server:
            return scale_up(server.url, lambda body: answer(server.url, body))
    if part == "drain":
        with fleet(model, 1) as calm, ThreadPoolExecutor(STREAMS) as pool:
            bodies = [body_of(number, tokens) for number in range(STREAMS)]
            expected = list(pool.map(lambda body: answer(calm.url, body), bodies))
        with fleet(model, 2) as server:
            return drain_under_streams(server.url, expected, tokens, lambda body: answer(server.url, body), begin_s)
    asked, stop = questions("m", 1, 24), threading.Event()
    whole = reference(model, asked)
    with fleet(model, 4) as server:
        seconds, outcome = restart_under_load(
            server.url, stop, lambda: under_faults(server.url, asked, lambda each: whole[each.key], stop, 6)
        )
    return {"replicas": 4, "restart_s": round(seconds, 1), **figures(outcome)}


def simulated(schedules: int, first: int) -> dict[str, int]:
    """Runs schedules, from this seed on; returns the sums of their counts."""
    counts: Counter[str] = Counter()
    for seed in range(first, first + schedules):
        counts.update(simulate(seed))
    return {"schedules": schedules, **counts}
