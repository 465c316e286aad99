"""Replicas that are drained, replaced and started under load, by the endpoints for administrators.

``drain``: one of two replicas ends while clients stream. ``restart``: every process is replaced under load.
``scale``: a replica is added and the other one is drained, so that the first token afterwards is its own.
"""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from benchmarks.fleet.gaps import replicas_of

CHANGE_S: Final = 300.0
STREAM: Final = {"model": "m", "prompt": "The city of", "temperature": 0.9, "ignore_eos": True}


def change(url: str, path: str, body: dict[str, Any] | None = None) -> float:
    """Changes the replicas of the model; returns the seconds that it took. Raises HTTPError."""
    began = time.monotonic()
    data = b"" if body is None else json.dumps(body).encode()
    asked = urllib.request.Request(f"{url}/v1/twofold/models/m/{path}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(asked, timeout=CHANGE_S) as reply:
        reply.read()
    return time.monotonic() - began


def requests_of(url: str, replica: int) -> int:
    """Open requests of a replica."""
    return sum(each["requests"] for each in replicas_of(url) if each["number"] == replica)


def drain_under_streams(
    url: str, expected: Sequence[str], tokens: int, ask: Callable[[dict[str, Any]], str], begin_s: float
) -> dict[str, Any]:
    """Drains the first replica ``begin_s`` seconds after as many streams began as answers are ``expected``."""

    def stream(number: int) -> str:
        try:
            return ask(body_of(number, tokens))
        except Exception as error:  # every failure of a client is a finding
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(len(expected)) as pool:
        running = [pool.submit(stream, number) for number in range(len(expected))]
        time.sleep(begin_s)
        still = sum(not each.done() for each in running)
        moved = requests_of(url, 0)
        seconds = change(url, "replicas/drain", {"replica": 0})
        left = sum(not each.done() for each in running)
        found = [each.result() for each in running]
    broken = sum(one != other for one, other in zip(found, expected, strict=True))
    return {"open": still, "moved": moved, "open_after": left, "drain_s": round(seconds, 2), "different": broken}


def body_of(number: int, tokens: int) -> dict[str, Any]:
    """The request of a stream."""
    return {**STREAM, "seed": number, "max_tokens": tokens}


def restart_under_load(url: str, stop: threading.Event, load: Callable[[], Any]) -> tuple[float, Any]:
    """Replaces all replicas while ``load`` runs, until ``stop`` is set; returns the seconds and the load's result."""
    with ThreadPoolExecutor(1) as pool:
        loading = pool.submit(load)
        try:
            time.sleep(1.0)
            seconds = change(url, "replicas/restart")
        finally:
            stop.set()
        return seconds, loading.result()


def scale_up(url: str, ask: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """Adds a second replica, and returns when its first token was there."""
    ready_s = change(url, "replicas", {"replicas": 2})
    change(url, "replicas/drain", {"replica": 0})
    began = time.monotonic()
    ask(body_of(0, 1))
    return {"ready_s": round(ready_s, 2), "first_token_s": round(ready_s + time.monotonic() - began, 2)}
