"""Starts the stub for tests: in its own process, on a free port of loopback."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.bench.stub.truth import Truth

ROOT: Final = Path(__file__).parents[3]
WAIT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class LiveStub:
    """Its process and address."""

    process: subprocess.Popen[bytes]
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def exchange(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        """Status and body of one request, on a connection of its own."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def rules(self, **rules: Any) -> None:
        """Sets the rules for all further requests (``server.Rules``), and deletes the records of earlier ones."""
        status, body = self.exchange("POST", "/rules", rules)
        assert status == 200, body

    def truths(self) -> dict[str, Truth]:
        """The records since the rules were set, by the ids of scripts."""
        _, body = self.exchange("GET", "/truth")
        return {told["id"]: Truth.of(told) for told in json.loads(body)}


@contextmanager
def stub_server(*, port: int = 0, cpu: int | None = None) -> Iterator[LiveStub]:
    """A running stub, if ``core`` is given on that core only."""
    command = [sys.executable, "-m", "tests.bench.stub", "--port", str(port)]
    if cpu is not None:
        command += ["--cpu", str(cpu)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process, process.stdout as output:
        try:
            yield LiveStub(process, int(output.readline()))
        finally:
            process.terminate()
