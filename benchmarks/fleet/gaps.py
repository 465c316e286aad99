"""The pause of a stream when its replica fails.

One stream at a time. After TOKENS tokens its replica gets the fault; the gap is the longest time between two events
from then on. Before, the same server computes new prompts of the same length, idle: a stream that continues elsewhere
has to do so, so ``beyond`` is the gap without the median of these seconds. A new trial waits until all replicas are
ready.
"""

from __future__ import annotations

import http.client
import json
import os
import random
import signal
import statistics
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

PROMPT: Final = 200
"""Words of a prompt."""
TOKENS: Final = 24
AFTER: Final = 60
"""Tokens that an undisturbed stream still gets after its fault."""
CALM: Final = 5
LASTS_S: Final = 5.0
"""Seconds of a fault that ends."""
TIMEOUT_S: Final = 120.0
WORDS: Final = (
    "river",
    "stone",
    "market",
    "winter",
    "letter",
    "engine",
    "garden",
    "bridge",
    "copper",
    "window",
    "harbour",
)
Fault = Callable[[Mapping[str, Any]], Callable[[], None] | None]
"""Injects a fault into a replica as ``GET /v1/twofold/server`` shows it. Returns what ends the fault, if anything."""


class Events(NamedTuple):
    """The times of a stream's tokens, and its text."""

    times: list[float]
    text: str


def body_of(number: int, tokens: int) -> dict[str, Any]:
    """The request of a trial: a prompt that no other trial has."""
    chance = random.Random(number)
    words = " ".join(chance.choice(WORDS) for _ in range(PROMPT))
    return {
        "model": "m",
        "prompt": f"{number}: {words}",
        "temperature": 0.9,
        "seed": number,
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
        "logprobs": 0,
    }


def stream(url: str, body: dict[str, Any], then: Callable[[], None] = lambda: None) -> Events:
    """Streams a completion, and calls ``then`` after TOKENS tokens. Raises RuntimeError if it does not end well."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    times, text, finished = list[float](), "", False
    try:
        connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status}: {reply.read()[:300]!r}")
        for line in reply:
            if not line.startswith(b"data: {"):
                finished |= line.strip() == b"data: [DONE]"
                continue
            event = json.loads(line[6:])
            if "error" in event:
                raise RuntimeError(f"an error in the stream: {event['error']}")
            for choice in event["choices"]:
                many = len((choice.get("logprobs") or {}).get("tokens") or ())
                before = len(times)
                times += [time.monotonic()] * many
                text += choice["text"]
                if before < TOKENS <= len(times):
                    then()
    finally:
        connection.close()
    if not finished:
        raise RuntimeError("the stream ended early")
    return Events(times, text)


def replicas_of(url: str) -> list[dict[str, Any]]:
    """The replicas of the model."""
    with urllib.request.urlopen(f"{url}/v1/twofold/server", timeout=TIMEOUT_S) as reply:
        found: list[dict[str, Any]] = json.load(reply)["models"][0]["fleet"]["replicas"]
    return found


def prefill_s(url: str) -> float:
    """Median seconds to the first token of a new prompt as long as that of a stream with a fault."""
    seconds = []
    for number in range(CALM):
        body = body_of(-1 - number, 1)
        began = time.monotonic()
        seconds.append(stream(url, body).times[0] - began)
    return statistics.median(seconds)


def trial(url: str, number: int, fault: Fault) -> tuple[float, Events]:
    """One stream with a fault; returns the longest gap from then on, in seconds."""
    until = time.monotonic() + TIMEOUT_S
    while any(each["state"] != "ready" for each in replicas_of(url)):
        if time.monotonic() > until:
            raise RuntimeError("a replica does not come back")
        time.sleep(0.1)
    ended: list[threading.Timer] = []

    def then() -> None:
        (busy,) = [each for each in replicas_of(url) if each["requests"]]
        end = fault(busy)
        if end is not None:
            ended.append(threading.Timer(LASTS_S, end))
            ended[-1].start()

    events = stream(url, body_of(number, TOKENS + AFTER), then)
    for timer in ended:
        timer.join()
    late = events.times[TOKENS - 1 :]
    return max(after - before for before, after in pairwise(late)), events


def expected(calm: str, trials: int) -> list[str]:
    """The texts of all trials, from a server without faults."""
    return [stream(calm, body_of(number, TOKENS + AFTER)).text for number in range(trials)]


def gaps(url: str, texts: Sequence[str], fault: Fault) -> dict[str, Any]:
    """Runs a trial for each expected text; returns figures, in seconds."""
    prefill, seconds, different = prefill_s(url), [], 0
    for number, text in enumerate(texts):
        gap, events = trial(url, number, fault)
        seconds.append(gap)
        different += events.text != text
    most, middle = max(seconds), statistics.median(seconds)
    return {
        "trials": len(texts),
        "different": different,
        "prefill_s": round(prefill, 3),
        "gap_s": {"p50": round(middle, 3), "max": round(most, 3)},
        "beyond_s": {"p50": round(middle - prefill, 3), "max": round(most - prefill, 3)},
    }


def kill(replica: Mapping[str, Any]) -> None:
    """Kills the process of a replica."""
    with suppress(ProcessLookupError):
        os.kill(replica["pid"], signal.SIGKILL)


def stop(replica: Mapping[str, Any]) -> Callable[[], None]:
    """Stops the process of a replica."""
    os.kill(replica["pid"], signal.SIGSTOP)

    def wake() -> None:
        with suppress(ProcessLookupError):
            os.kill(replica["pid"], signal.SIGCONT)

    return wake
