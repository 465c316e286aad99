"""Runs each measured engine in a separate process that reads one line of JSON per request and writes one in response.

    {"op": "load", "path": …, "threads": 2, "context": 2048, "streams": 1}     → {"seconds": …}
    {"op": "prefill", "tokens": [ids]}                                         → {"seconds": …}
    {"op": "decode", "prompt": [ids], "steps": 64}                             → {"seconds": [one a token]}
    {"op": "batch", "streams": 32, "prompt": [ids], "steps": 32}               → {"seconds": [one a step]}

While one engine is measured, the others block in ``readline`` and use no processor time.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self


class WorkerError(Exception):
    """A worker exited or reported an error."""


class Worker:
    """An engine in a separate process. ``name`` labels it in tables and errors."""

    def __init__(self, name: str, command: Sequence[str], cwd: Path) -> None:
        self.name = name
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=cwd
        )

    def ask(self, **request: Any) -> Any:
        """Sends a request and returns ``seconds`` of the response. Raises WorkerError."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(request) + "\n")
        stdin.flush()
        line = stdout.readline()
        while line and not line.startswith("{"):
            line = stdout.readline()
        if not line:
            raise WorkerError(f"{self.name} ended with code {self._process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.name}: {answer['error']}")
        return answer.get("seconds", answer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
