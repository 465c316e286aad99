"""A server whose replicas run on a real Ray cluster: a dead node and a dead control store change no answer."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions
from twofold.cli.serve import ServeOptions
from twofold.core.errors import ParameterError

ENGINE: Final = ("--kv-cache-memory-bytes", "8M", "--max-model-len", "1024", "--threads", "1", "--access-log", "off")
DETECTION: Final = {
    "health_check_initial_delay_ms": 500,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 4,
}
"""Ray notices a dead node within seconds instead of 15 s, so that the test is shorter."""
WAIT_S: Final = 60.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without CPUs, and two machines with two each."""
    utilities = pytest.importorskip("ray.cluster_utils", reason="Ray is not installed: pip install 'twofold[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        cluster = utilities.Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "include_dashboard": False, "_system_config": DETECTION},
        )
        for _ in range(2):
            cluster.add_node(num_cpus=2)
        yield cluster
        cluster.shutdown()


def body(number: int) -> dict[str, Any]:
    return {"model": "m", "prompt": [number + 3, 5, 7], "max_tokens": 600, "seed": number, "ignore_eos": True}


def answer(server: LiveServer, number: int) -> str:
    response = server.post("/v1/completions", body(number))
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.1)


def joined(server: LiveServer) -> int:
    """Replicas that have joined so far."""
    return server.log.read_text().count("has joined")


def kill(node: Any, kind: str) -> None:
    node.all_processes[kind][0].process.send_signal(signal.SIGKILL)


def test_a_dead_node_and_a_dead_control_store_change_no_answer(
    cluster: Any, tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path: Path
) -> None:
    model = f"m={tiny_gguf(TinyOptions(context=2048)).path}"
    (tmp_path / "calm").mkdir()
    (tmp_path / "ray").mkdir()
    with live_server(tmp_path / "calm", model, *ENGINE) as calm:
        expected = [answer(calm, number) for number in range(4)]
    fleet = ("--ray", cluster.address, "--replicas", "2", "--listen-nodes", "127.0.0.1:0")
    with live_server(tmp_path / "ray", model, *fleet, *ENGINE) as server:
        until(lambda: joined(server) == 2)
        found: dict[int, str] = {}
        asking = [threading.Thread(target=lambda n=number: found.update({n: answer(server, n)})) for number in range(4)]
        for thread in asking:
            thread.start()
        kill(cluster.worker_nodes.copy().pop(), "raylet")
        for thread in asking:
            thread.join()
        assert [found[number] for number in range(4)] == expected
        until(lambda: joined(server) == 3)  # Ray starts the lost replica on the other machine
        kill(cluster.head_node, "gcs_server")
        assert [answer(server, number) for number in range(4)] == expected
        assert server.end() == 0


def test_a_cluster_that_does_not_answer_ends_the_start(
    tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'twofold[ray]'")
    model = f"m={tiny_gguf(TinyOptions()).path}"
    fleet = ("--ray", "127.0.0.1:9", "--listen-nodes", "127.0.0.1:0")
    with pytest.raises(AssertionError, match="Ray cannot be used"), live_server(tmp_path, model, *fleet, *ENGINE):
        pass


@pytest.mark.parametrize(
    ("options", "engine", "message"),
    [
        ({}, {"threads": 2}, "requires --listen-nodes"),
        ({"listen_nodes": "127.0.0.1:0"}, {}, "requires --threads"),
        ({"listen_nodes": "127.0.0.1:0", "replicas": 0}, {"threads": 2}, "at least one"),
    ],
)
def test_options_that_do_not_go_together(
    options: dict[str, Any], engine: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: object())
    with pytest.raises(ParameterError, match=message):
        ServeOptions(ray="auto", **options).config(("tiny",), {"token_budget": "live", **engine})


def test_without_ray_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ParameterError, match="not installed"):
        ServeOptions(ray="auto", listen_nodes="127.0.0.1:0").config(("tiny",), {"token_budget": "live", "threads": 1})


def test_only_the_driver_imports_ray() -> None:
    """Starting a server is as fast as without the extra."""
    command = "import sys, twofold.server.models.registry, twofold.cli.serve; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", command], check=False).returncode == 0
