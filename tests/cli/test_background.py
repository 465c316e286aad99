"""Commands as background jobs, which shells start with SIGINT ignored and end by SIGTERM."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bench.stub.fixtures import running_stub, stub
from tests.bench.stub.live import LiveStub
from tests.cli.conftest import LONG_CONTEXT

__all__ = ["running_stub", "stub"]

TERMINATED = 143
PATIENCE = 300
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def background(process: Start) -> Start:
    """Starts a command that ignores SIGINT."""

    def start(*arguments: object) -> subprocess.Popen[str]:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            return process(*arguments, stdin=subprocess.DEVNULL)
        finally:
            signal.signal(signal.SIGINT, before)

    return start


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(command: subprocess.Popen[str], condition: Callable[[], bool]) -> None:
    until = time.monotonic() + PATIENCE
    while not condition():
        assert command.poll() is None, command.communicate()
        assert time.monotonic() < until
        time.sleep(0.02)


def test_run_ends_by_sigterm(background: Start, tiny: Path) -> None:
    command = background("run", "in the", "-m", tiny, "--ignore-eos", "-n", LONG_CONTEXT - 100)
    assert command.stdout is not None
    assert command.stdout.read(1)
    command.terminate()
    _, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == TERMINATED
    assert "Traceback" not in errors


def test_batch_ends_by_sigterm_and_can_resume(background: Start, tiny: Path, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "in the"}], "max_tokens": 200, "ignore_eos": True}
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(json.dumps({"custom_id": str(i), **line}) + "\n" for i in range(400)))
    command = background("batch", source, target, "-m", tiny, "-np", 4)
    wait_until(command, lambda: target.exists() and target.read_bytes().count(b"\n") > 2)
    command.terminate()
    _, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == TERMINATED
    assert "Traceback" not in errors
    assert 2 < len([json.loads(line) for line in target.read_text().splitlines()]) < 400


def test_serve_ends_by_sigterm(background: Start, tiny: Path, tmp_path: Path) -> None:
    command = background("serve", tiny, "--port", 0, "--data-folder", tmp_path, "--threads", 1)
    assert command.stderr is not None
    assert any("OPENAI_BASE_URL" in line for line in command.stderr)
    workers = children(command.pid)
    command.terminate()
    assert command.wait(PATIENCE) == 0
    assert workers
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)
    command.communicate()


def test_a_bench_prints_its_results_so_far(background: Start, stub: LiveStub) -> None:
    command = background("bench", "serve", "--url", stub.url, "--rate", 20, "--duration", 600, "--output-tokens", 4)
    wait_until(command, lambda: len(stub.truths()) > 5)
    command.terminate()
    out, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == 130, errors
    assert "stopped" in out


def test_a_bench_that_ends_early_ends_its_server(background: Start, tiny: Path) -> None:
    command = background("bench", "run", "-m", tiny, "--rate", 1, "--duration", 600)
    wait_until(command, lambda: bool(children(command.pid)))
    (server,) = children(command.pid)
    command.terminate()
    _, errors = command.communicate(timeout=PATIENCE)
    assert command.returncode == TERMINATED
    assert "Traceback" not in errors
    assert not Path(f"/proc/{server}").exists()
