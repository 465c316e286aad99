"""Measures a fleet: ``python -m benchmarks.fleet PART …``. The last line is JSON.

    faults MODEL              processes of replicas are killed (SIGKILL) and stopped (SIGSTOP) at random under load
    machines MODEL            the same with nodes in network namespaces (root only), and cables that are pulled
    hubs MODEL                the same with two servers over the same nodes
    gaps MODEL                the pause of a stream whose replica gets a fault
    simulate                  random schedules of the hub's dispatch on a virtual clock
    drain|restart|scale MODEL replicas change while clients wait
    hop MODEL                 what a hop to a node over TLS costs
    ttft|tenants MODEL        predicted against measured TTFT; even service of tenants
    prefix MODEL              a prefix fetched from another replica against computing it
    handover MODEL            prefill and decode apart against both everywhere
    autoscale                 processor time of a decision about the number of replicas

In ``faults``, ``machines`` and ``hubs`` a server with one replica and no faults gives the reference. Every answer must
equal it: text, log-probabilities, finish reasons and usage; the exit status is 1 if one does not. Answers that were
open at a server when it was killed end with an error and are counted as ``cut``.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from benchmarks.fleet import autoscale, handover, hop, prefix, routing
from benchmarks.fleet.parts import aimed_faults, changes, faults, hub_faults, machine_faults, simulated

Found = Mapping[str, Any] | list[dict[str, Any]]


def main() -> None:
    """Runs one part and prints its figures."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.fleet", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parts = parser.add_subparsers(dest="part", required=True)
    _add_faults(parts)
    _add_measurements(parts)
    given = parser.parse_args()
    found = RUNS[given.part](given)
    print(json.dumps(found))
    if isinstance(found, Mapping) and (found.get("different") or found.get("errors")):
        raise SystemExit(1)


def _faults(given: argparse.Namespace) -> Found:
    return faults(given.model, given.replicas, given.faults, given.every, given.clients, given.seed, given.stops)


def _machines(given: argparse.Namespace) -> Found:
    inject = machine_faults if given.part == "machines" else hub_faults
    return inject(given.model, given.nodes, given.faults, given.every, given.clients, given.seed)


def _changes(given: argparse.Namespace) -> Found:
    return changes(given.part, given.model, given.tokens, given.after)


RUNS: Final[Mapping[str, Callable[[argparse.Namespace], Found]]] = {
    "faults": _faults,
    "machines": _machines,
    "hubs": _machines,
    "gaps": lambda given: aimed_faults(given.model, given.fault, given.trials),
    "simulate": lambda given: simulated(given.schedules, given.seed),
    "drain": _changes,
    "restart": _changes,
    "scale": _changes,
    "hop": lambda given: asyncio.run(hop.measure(given.model)),
    "ttft": lambda given: asyncio.run(routing.ttft(given.model, given.rate, given.requests, given.output)),
    "tenants": lambda given: asyncio.run(routing.tenants(given.model, given.seconds)),
    "prefix": lambda given: [asyncio.run(prefix.measure(given.model, each, given.prompts)) for each in given.tokens],
    "handover": lambda given: [asyncio.run(handover.measure(given.model, pool, given)) for pool in handover.POOLS],
    "autoscale": lambda given: autoscale.decisions(),  # noqa: ARG005 - it has no arguments
}


def _add_faults(parts: Any) -> None:
    """Adds the parts with faults and changes."""
    real = parts.add_parser("faults")
    real.add_argument("model", help="path of a GGUF file, or a name")
    real.add_argument("--replicas", type=int, default=3)
    real.add_argument("--faults", type=int, default=1000)
    real.add_argument("--every", type=float, default=0.4, help="mean seconds between two faults")
    real.add_argument("--stops", type=float, default=0.35, help="share of SIGSTOPs, the rest are kills")
    real.add_argument("--clients", type=int, default=6)
    real.add_argument("--seed", type=int, default=1)
    for part, most, clients in (("machines", 100, 4), ("hubs", 40, 2)):
        remote = parts.add_parser(part)
        remote.add_argument("model", help="path of a GGUF file")
        remote.add_argument("--nodes", type=int, default=2)
        remote.add_argument("--faults", type=int, default=most)
        remote.add_argument("--every", type=float, default=1.0, help="mean seconds between two faults")
        remote.add_argument("--clients", type=int, default=clients, help="number of clients of each server")
        remote.add_argument("--seed", type=int, default=1)
    aimed = parts.add_parser("gaps")
    aimed.add_argument("model", help="path of a GGUF file")
    aimed.add_argument("--fault", choices=("kill", "stop", "cable"), default="kill")
    aimed.add_argument("--trials", type=int, default=20)
    virtual = parts.add_parser("simulate")
    virtual.add_argument("--schedules", type=int, default=100_000)
    virtual.add_argument("--seed", type=int, default=0)
    for part in ("drain", "restart", "scale"):
        changed = parts.add_parser(part)
        changed.add_argument("model", help="path of a GGUF file, or a name")
        changed.add_argument("--tokens", type=int, default=400, help="of each stream that is drained")
        changed.add_argument("--after", type=float, default=1.0, help="seconds from its start to the drain")


def _add_measurements(parts: Any) -> None:
    """Adds the parts that measure a fleet without faults. Their fleets have replicas of one thread."""
    for part in ("hop", "ttft", "tenants", "prefix", "handover"):
        parser = parts.add_parser(part)
        parser.add_argument("model", type=Path, help="path of a GGUF file")
        if part == "prefix":
            parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024, 1900])
            parser.add_argument("--prompts", type=int, default=5)
        if part == "tenants":
            parser.add_argument("--seconds", type=float, default=60.0, help="of service")
        if part in ("ttft", "handover"):
            rate, requests, output = (1.0, 100, 40) if part == "ttft" else (0.6, 40, 100)
            parser.add_argument("--rate", type=float, default=rate, help="requests a second")
            parser.add_argument("--requests", type=int, default=requests)
            parser.add_argument("--output", type=int, default=output, help="tokens of each completion")
        if part == "handover":
            parser.add_argument("--tokens", type=int, default=400, help="of each prompt")
    parts.add_parser("autoscale")


if __name__ == "__main__":
    main()
