"""Ctrl-C during a benchmark: the results so far are printed and written, and the exit code is 130."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.bench.stub.live import LiveStub
from tests.bench.stub.script import Script

PATIENCE = 300
Start = Callable[..., "subprocess.Popen[str]"]


def begun(process: Start, stub: LiveStub, *arguments: object, script: Script) -> subprocess.Popen[str]:
    """A running benchmark with open and completed requests."""
    body = ("--extra-body", json.dumps(script.fields))
    command = process("bench", "serve", "--url", stub.url, *body, *arguments)
    until = time.monotonic() + PATIENCE
    while len(stub.truths()) < 10:
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < until
        time.sleep(0.05)
    return command


def test_results_so_far_are_printed_and_written(process: Start, stub: LiveStub, tmp_path: Path) -> None:
    paths = [tmp_path / f"found{suffix}" for suffix in (".json", ".csv", ".html", ".jsonl")]
    outputs = [part for path in paths for part in ("-o", path)]
    command = begun(process, stub, "--rate", 20, "--duration", 600, *outputs, script=Script(first_s=0.3, gap_s=0.001))
    command.send_signal(signal.SIGINT)
    out, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == 130
    assert "Traceback" not in errors
    assert "The run was stopped early." in out
    (run,) = json.loads(paths[0].read_text())["runs"]
    assert run["interrupted"]
    outcomes = run["summary"]["requests"]["outcomes"]
    assert outcomes["ok"] > 0
    assert outcomes["ok"] + outcomes["unfinished"] == run["summary"]["requests"]["measured"] == len(run["requests"])
    assert run["summary"]["rates"]["asked"]["requests_per_s"] < 40
    assert all(path.stat().st_size for path in paths)


def test_a_sweep_keeps_its_earlier_runs(process: Start, stub: LiveStub, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    rates = ("--rates", "40,1000", "--duration", 1)
    command = begun(process, stub, *rates, "-o", path, "--output-tokens", 1, script=Script(first_s=0.02))
    while len(stub.truths()) < 150:
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    _, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == 130, errors
    runs: list[dict[str, Any]] = json.loads(path.read_text())["runs"]
    assert [run["interrupted"] for run in runs] == [False, True]


def test_before_the_first_measurement_it_ends_at_once(process: Start, stub: LiveStub) -> None:
    command = process("bench", "serve", "--url", stub.url, "--rate", 1, "--extra-body", '{"stub": {"first_s": 60}}')
    while not stub.truths():
        assert command.poll() is None, command.communicate()
        time.sleep(0.05)
    command.send_signal(signal.SIGINT)
    out, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == 130
    assert out == ""
    assert "rror" not in errors
