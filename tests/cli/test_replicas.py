"""``twofold fleet status | drain | restart | scale`` on a server with two replicas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.live import LiveServer, live_server
from twofold.cli.main import main

KEY = "secret"


@pytest.fixture(scope="module")
def server(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("fleet")
    options = (
        "--threads",
        "1",
        "--replicas",
        "2",
        "--api-key",
        KEY,
        "--kv-cache-memory-bytes",
        "8M",
        "--memory-budget",
        "100M",
    )
    with live_server(folder, f"tiny={tiny}", *options) as live:
        yield live


def run(capsys: pytest.CaptureFixture[str], server: LiveServer, *words: str, key: str = KEY) -> tuple[int, str]:
    """The exit code of a command, and what it printed."""
    code = main(["fleet", *words, "--url", server.url, *(("--api-key", key) if key else ())])
    found = capsys.readouterr()
    return code, found.out + found.err


def replicas(capsys: pytest.CaptureFixture[str], server: LiveServer) -> list[dict[str, Any]]:
    code, out = run(capsys, server, "status", "--json")
    assert code == 0, out
    (fleet,) = json.loads(out)
    assert (fleet["model"], fleet["router"]) == ("tiny", "predicted")
    found: list[dict[str, Any]] = fleet["replicas"]
    return found


def test_replicas_are_listed_replaced_started_and_drained(
    capsys: pytest.CaptureFixture[str], server: LiveServer
) -> None:
    first = replicas(capsys, server)
    assert [(each["number"], each["state"], each["node"]) for each in first] == [(0, "ready", None), (1, "ready", None)]
    page = server.get("/metrics", headers={"authorization": f"Bearer {KEY}"}).text
    for number in range(2):
        assert f'twofold:replicas{{engine="{number}",model_name="tiny",node="",state="ready"}} 1.0' in page
        assert f'twofold:replica_requests{{engine="{number}",model_name="tiny",node=""}} 0.0' in page
    code, out = run(capsys, server, "status")
    assert code == 0
    assert f"process {first[0]['pid']}" in out
    assert run(capsys, server, "restart") == (
        0,
        "Restarted the replicas of tiny: each after its successor was ready.\n",
    )
    assert not {each["pid"] for each in first} & {each["pid"] for each in replicas(capsys, server)}
    assert run(capsys, server, "scale", "3")[0] == 0
    assert [each["number"] for each in replicas(capsys, server)] == [0, 1, 2]
    assert run(capsys, server, "drain", "1", "--model", "tiny")[0] == 0
    assert [each["number"] for each in replicas(capsys, server)] == [0, 2]
    assert run(capsys, server, "scale", "1")[0] == 0
    assert [(each["number"], each["restarts"]) for each in replicas(capsys, server)] == [(0, 0)]
    code, out = run(capsys, server, "drain", "0")
    assert code != 0
    assert "only one of tiny that is ready" in out
    assert run(capsys, server, "scale", "2")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("drain", "9"), "tiny has no replica 9"),
        (("scale", "65"), "replicas"),
        (("restart", "--model", "other"), "other"),
        (("scale", "64"), "bytes of memory"),
    ],
)
def test_what_cannot_be_done_is_said(
    capsys: pytest.CaptureFixture[str], server: LiveServer, words: tuple[str, ...], message: str
) -> None:
    before = replicas(capsys, server)
    code, out = run(capsys, server, *words)
    assert code != 0
    assert message in out
    assert replicas(capsys, server) == before


@pytest.mark.parametrize("words", [("status",), ("drain", "0"), ("restart",), ("scale", "2")])
@pytest.mark.parametrize("key", ["", "wrong"])
def test_only_administrators_may(
    capsys: pytest.CaptureFixture[str], server: LiveServer, words: tuple[str, ...], key: str
) -> None:
    code, out = run(capsys, server, *words, key=key)
    assert code != 0
    assert "key" in out


def test_autoscaling_shows_its_decision(
    capsys: pytest.CaptureFixture[str], tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = ("--threads", "1", "--autoscale", "1:2", "--attainment", "0.95", "--api-key", KEY)
    sizes = ("--kv-cache-memory-bytes", "8M", "--memory-budget", "100M")
    with live_server(tmp_path_factory.mktemp("autoscale"), f"tiny={tiny}", *options, *sizes) as live:
        code, out = run(capsys, live, "status", "--json")
        assert code == 0, out
        (fleet,) = json.loads(out)
        decision = fleet["autoscale"]
        assert (decision["minimum"], decision["maximum"], decision["wanted"]) == (1, 2, 1)
        assert decision["problem"] is None
        code, out = run(capsys, live, "status")
        assert code == 0
        assert "autoscale of 1 to 2 wants 1 at " in out
        assert "no request in the last minutes" in out
        page = live.get("/metrics", headers={"Authorization": f"Bearer {KEY}"}).text
        assert 'twofold:autoscale_replicas{model_name="tiny"} 1.0' in page
        assert "autoscale from 1 to 2 replicas" in live.log.read_text()
