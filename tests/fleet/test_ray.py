"""A server whose replicas run on a real Ray cluster: a dead node and a dead control store change no answer."""

from __future__ import annotations

import importlib
import json
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

ENGINE: Final = ("--kv-cache-memory-bytes", "8M", "--max-model-len", "1024", "--access-log", "off", "--threads")
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


def fleet_of(server: LiveServer) -> dict[str, Any]:
    """What `twofold fleet status --json` shows of the model."""
    found: dict[str, Any] = server.get("/v1/twofold/server").json()["models"][0]["fleet"]
    return found


def ready(server: LiveServer) -> list[str]:
    """The nodes that are ready."""
    return sorted(each["node"] for each in fleet_of(server)["replicas"] if each["state"] == "ready")


def change(server: LiveServer, path: str, body: dict[str, int] | None = None) -> dict[str, Any]:
    """Scales, drains or restarts the model's replicas."""
    with server.client() as client:
        response = client.post(f"/v1/twofold/models/m/replicas{path}", json=body, timeout=WAIT_S)
    assert response.status_code == 200, response.text
    found: dict[str, Any] = response.json()
    return found


def while_asking(server: LiveServer, change: Callable[[], object]) -> dict[int, str]:
    """The answers to requests that run while something changes."""
    found: dict[int, str] = {}
    asking = [threading.Thread(target=lambda n=number: found.update({n: answer(server, n)})) for number in range(4)]
    for thread in asking:
        thread.start()
    change()
    for thread in asking:
        thread.join()
    return found


def asked_for(cluster: Any) -> list[dict[str, float]]:
    """The machines that Ray's autoscaler is asked for."""
    ray: Any = importlib.import_module("ray._raylet")
    found = ray.GcsClient(address=cluster.address).internal_kv_get(b"autoscaler_resource_request")
    bundles: list[dict[str, float]] = json.loads(found)
    return bundles


def kill(node: Any, kind: str) -> None:
    node.all_processes[kind][0].process.send_signal(signal.SIGKILL)


@pytest.fixture(scope="module")
def model(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> str:
    return f"m={tiny_gguf(TinyOptions(context=2048)).path}"


@pytest.fixture(scope="module")
def expected(model: str, tmp_path_factory: pytest.TempPathFactory) -> dict[int, str]:
    """The answers of a server without Ray."""
    with live_server(tmp_path_factory.mktemp("calm"), model, *ENGINE, "1") as calm:
        return {number: answer(calm, number) for number in range(4)}


def test_scaling_changes_no_answer_and_waits_for_a_machine(
    cluster: Any, model: str, expected: dict[int, str], tmp_path: Path
) -> None:
    """Each replica takes a whole machine, of which there are two."""
    fleet = ("--ray", cluster.address, "--listen-nodes", "127.0.0.1:0", *ENGINE, "2")
    with live_server(tmp_path, model, *fleet) as server:
        assert while_asking(server, lambda: change(server, "", {"replicas": 2})) == expected
        until(lambda: fleet_of(server)["problem"] is None)
        assert ready(server) == ["ray:0", "ray:1"]
        assert asked_for(cluster) == [{"CPU": 2}] * 2
        assert while_asking(server, lambda: change(server, "", {"replicas": 1})) == expected
        assert ready(server) == ["ray:0"]
        assert asked_for(cluster) == [{"CPU": 2}]
        assert not change(server, "/restart")["in_place"]
        assert ready(server) == ["ray:1"]
        waits = (
            "1 of 3 replicas of m is not ready: no machine of the Ray cluster has 2 free CPUs; Ray was asked for one."
        )
        assert change(server, "", {"replicas": 3})["problem"] == waits
        assert (len(ready(server)), fleet_of(server)["problem"]) == (2, waits)
        assert asked_for(cluster) == [{"CPU": 2}] * 3
        machine = cluster.add_node(num_cpus=2)
        until(lambda: fleet_of(server)["problem"] is None)
        assert len(ready(server)) == 3
        assert server.end() == 0
    cluster.remove_node(machine)
    assert asked_for(cluster) == []


def test_a_dead_node_and_a_dead_control_store_change_no_answer(
    cluster: Any, model: str, expected: dict[int, str], tmp_path: Path
) -> None:
    fleet = ("--ray", cluster.address, "--replicas", "2", "--listen-nodes", "127.0.0.1:0")
    with live_server(tmp_path, model, *fleet, *ENGINE, "1") as server:
        until(lambda: joined(server) == 2)
        assert while_asking(server, lambda: kill(cluster.worker_nodes.copy().pop(), "raylet")) == expected
        until(lambda: joined(server) == 3)  # Ray starts the lost replica on the other machine
        kill(cluster.head_node, "gcs_server")
        assert {number: answer(server, number) for number in range(4)} == expected
        assert server.end() == 0


def test_a_cluster_that_does_not_answer_ends_the_start(
    tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path: Path
) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: pip install 'twofold[ray]'")
    model = f"m={tiny_gguf(TinyOptions()).path}"
    fleet = ("--ray", "127.0.0.1:9", "--listen-nodes", "127.0.0.1:0")
    with pytest.raises(AssertionError, match="Ray cannot be used"), live_server(tmp_path, model, *fleet, *ENGINE, "1"):
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
