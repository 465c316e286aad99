"""Faults of a fleet, and what its clients see of them.

    python -m benchmarks.fleet faults MODEL --replicas 3 --faults 1000
    python -m benchmarks.fleet machines MODEL --nodes 2 --faults 100
    python -m benchmarks.fleet gaps MODEL --fault kill|stop|cable
    python -m benchmarks.fleet hubs MODEL --nodes 2 --faults 40
    python -m benchmarks.fleet simulate --schedules 100000
    python -m benchmarks.fleet drain|restart|scale MODEL

``faults`` starts one server with one replica, whose answers are the reference, and one with several, whose processes
are killed (SIGKILL) or stopped for a while (SIGSTOP) at random under load. Every answer must equal the reference: text,
log-probabilities, finish reasons and usage. ``machines`` does so with nodes in network namespaces
(root only): cables are pulled, workers and nodes killed and stopped, and garbage is sent to the port for nodes.
``gaps`` aims each fault at the replica of an open stream (``benchmarks.fleet_gaps``).
``hubs`` has two servers over the same nodes: servers and workers are killed and stopped. Answers that were open at a
server when it was killed end with an error and are counted as ``cut``; all others must equal the reference.
``simulate`` runs random schedules on a virtual clock. ``drain``, ``restart`` and ``scale`` change the replicas
while clients wait (``benchmarks.fleet_lifecycle``). The last line is JSON.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final
from urllib.parse import urlsplit

from benchmarks.fleet_faults import HubFaults, MachineFaults, WorkerFaults
from benchmarks.fleet_gaps import expected, gaps, kill, stop
from benchmarks.fleet_hubs import Hub, at_once, shared
from benchmarks.fleet_lifecycle import body_of, drain_under_streams, restart_under_load, scale_up
from benchmarks.fleet_machines import NODE_PORT, Machine, machines, plug, pull
from benchmarks.fleet_simulation import simulate
from benchmarks.http.processes import Recipe, Serving, serving

ENGINE: Final = ("--kv-cache-memory-bytes", "256M", "--max-model-len", "1024", "--threads", "1", "--log-level", "error")
TIMEOUT_S: Final = 180.0
CITY: Final = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "country": {"type": "string", "maxLength": 20}},
    "required": ["city", "country"],
}
TOOL: Final = {"type": "function", "function": {"name": "look_up", "parameters": CITY}}
ASKED: Final = "Name a city and its country, and say what it is known for."
CHAT: Final[dict[str, Any]] = {"messages": [{"role": "user", "content": ASKED}], "temperature": 1.0}
CASES: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("/v1/chat/completions", {**CHAT, "max_tokens": 96, "logprobs": True, "top_logprobs": 2}),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 96, "presence_penalty": 0.9, "frequency_penalty": 0.5}),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 64, "n": 3}),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 96, "stop": ["known", " a "], "logprobs": True}),
    (
        "/v1/chat/completions",
        {
            **CHAT,
            "max_tokens": 80,
            "response_format": {"type": "json_schema", "json_schema": {"name": "place", "schema": CITY}},
        },
    ),
    ("/v1/chat/completions", {**CHAT, "max_tokens": 80, "tools": [TOOL], "tool_choice": "required"}),
    ("/v1/completions", {"prompt": "The city of", "max_tokens": 96, "temperature": 0.9, "logprobs": 2}),
    ("/v1/completions", {"prompt": "It was", "max_tokens": 24, "temperature": 1.0, "n": 2, "best_of": 4}),
)


@dataclass(frozen=True, slots=True)
class Question:
    """A request, and whether its answer is streamed."""

    path: str
    body: dict[str, Any]
    stream: bool

    @property
    def key(self) -> str:
        """Equal for questions with equal answers."""
        return json.dumps([self.path, self.body])


@dataclass(slots=True)
class Answer:
    """What a client got: ``choices`` by index, each with what all deltas say together; ``gaps_s`` between events."""

    choices: dict[int, dict[str, Any]] = field(default_factory=dict)
    usage: Any = None
    gaps_s: list[float] = field(default_factory=list)


def questions(model: str, seed: int, count: int, *, streams: bool | None = None) -> list[Question]:
    """Questions of all cases in random order, each with one of a few seeds."""
    chance, asked = random.Random(seed), []
    for _ in range(count):
        path, body = chance.choice(CASES)
        stream = chance.random() < 0.7 if streams is None else streams
        stream = stream and "best_of" not in body
        asked.append(Question(path, {**body, "model": model, "seed": chance.randrange(4)}, stream))
    return asked


def ask(url: str, question: Question) -> Answer:
    """Asks a server. Raises RuntimeError for an error, and if the stream ends early."""
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=TIMEOUT_S)
    body = dict(question.body)
    if question.stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    try:
        connection.request("POST", question.path, json.dumps(body), {"content-type": "application/json"})
        reply = connection.getresponse()
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status}: {reply.read()[:300]!r}")
        return _streamed(reply) if question.stream else _whole(json.loads(reply.read()))
    finally:
        connection.close()


def _whole(body: dict[str, Any]) -> Answer:
    answer = Answer(usage=body["usage"])
    for choice in body["choices"]:
        _join(answer, choice, choice.get("message"))
    return answer


def _streamed(reply: http.client.HTTPResponse) -> Answer:
    answer, last, done = Answer(), time.monotonic(), False
    for line in reply:
        if not line.startswith(b"data: "):
            continue
        now = time.monotonic()
        answer.gaps_s.append(now - last)
        last = now
        if line.strip() == b"data: [DONE]":
            done = True
            break
        event = json.loads(line[6:])
        if "error" in event:
            raise RuntimeError(f"an error in the stream: {event['error']}")
        answer.usage = event.get("usage") or answer.usage
        for choice in event["choices"]:
            _join(answer, choice, choice.get("delta"))
    if not done:
        raise RuntimeError("the stream ended early")
    return answer


def _join(answer: Answer, choice: dict[str, Any], message: dict[str, Any] | None) -> None:
    """Adds a choice, or the part of it that an event has."""
    whole = answer.choices.setdefault(choice["index"], {"text": "", "tools": {}, "logprobs": [], "finish": None})
    message = message or {}
    whole["text"] += choice.get("text") or message.get("content") or ""
    for number, call in enumerate(message.get("tool_calls") or ()):
        parts = whole["tools"].setdefault(str(call.get("index", number)), ["", ""])
        parts[0] += call["function"].get("name") or ""
        parts[1] += call["function"].get("arguments") or ""
    logprobs = choice.get("logprobs") or {}
    whole["logprobs"] += logprobs.get("content") or logprobs.get("token_logprobs") or []
    whole["finish"] = choice.get("finish_reason") or whole["finish"]


def comparable(answer: Answer) -> str:
    """What of an answer must not depend on faults. Which prompt tokens were cached depends on the replica."""
    usage = {key: answer.usage[key] for key in ("prompt_tokens", "completion_tokens")}
    return json.dumps([sorted(answer.choices.items()), usage])


@dataclass(frozen=True, slots=True)
class Machines:
    """Machines with nodes: ``recipe`` starts the hub, ``start`` a node again, whose process is in ``started``."""

    hub: Machine
    others: list[Machine]
    recipe: Recipe
    started: dict[int, subprocess.Popen[bytes]]
    start: Callable[[int], None]


@dataclass(slots=True)
class Outcome:
    """What clients saw: answers, those that differ from the reference, errors, and gaps between events."""

    answers: int = 0
    different: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    cut: int = 0


def reference(model: str, asked: Sequence[Question]) -> dict[str, str]:
    """The answers of a server without faults, by question."""
    with fleet(model, 1) as calm:
        return {key: comparable(ask(calm.url, each)) for key, each in {each.key: each for each in asked}.items()}


def under_faults(
    url: str,
    asked: Sequence[Question],
    expected: Callable[[Question], str],
    stop: threading.Event,
    clients: int,
    excuses: Callable[[float], bool] = lambda _: False,
) -> Outcome:
    """Asks the questions over and over with several clients until ``stop`` is set. ``excuses`` says of the time when a
    request began whether its error is expected; such errors count as ``cut``."""
    outcome, lock, turns = Outcome(), threading.Lock(), iter(_forever(asked))

    def client() -> None:
        while not stop.is_set():
            with lock:
                question = next(turns)
            began = time.monotonic()
            try:
                answer = ask(url, question)
                found = comparable(answer)
            except Exception as error:  # every failure of a client is a finding
                excused = excuses(began)
                with lock:
                    outcome.cut += excused
                    if not excused:
                        outcome.errors.append(f"{type(error).__name__}: {error}"[:300])
                while excuses(time.monotonic()) and not stop.wait(0.1):
                    pass  # it is down
                continue
            with lock:
                outcome.answers += 1
                outcome.gaps_s += answer.gaps_s
                if found != expected(question):
                    outcome.different.append(f"{question}: {found} is not {expected(question)}"[:2000])

    threads = [threading.Thread(target=client) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcome


def _forever(asked: Sequence[Question]) -> Iterator[Question]:
    while True:
        yield from asked


@contextmanager
def fleet(model: str, replicas: int) -> Iterator[Serving]:
    """A server with replicas of a model."""
    command = (sys.executable, "-m", "twofold", "serve", f"m={model}", "--port", "{port}", "--data-folder", "{folder}")
    with serving(Recipe("twofold", (*command, "--replicas", str(replicas), *ENGINE), "/ready")) as server:
        yield server


def faults(
    model: str, replicas: int, most: int, every_s: float, clients: int, seed: int, stops: float
) -> dict[str, Any]:
    """Runs the load under faults; returns the figures."""
    asked = questions("m", seed, 64)
    whole = reference(model, asked)
    with fleet(model, replicas) as server:
        injector = WorkerFaults(server=server.pid, seed=seed, most=most, every_s=every_s, stops=stops)
        injecting = threading.Thread(target=injector.run)
        injecting.start()
        began = time.monotonic()
        outcome = under_faults(server.url, asked, lambda each: whole[each.key], injector.stop, clients)
        injecting.join()
    counts = {"kills": injector.counts["kill"], "stops": injector.counts["stop"]}
    return {"replicas": replicas, "seconds": round(time.monotonic() - began, 1), **counts, **figures(outcome)}


def figures(outcome: Outcome) -> dict[str, Any]:
    """What clients saw, for the last line; prints examples of what is wrong."""
    gaps = sorted(outcome.gaps_s)
    for line in (*outcome.different[:3], *outcome.errors[:3]):
        print(line)
    return {
        "answers": outcome.answers,
        "different": len(outcome.different),
        "errors": len(outcome.errors),
        "gap_ms": {name: round(gaps[int(share * (len(gaps) - 1))] * 1e3, 1) for name, share in QUANTILES},
    }


@contextmanager
def joined(model: str, nodes: int) -> Iterator[Machines]:
    """Nodes on machines of their own, ready to join a hub."""
    twofold = (sys.executable, "-m", "twofold")
    with tempfile.TemporaryDirectory() as folder, machines(nodes) as (hub, others):
        certificates = ("--fleet-certs", f"{folder}/certificates")
        subprocess.run([*twofold, "fleet", "init", certificates[1]], check=True)
        started: dict[int, subprocess.Popen[bytes]] = {}

        def start(number: int) -> None:
            if number in started:
                started[number].wait()
            join = ("--join", f"{others[number].address}:{NODE_PORT}", "--name", f"node{number}", *certificates)
            command = [*others[number].prefix, *twofold, "node", f"m={model}", *join, "--threads", "1"]
            started[number] = subprocess.Popen(command, stderr=subprocess.DEVNULL)

        serve = (*twofold, "serve", f"m={model}", "--port", "{port}", "--data-folder", "{folder}", *ENGINE)
        listen = ("--replicas", "0", "--listen-nodes", f"0.0.0.0:{NODE_PORT}", *certificates)
        for number in range(nodes):
            start(number)
        try:
            yield Machines(hub, others, Recipe("twofold", (*serve, *listen), "/ready"), started, start)
        finally:
            for process in started.values():
                process.terminate()
                process.wait()


def machine_faults(model: str, nodes: int, most: int, every_s: float, clients: int, seed: int) -> dict[str, Any]:
    """Runs the load on a hub that computes nothing, with nodes on other machines, under faults; returns the figures."""
    asked = questions("m", seed, 64)
    whole = reference(model, asked)
    with joined(model, nodes) as found:

        def load() -> dict[str, Any]:
            with serving(found.recipe) as server:
                injector = MachineFaults(
                    hub=found.hub,
                    machines=found.others,
                    pids=lambda number: found.started[number].pid,
                    restart=found.start,
                    seed=seed,
                    most=most,
                    every_s=every_s,
                    lasts_s=(0.5, 4.0),
                )
                injecting = threading.Thread(target=injector.run)
                injecting.start()
                began = time.monotonic()
                outcome = under_faults(server.url, asked, lambda each: whole[each.key], injector.stop, clients)
                injecting.join()
                seconds = round(time.monotonic() - began, 1)
            return {"nodes": nodes, "seconds": seconds, "faults": dict(injector.counts), **figures(outcome)}

        return found.hub.run(load)


def aimed_faults(model: str, fault: str, trials: int) -> dict[str, Any]:
    """Lets the replica of each of several streams fail; returns the figures of ``fleet_gaps``."""
    with fleet(model, 1) as calm:
        texts = expected(calm.url, trials)
    if fault != "cable":
        with fleet(model, 2) as server:
            return {"fault": fault, **gaps(server.url, texts, {"kill": kill, "stop": stop}[fault])}
    with joined(model, 2) as found:

        def unplug(replica: Mapping[str, Any]) -> Callable[[], None]:
            node = found.others[int(replica["node"].removeprefix("node"))]
            pull(found.hub, node)
            return partial(plug, found.hub, node)

        def load() -> dict[str, Any]:
            with serving(found.recipe) as server:
                return gaps(server.url, texts, unplug)

        return {"fault": fault, **found.hub.run(load)}


def hub_faults(model: str, nodes: int, most: int, every_s: float, clients: int, seed: int) -> dict[str, Any]:
    """Runs the load on two servers that share nodes, under faults; returns the figures of both together."""
    asked = questions("m", seed, 64)
    whole = reference(model, asked)
    twofold = (sys.executable, "-m", "twofold")
    outcomes: list[Outcome] = []
    serve, node = (*twofold, "serve", f"m={model}", *ENGINE), (*twofold, "node", f"m={model}", "--threads", "1")
    with shared(serve, node, nodes) as (hubs, pids):
        injector = HubFaults(hubs=hubs, nodes=pids, seed=seed, most=most, every_s=every_s)

        def load(hub: Hub) -> None:
            stop, excuses = injector.stop, hub.excuses
            outcomes.append(under_faults(hub.url, asked, lambda each: whole[each.key], stop, clients, excuses))

        began = time.monotonic()
        at_once([injector.run, *(partial(load, hub) for hub in hubs)])
        seconds = round(time.monotonic() - began, 1)
    both = Outcome()
    for each in outcomes:
        both.answers += each.answers
        both.cut += each.cut
        both.different += each.different
        both.errors += each.errors
        both.gaps_s += each.gaps_s
    counts = {"nodes": nodes, "seconds": seconds, "faults": dict(injector.counts), "most_workers": injector.workers}
    return {**counts, "cut": both.cut, **figures(both)}


def changes(part: str, model: str, tokens: int, begin_s: float) -> dict[str, Any]:
    """Drains, restarts or scales replicas; returns the figures."""

    def answer(url: str, body: dict[str, Any]) -> str:
        return comparable(ask(url, Question("/v1/completions", body, stream=True)))

    if part == "scale":
        with fleet(model, 1) as server:
            return scale_up(server.url, lambda body: answer(server.url, body))
    if part == "drain":
        with fleet(model, 1) as calm, ThreadPoolExecutor(STREAMS) as pool:
            bodies = [body_of(number, tokens) for number in range(STREAMS)]
            expected = list(pool.map(lambda body: answer(calm.url, body), bodies))
        with fleet(model, 2) as server:
            return drain_under_streams(server.url, expected, tokens, lambda body: answer(server.url, body), begin_s)
    asked, stop = questions("m", 1, 24), threading.Event()
    whole = reference(model, asked)
    with fleet(model, 4) as server:
        seconds, outcome = restart_under_load(
            server.url, stop, lambda: under_faults(server.url, asked, lambda each: whole[each.key], stop, 6)
        )
    return {"replicas": 4, "restart_s": round(seconds, 1), **figures(outcome)}


STREAMS: Final = 32
QUANTILES: Final = (("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0))


def simulated(schedules: int, first: int) -> dict[str, int]:
    """Runs schedules, from this seed on; returns the sums of their counts."""
    counts: Counter[str] = Counter()
    for seed in range(first, first + schedules):
        counts.update(simulate(seed))
    return {"schedules": schedules, **counts}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    real = parts.add_parser("faults")
    real.add_argument("model", help="path of a GGUF file, or a name")
    real.add_argument("--replicas", type=int, default=3)
    real.add_argument("--faults", type=int, default=1000)
    real.add_argument("--every", type=float, default=0.4, help="mean seconds between two faults")
    real.add_argument("--stops", type=float, default=0.35, help="share of SIGSTOPs, the rest are kills")
    real.add_argument("--clients", type=int, default=6)
    real.add_argument("--seed", type=int, default=1)
    for part, most, clients in (("machines", 100, 4), ("hubs", 40, 2)):
        remote = parts.add_parser(part)
        remote.add_argument("model", help="path of a GGUF file")
        remote.add_argument("--nodes", type=int, default=2)
        remote.add_argument("--faults", type=int, default=most)
        remote.add_argument("--every", type=float, default=1.0, help="mean seconds between two faults")
        remote.add_argument("--clients", type=int, default=clients, help="number of clients of each server")
        remote.add_argument("--seed", type=int, default=1)
    aimed = parts.add_parser("gaps")
    aimed.add_argument("model", help="path of a GGUF file")
    aimed.add_argument("--fault", choices=("kill", "stop", "cable"), default="kill")
    aimed.add_argument("--trials", type=int, default=20)
    virtual = parts.add_parser("simulate")
    virtual.add_argument("--schedules", type=int, default=100_000)
    virtual.add_argument("--seed", type=int, default=0)
    for part in ("drain", "restart", "scale"):
        changed = parts.add_parser(part)
        changed.add_argument("model", help="path of a GGUF file, or a name")
        changed.add_argument("--tokens", type=int, default=400, help="of each stream that is drained")
        changed.add_argument("--after", type=float, default=1.0, help="seconds from its start to the drain")
    given = parser.parse_args()
    if given.part == "simulate":
        print(json.dumps(simulated(given.schedules, given.seed)))
        return
    if given.part in ("machines", "hubs"):
        inject = machine_faults if given.part == "machines" else hub_faults
        found = inject(given.model, given.nodes, given.faults, given.every, given.clients, given.seed)
    elif given.part == "gaps":
        found = aimed_faults(given.model, given.fault, given.trials)
    elif given.part in ("drain", "restart", "scale"):
        found = changes(given.part, given.model, given.tokens, given.after)
    else:
        found = faults(given.model, given.replicas, given.faults, given.every, given.clients, given.seed, given.stops)
    print(json.dumps(found))
    if found.get("different") or found.get("errors"):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
