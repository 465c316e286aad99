"""A real server under load whose worker processes are killed and stopped: every answer equals an undisturbed one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from benchmarks.fleet.clients import ask, comparable, questions, under_faults
from benchmarks.fleet.faults import WorkerFaults
from tests.server.live import live_server
from tests.support.tiny import TinyModel, TinyOptions

FAULTS = 24
EVERY_S = 0.4
ENGINE = ("--kv-cache-memory-bytes", "8M", "--max-model-len", "1024", "--threads", "1", "--log-level", "error")


def test_clients_see_no_fault(tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path: Path) -> None:
    model = f"m={tiny_gguf(TinyOptions(context=2048)).path}"
    asked = questions("m", 3, 24)
    (tmp_path / "calm").mkdir()
    (tmp_path / "fleet").mkdir()
    with live_server(tmp_path / "calm", model, *ENGINE) as calm:
        whole = {each.key: comparable(ask(calm.url, each)) for each in asked}
    with live_server(tmp_path / "fleet", model, "--replicas", "3", *ENGINE) as live:
        injector = WorkerFaults(server=live.process.pid, seed=5, most=FAULTS, every_s=EVERY_S, lasts_s=(0.1, 2.5))
        injecting = threading.Thread(target=injector.run)
        injecting.start()
        outcome = under_faults(live.url, asked, lambda each: whole[each.key], injector.stop, 4)
        injecting.join()
    assert injector.counts.total() == FAULTS
    assert injector.counts["kill"] > 5
    assert injector.counts["stop"] > 3
    assert outcome.errors == []
    assert outcome.different == []
    assert outcome.answers >= 4  # each client waits for its last answer
