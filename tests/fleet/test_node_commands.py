"""``twofold fleet init``, ``twofold serve --listen-nodes`` and ``twofold node`` as processes, and their errors."""

from __future__ import annotations

import http.client
import os
import re
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks.fleet.clients import Question, ask, comparable, questions
from benchmarks.http.processes import free_port
from tests.fleet.nodes import LiveNode, live_node, until
from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions
from twofold.cli.main import main
from twofold.core.errors import ParameterError

ENGINE = ("--kv-cache-memory-bytes", "8M", "--max-model-len", "1024", "--threads", "1")


@pytest.fixture(scope="module")
def model(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> Path:
    return tiny_gguf(TinyOptions(context=2048)).path


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates") / "fleet"
    assert main(["fleet", "init", str(folder)]) == 0
    return folder


@pytest.fixture(scope="module")
def for_nodes(certificates: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a node's machine gets of the certificates."""
    folder = tmp_path_factory.mktemp("node")
    for name in ("ca.pem", "node.pem"):
        shutil.copy(certificates / name, folder)
    return folder


@contextmanager
def hub(folder: Path, model: Path, certificates: Path, *nodes: str) -> Iterator[tuple[LiveServer, LiveNode]]:
    """A server without replicas of its own, and one node. The port for nodes is the server's choice."""
    port = free_port()
    listen = ("--replicas", "0", "--listen-nodes", f"127.0.0.1:{port}", "--fleet-certs", str(certificates))
    join = (f"m={model}", "--join", f"127.0.0.1:{port}", "--fleet-certs", str(certificates), "--threads", "1", *nodes)
    folder.mkdir()
    with live_node(folder / "node.log", *join) as node, live_server(folder, f"m={model}", *listen, *ENGINE) as live:
        yield live, node


def port_of(live: LiveServer) -> int:
    """The port for nodes, as the server announces it."""
    found = re.search(r"Nodes may join at 127\.0\.0\.1:(\d+)", live.log.read_text())
    assert found, live.log.read_text()
    return int(found[1])


def test_a_hub_that_computes_nothing(model: Path, certificates: Path, tmp_path: Path) -> None:
    """A node is there before its server, and outlives it; answers equal those of a server without nodes."""
    asked = questions("m", 3, 4)
    (tmp_path / "calm").mkdir()
    with live_server(tmp_path / "calm", f"m={model}", *ENGINE) as calm:
        whole = {each.key: comparable(ask(calm.url, each)) for each in asked}
    with hub(tmp_path / "one", model, certificates, "--replicas", "2") as (live, node):
        assert live.worker_pids() == []
        node.wait_for("Ready", 2)
        answers = {each.key: comparable(ask(live.url, each)) for each in asked}
        assert answers == whole
        about = live.get("/v1/twofold/server").json()
        assert [(each["state"], each["context"]) for each in about["models"]] == [("ready", 1024)]
        log = live.log.read_text()
        assert "only nodes compute" in log
        assert live.end() == 0
        node.wait_for("connection to 127.0.0.1", 2)
        until(lambda: node.worker_pids() == [], node.log)
        listen = ("--replicas", "0", "--listen-nodes", f"127.0.0.1:{port_of(live)}", "--fleet-certs", str(certificates))
        (tmp_path / "again").mkdir()
        with live_server(tmp_path / "again", f"m={model}", *listen, *ENGINE) as again:
            assert comparable(ask(again.url, asked[0])) == whole[asked[0].key]


def test_a_model_file_of_another_content_is_refused(
    model: Path, certificates: Path, for_nodes: Path, tmp_path: Path
) -> None:
    other = tmp_path / model.name
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    other.write_bytes(data)
    with live_server(
        _made(tmp_path / "hub"),
        f"m={model}",
        *("--listen-nodes", "127.0.0.1:0", "--fleet-certs", str(certificates)),
        *ENGINE,
    ) as live:
        join = ("--join", f"127.0.0.1:{port_of(live)}", "--fleet-certs", str(for_nodes))
        errors: dict[str, Any] = {
            f"m={other}": "another one than the hub's",
            f"n={model}": "'n'",
        }
        for number, (named, message) in enumerate(errors.items()):
            with live_node(tmp_path / f"{number}.log", named, *join) as node:
                assert node.process.wait(120) != 0
                assert message in node.log.read_text()
        with live_node(tmp_path / "small.log", f"m={model}", *join, "--kv-cache-memory-bytes", "1000") as node:
            assert node.process.wait(120) != 0
            assert "KV cache" in node.log.read_text()
        with live_node(tmp_path / "plain.log", f"m={model}", *join[:2]) as node:
            node.wait_for("do both have certificates")
        port = port_of(live)
        (tmp_path / "second").mkdir()
        with (
            pytest.raises(AssertionError, match="each hub needs its own"),
            live_server(tmp_path / "second", f"m={model}", "--listen-nodes", f"127.0.0.1:{port}", *ENGINE),
        ):
            pass
        assert ask(live.url, questions("m", 3, 1)[0])


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("missing", ["ca.pem", "node.pem"])
def test_a_node_needs_its_certificates(
    model: Path, for_nodes: Path, tmp_path: Path, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(for_nodes, tmp_path / "some")
    os.unlink(folder / missing)
    assert main(["node", f"m={model}", "--join", "127.0.0.1:1", "--fleet-certs", str(folder)]) == 2
    assert missing in capsys.readouterr().err


@pytest.mark.parametrize("role", ["hub", "node"])
def test_certificates_of_two_fleets_are_noticed(
    certificates: Path, tmp_path: Path, role: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """A certificate that is not of the fleet's authority, and one of the other role."""
    from twofold.fleet.certificates import context  # noqa: PLC0415 - beside the test of the commands

    assert main(["fleet", "init", str(tmp_path / "other")]) == 0
    mixed = shutil.copytree(certificates, tmp_path / "mixed")
    shutil.copy(tmp_path / "other" / f"{role}.pem", mixed)
    with pytest.raises(ParameterError, match="cannot be used"):
        context(mixed, role)
    shutil.copy(certificates / ("node.pem" if role == "hub" else "hub.pem"), mixed / f"{role}.pem")
    with pytest.raises(ParameterError, match="cannot be used"):
        context(mixed, role)
    assert main(["fleet", "init", str(mixed)]) == 2
    assert "already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["serve", "--replicas", "0"], "0 requires --listen-nodes"),
        (["serve", "--replicas", "65"], "from 1 to 64"),
        (["serve", "--fleet-certs", "x"], "requires --listen-nodes"),
        (["serve", "--listen-nodes", "0.0.0.0:7000"], "needs certificates"),
        (["serve", "--listen-nodes", "127.0.0.1:0", "--kv-store", "x"], "cannot be used with several replicas"),
        (["serve", "--prefill-replicas", "1"], "No replica decodes"),
        (["serve", "--decode-replicas", "2"], "No replica prefills"),
        (["serve", "--replicas", "2", "--prefill-replicas", "2", "--decode-replicas", "1"], "are more than 2"),
        (["serve", "--decode-replicas", "-1"], "--decode-replicas must be at least 0"),
        (["serve", "--ray", "auto", "--prefill-replicas", "1", "--listen-nodes", "127.0.0.1:0"], "prefill and decode"),
        (["node", "m", "--join", "127.0.0.1:0"], "HOST:PORT"),
        (["node", "m", "--join", "127.0.0.1:1", "--role", "encode"], "prefill"),
        (["node", "m", "--join", "10.0.0.1:7000"], "needs certificates"),
        (["node", "m", "--join", "127.0.0.1:1", "--join", "127.0.0.1:1"], "names a server twice"),
        (["node", "m", "--join", "127.0.0.1:1", "--replicas", "0"], "from 1 to 64"),
        (["node", "m", "--join", "127.0.0.1:1", "--threads", "0"], "threads must be"),
        (["node", "m", "--join", "127.0.0.1:1", "--kv-cache-memory-bytes", "0"], "at least 1"),
    ],
    ids=str,
)
def test_flags_that_do_not_go_together(
    flags: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ["--data-folder", str(tmp_path)] if flags[0] == "serve" else []
    assert main([*flags, *folder]) == 2
    assert message in capsys.readouterr().err


def test_the_requests_of_a_terminated_node_go_on_elsewhere(model: Path, certificates: Path, tmp_path: Path) -> None:
    """One of two nodes gets SIGTERM under streams and exits with 0. The other one, then alone, finishes its stream."""
    body = {"model": "m", "prompt": "The city of", "max_tokens": 900, "ignore_eos": True, "temperature": 0.9, "seed": 1}
    streamed = Question("/v1/completions", body, stream=True)
    with hub(tmp_path / "hub", model, certificates) as (live, first):
        whole = comparable(ask(live.url, streamed))
        join = ("--join", f"127.0.0.1:{port_of(live)}", "--fleet-certs", str(certificates), "--threads", "1")
        with (
            live_node(tmp_path / "second.log", f"m={model}", *join) as second,
            ThreadPoolExecutor(4) as pool,
        ):
            second.wait_for("Ready")
            for node, others in ((first, 4), (second, 1)):
                running = [pool.submit(ask, live.url, streamed) for _ in range(others)]
                until(lambda count=others: _open_requests(live) == count, live.log)  # type: ignore[misc]
                assert not any(each.done() for each in running)
                node.process.terminate()
                assert [comparable(each.result()) for each in running] == [whole] * others
                assert node.process.wait(120) == 0, node.log.read_text()
                assert "drained" in node.log.read_text()


def test_a_node_without_a_server_ends_at_once(model: Path, certificates: Path, tmp_path: Path) -> None:
    join = ("--join", f"127.0.0.1:{free_port()}", "--fleet-certs", str(certificates), "--threads", "1")
    with live_node(tmp_path / "node.log", f"m={model}", *join) as node:
        node.wait_for("failed")
        node.process.terminate()
        assert node.process.wait(60) == 0


def _open_requests(server: LiveServer) -> int:
    """Open requests of the replicas of a server."""
    fleet = server.get("/v1/twofold/server").json()["models"][0]["fleet"]
    return sum(each["requests"] for each in fleet["replicas"])


def test_two_servers_share_a_node(model: Path, tmp_path: Path) -> None:
    """One of them is killed under streams; the other one's answer is untouched. It comes back to the same worker."""
    body = {"model": "m", "prompt": "The city of", "max_tokens": 900, "ignore_eos": True, "temperature": 0.9, "seed": 1}
    streamed = Question("/v1/completions", body, stream=True)
    ports = free_port(), free_port()

    def server(name: str, port: int) -> AbstractContextManager[LiveServer]:
        listen = ("--replicas", "0", "--listen-nodes", f"127.0.0.1:{port}")
        return live_server(_made(tmp_path / name), f"m={model}", *listen, *ENGINE)

    join = [word for port in ports for word in ("--join", f"127.0.0.1:{port}")]
    with (
        live_node(tmp_path / "node.log", f"m={model}", *join, "--threads", "1") as node,
        server("one", ports[0]) as one,
        server("two", ports[1]) as two,
        ThreadPoolExecutor(2) as pool,
    ):
        node.wait_for("Ready", 2)
        pids = node.worker_pids()
        assert len(pids) == 1
        whole = comparable(ask(two.url, streamed))
        lost, kept = (pool.submit(ask, each.url, streamed) for each in (one, two))
        until(lambda: all(_open_requests(each) for each in (one, two)), node.log)
        assert not kept.done()
        one.process.kill()
        assert comparable(kept.result()) == whole
        with pytest.raises((OSError, RuntimeError, http.client.HTTPException)):
            lost.result()
        with server("again", ports[0]) as again:
            assert comparable(ask(again.url, streamed)) == whole
            assert node.worker_pids() == pids
            node.process.terminate()
            assert node.process.wait(120) == 0
            assert node.log.read_text().count("has drained") == 2
