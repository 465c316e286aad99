"""The three commands that make a fleet of several machines, with network namespaces as machines, and pulled cables."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from benchmarks.fleet.clients import ask, comparable, questions, under_faults
from benchmarks.fleet.machines import NODE_PORT, Machine, machines, plug, pull, reason_without_namespaces
from tests.fleet.nodes import LiveNode, live_node, until
from tests.server.live import TWOFOLD, LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions
from twofold.cli.main import main

ENGINE = ("--kv-cache-memory-bytes", "8M", "--max-model-len", "1024", "--threads", "1")
PULLS = 2


def test_a_pulled_cable_changes_no_token(tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path: Path) -> None:
    """Each node's cable is pulled in turn while clients stream, until its replica counts as silent."""
    reason = reason_without_namespaces()
    if reason is not None:
        pytest.skip(reason)
    model = f"m={tiny_gguf(TinyOptions(context=2048)).path}"
    certificates, for_nodes = tmp_path / "certificates", tmp_path / "node"
    assert main(["fleet", "init", str(certificates)]) == 0
    for_nodes.mkdir()
    for name in ("ca.pem", "node.pem"):
        shutil.copy(certificates / name, for_nodes)
    listen = ("--replicas", "0", "--listen-nodes", f"0.0.0.0:{NODE_PORT}", "--fleet-certs", str(certificates))
    with machines(2) as (hub, others):
        first, second = (_node(tmp_path, machine, model, for_nodes) for machine in others)
        command = (*hub.prefix, *TWOFOLD)
        (tmp_path / "hub").mkdir()
        with (
            first as one,
            second as two,
            live_server(tmp_path / "hub", model, *listen, *ENGINE, twofold=command) as live,
        ):
            for node in (one, two):
                node.wait_for("Ready")
            hub.run(lambda: _stream(live, hub, others))
            assert one.log.read_text().count("Ready") == two.log.read_text().count("Ready") == 1, "no process restarted"


def _node(folder: Path, machine: Machine, model: str, certificates: Path) -> AbstractContextManager[LiveNode]:
    join = ("--join", f"{machine.address}:{NODE_PORT}", "--fleet-certs", str(certificates), "--threads", "1")
    return live_node(folder / f"{machine.name}.log", model, *join, prefix=machine.prefix)


def _stream(live: LiveServer, hub: Machine, others: list[Machine]) -> None:
    """On the hub's machine: the answers under faults must equal those before."""
    asked = questions("m", 3, 8)
    whole = {each.key: comparable(ask(live.url, each)) for each in asked}
    stop = threading.Event()

    def pull_cables() -> None:
        try:
            for number in range(PULLS):
                silent = live.log.read_text().count("does not answer")
                pull(hub, others[number % 2])
                until(lambda seen=silent: live.log.read_text().count("does not answer") > seen, live.log)  # type: ignore[misc]
                plug(hub, others[number % 2])
                stop.wait(1.0)
        finally:
            stop.set()

    pulling = threading.Thread(target=pull_cables)
    pulling.start()
    outcome = under_faults(live.url, asked, lambda each: whole[each.key], stop, 4)
    pulling.join()
    assert outcome.errors == []
    assert outcome.different == []
    assert outcome.answers >= 4
    assert live.log.read_text().count("does not answer") >= PULLS
