"""``twofold ps | load | unload | stop`` against a running server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import Command
from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions


@pytest.fixture(scope="module")
def server(
    tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    first, second = (tiny_gguf(TinyOptions("llama", vocab=300, context=512, seed=seed)).path for seed in (0, 1))
    folder = tmp_path_factory.mktemp("remote")
    flags = ("--threads", "1", "--idle-unload", "1h", "--kv-cache-memory-bytes", "4M")
    with live_server(folder, f"first={first}", f"my/second={second}", *flags) as live:
        yield live


def test_models_are_listed_loaded_and_unloaded(server: LiveServer, twofold: Command) -> None:
    listed = twofold("ps", "--url", server.url)
    assert listed.code == 0, listed.err
    head, first, second = (line.split() for line in listed.out.splitlines())
    assert head == ["NAME", "STATE", "MEMORY", "RUNNING", "WAITING", "IDLE", "UNLOADS"]
    assert (first[:2], first[-3:]) == (["first", "ready"], ["in", "60", "min"])
    assert second == ["my/second", "unloaded", "-", "0", "0", "-", "-"]
    assert twofold("load", "my/second", "--url", server.url).err == "Loaded my/second.\n"
    found = json.loads(twofold("ps", "--json", "--url", server.url).out)
    assert [model["state"] for model in found] == ["ready", "ready"]
    assert found[1]["bytes"] > 1 << 20
    assert twofold("unload", "my/second", "--url", server.url).err == "Unloaded my/second.\n"
    assert twofold("stop", "first", "--url", server.url).err == "Unloaded first.\n"
    found = json.loads(twofold("ps", "--json", "--url", server.url).out)
    assert [model["state"] for model in found] == ["unloaded", "unloaded"]
    assert server.get("/ready").status_code == 200
    body = {"model": "first", "prompt": "in the", "max_tokens": 2}
    assert server.post("/v1/completions", body).status_code == 200


def test_errors_are_explained(server: LiveServer, twofold: Command) -> None:
    missing = twofold("unload", "thrid", "--url", server.url)
    assert (missing.code, "thrid" in missing.err, "twofold ps" in missing.err) == (2, True, True)
    assert twofold("stop", "--url", server.url).code == 2
    assert twofold("stop", "first", "--server", "--url", server.url).code == 2
    nobody = twofold("ps", "--url", "http://127.0.0.1:1")
    assert nobody.code == 5
    assert "Traceback" not in nobody.err


def test_a_key_is_needed_to_administer_and_the_server_can_be_stopped(
    twofold: Command, tiny: Path, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.toml"
    user = twofold("keys", "add", "user", "--file", keys).out.strip()
    admin = twofold("keys", "add", "boss", "--admin", "--file", keys).out.strip()
    with live_server(tmp_path, f"tiny={tiny}", "--threads", "1", "--api-keys", str(keys)) as live:
        for command in (["ps"], ["unload", "tiny"], ["load", "tiny"], ["stop", "--server"]):
            assert twofold(*command, "--url", live.url).code == 2
            refused = twofold(*command, "--url", live.url, "--api-key", user)
            assert (refused.code, "has no admin rights" in refused.err) == (2, True)
        assert twofold("ps", "--url", live.url, "--api-key", admin).code == 0
        stopped = twofold("stop", "--server", "--url", live.url, "--api-key", admin)
        assert "is stopping" in stopped.err
        assert live.process.wait(20) == 0
