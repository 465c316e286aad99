"""The commands that serve a plan, where Twofold itself can.

They start one replica on each machine, without ``--replicas``: a CPU with all its cores is one device of a plan, and a
replica takes whole devices. Several replicas on it would each read the weights for their own rows; one engine with all
threads reads them once for all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from twofold.core.kv_layout import KV_FORMATS
from twofold.planner.plan.plan import CapacityPlan, Configuration

PORT: Final = 7000
"""Of nodes in the commands."""


def obstacle(configuration: Configuration) -> str | None:
    """Why Twofold cannot serve a configuration; None if it can."""
    if configuration.machine.kind != "cpu":
        return f"it computes on CPUs, not on {configuration.machine.name}"
    if configuration.tp > 1:
        return "it has no tensor parallelism"
    if not configuration.stored:
        return f"it does not convert weights to {configuration.weights}"
    if configuration.setup.kv not in KV_FORMATS.values():
        return f"it has no {configuration.setup.kv.name} KV cache"
    return None


def fleet_commands(plan: CapacityPlan) -> Sequence[str]:
    """What to run on the first machine, which is also the server, and on the others: one replica takes a machine. Empty
    if Twofold cannot serve the plan."""
    configuration = plan.configuration
    if obstacle(configuration) is not None:
        return []
    kv = next(name for name, each in KV_FORMATS.items() if each == configuration.setup.kv)
    settings = f"--max-num-seqs {plan.batch_limit} --max-num-batched-tokens {configuration.chunk} --kv-cache-dtype {kv}"
    if configuration.speculation and configuration.speculation.draft:
        settings += """ --speculative-config '{"model": "DRAFT"}'"""
    number = plan.count
    if number.replicas == 1:
        return [f"twofold serve MODEL {settings}"]
    own = "" if number.both else " --prefill-replicas 1"
    join = f"twofold node MODEL --join SERVER:{PORT} --fleet-certs certs"
    nodes = {"": number.both - 1, " --role prefill": number.prefill - 1, " --role decode": number.decode}
    return [
        "twofold fleet init certs",
        f"twofold serve MODEL {settings}{own} --listen-nodes 0.0.0.0:{PORT} --fleet-certs certs",
        *(f"{join}{role}  # on {more} more" for role, more in nodes.items() if more > 0),
    ]
