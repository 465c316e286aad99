"""What watching costs: ``python -m benchmarks.live engine``, ``server FOLDER`` or ``view``. The last line is JSON.

engine   µs to plan and commit a step of 32 generating sequences, unwatched and watched, in alternation
server   time per token and gaps of 32 streams with 3 watchers and without, in alternation; needs the default model. A
         call takes about a minute and adds rounds to those in FOLDER
view     a browser that draws 100 lanes at 200 steps a second and 10 ticks a second; needs Chromium
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final

import httpx2
import msgspec
from playwright.sync_api import CDPSession, sync_playwright

from benchmarks.bookkeeping import SEQUENCES, STEP_S, make_scheduler, make_sequence, outcome_of
from tests.server.live import TWOFOLD, LiveServer, live_server
from tests.support.tiny import TinyOptions, write_tiny
from twofold.bench.compare import compare
from twofold.bench.report.document import Document, read
from twofold.engine.scheduler.scheduler import Scheduler

ROUNDS: Final = 20
STEPS: Final = 100
LIVE: Final = "/v1/twofold/live?blocks=1"
WATCHERS: Final = 3
STREAMS: Final = 32
SLOTS: Final = 100
VIEW_S: Final = 12.0
PIECE_S: Final = 40.0
FRAMES: Final = """async seconds => {
    const gaps = [];
    let last = performance.now();
    const until = last + seconds * 1000;
    while (last < until) {
        await new Promise(requestAnimationFrame);
        const now = performance.now();
        gaps.push(now - last);
        last = now;
    }
    gaps.sort((a, b) => a - b);
    return { frames: gaps.length, gap_p50_ms: gaps[gaps.length >> 1], gap_p95_ms: gaps[Math.floor(gaps.length * .95)] };
}"""


def engine() -> dict[str, Any]:
    """Seconds of a step, and what watching adds."""
    scheduler = make_scheduler()
    costs: dict[bool, list[float]] = {False: [], True: []}
    clock = [0.0, 0.0]
    for number in range(2 * ROUNDS):
        watched = number % 2 == 1
        if watched:
            scheduler.watch(clock[0])
        else:
            scheduler.lanes.unwatch()
        costs[watched].append(_steps(scheduler, clock))
    plain, seen = median(costs[False]), median(costs[True])
    print(f"{SEQUENCES} sequences: {plain * 1e6:.0f} µs a step unwatched, {seen * 1e6:.0f} µs watched")
    return {"unwatched_s": plain, "watched_s": seen}


def _steps(scheduler: Scheduler, clock: list[float]) -> float:
    """Median seconds of a step; finished sequences are replaced."""
    costs = []
    for _ in range(STEPS):
        while scheduler.waiting + scheduler.running < SEQUENCES:
            scheduler.add(make_sequence(int(clock[1]), clock[0]), clock[0])
            clock[1] += 1
        began = time.perf_counter()
        plan = scheduler.plan(clock[0])
        took = time.perf_counter() - began
        outcome = outcome_of(plan)
        clock[0] += STEP_S
        began = time.perf_counter()
        scheduler.commit(plan, outcome, clock[0])
        scheduler.lanes.take()
        costs.append(took + time.perf_counter() - began)
    return median(costs)


def server(name: str) -> dict[str, Any]:
    """Adds rounds to those in the folder ``name``, for PIECE_S at least, and compares the times per token and the gaps
    of all, and the shares of a core that the HTTP process took."""
    folder = Path(name)
    folder.mkdir(parents=True, exist_ok=True)
    began, number = time.monotonic(), len(list(folder.glob("plain-*.json")))
    cores: dict[str, list[float]] = {"plain": [], "watched": []}
    with tempfile.TemporaryDirectory() as own, live_server(Path(own)) as live:
        _bench(live, Path(own) / "warm.json")
        while time.monotonic() - began < PIECE_S:
            for kind in sorted(cores, reverse=number % 2 == 1):  # each of them comes first in turn
                with _Watchers(live, WATCHERS if kind == "watched" else 0):
                    cores[kind].append(_bench(live, folder / f"{kind}-{number}.json"))
            number += 1
    found = compare(_pooled(folder, "plain"), _pooled(folder, "watched"))
    rows = [row for row in found.pairs[0].rows if row.measure in {"tpot_s", "itl_s"}]
    for row in rows:
        print(f"{row.measure} {row.statistic}: {row.a:.5f} s, watched {row.b:.5f} s, {row.verdict}")
    shares = {kind: median(found) for kind, found in cores.items()}
    return {"rounds": number, "http_core": shares, "rows": found.to_json()["pairs"][0]["rows"]}


def _pooled(folder: Path, kind: str) -> Document:
    """The runs of all rounds as those of one document."""
    documents = [read(path.read_bytes()) for path in sorted(folder.glob(f"{kind}-*.json"))]
    return msgspec.structs.replace(documents[0], runs=[run for document in documents for run in document.runs])


class _Watchers:
    """Streams that are read while the block runs."""

    def __init__(self, live: LiveServer, count: int) -> None:
        self._url, self._count = live.url, count
        self._clients: list[httpx2.Client] = []

    def __enter__(self) -> None:
        for _ in range(self._count):
            client = httpx2.Client(base_url=self._url, timeout=60.0)
            self._clients.append(client)
            threading.Thread(target=self._read, args=(client,), daemon=True).start()

    def _read(self, client: httpx2.Client) -> None:
        try:
            with client.stream("GET", LIVE) as stream:
                for _ in stream.iter_raw():
                    pass
        except httpx2.HTTPError:
            return

    def __exit__(self, *_: object) -> None:
        for client in self._clients:
            client.close()


def _bench(live: LiveServer, path: Path) -> float:
    """Measures a round; returns the share of a core of the HTTP process."""
    load = ["--concurrency", str(STREAMS), "--requests", str(2 * STREAMS), "--input-tokens", "64"]
    command = [*TWOFOLD, "bench", "serve", "--url", live.url, *load, "--output-tokens", "64", "--ignore-eos"]
    before, began = _seconds_of(live.process.pid), time.monotonic()
    subprocess.run([*command, "--quiet", "--output", str(path)], check=True, stdout=subprocess.DEVNULL)
    return (_seconds_of(live.process.pid) - before) / (time.monotonic() - began)


def _seconds_of(pid: int) -> float:
    """Seconds of processor time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / 100


def recording(seconds: float) -> str:
    """A live stream of SLOTS busy lanes at 200 steps and 10 ticks a second."""
    names = [
        "n",
        "t",
        "end",
        "ms",
        "host",
        "foreseen",
        "decode",
        "prefill",
        "drafts",
        "logits",
        "attended",
        "read",
        "draft_ms",
        "budget",
        "why",
        "times",
    ]
    group = {"blocks": 4096, "free": 1000, "cached": 1000, "pinned": 10, "shared": 50, "store": 0, "others": 0}
    engine = {"slots": SLOTS, "rows": 512, "block_size": 16, "budget": "live", "tpot_target_ms": 50.0}
    engine["groups"] = [{"window": None, "blocks": 4096, "block_bytes": 4096}]
    machine = {"bytes_per_s": 1e11, "flops_per_s": 1e13, "attention_flops_per_s": 1e13}
    work = {"weight_bytes": 1e8, "head_bytes": 1e7, "row_flops": 1e8, "logit_flops": 1e7, "pair_flops": 1e3}
    head = {"schema": "twofold.live/1", "t": 0.0, "model": "many", "queue": [3, SLOTS], "kv": [1000, 1000, 2096, 10]}
    head |= {"engine": engine, "machine": machine, "work": {**work, "kv_bytes": 1e4, "windows": False}}
    lanes: list[list[Any]] = []
    for slot in range(SLOTS):
        lanes += [[slot, "+", 0, {"id": f"req_{slot}", "tier": "default", "prompt": 100}], [slot, "a", 0, slot, 0, 0]]
    lines = [{"event": "hello", "data": {**head, "steps": {name: [] for name in names}, "lanes": lanes}}]
    for tick in range(int(10 * seconds)):
        numbers = range(20 * tick, 20 * tick + 20)
        rows = [
            [n, 5 * n, 5 * n + 4.8, 4.8, 0.2, 5, SLOTS, n % 40, 0, SLOTS, 9, 9, 0, 40, "budget", 1] for n in numbers
        ]
        steps = {name: list(values) for name, values in zip(names, zip(*rows, strict=True), strict=True)}
        told = [[slot, "o", 100 * tick, tick + 1] for slot in range(SLOTS)]
        for slot in range(tick % 10, SLOTS, 10):
            told += [[slot + SLOTS * tick, ".", 100 * tick, "stop", 9]]
        data = {"t": 100.0 * (tick + 1), "queue": [tick % 5, SLOTS], "kv": head["kv"], "steps": steps, "lanes": told}
        lines.append({"event": "tick", "data": data})
        if tick % 10 == 0:
            lines.append(
                {"event": "blocks", "data": {"t": 1.0, "groups": [{**group, "held": [[1, 2036]]}], "trees": []}}
            )
    return "\n".join(map(json.dumps, lines))


def view() -> dict[str, Any]:
    """The processor time of the page, and then, while a script asks for each frame, the gaps between frames."""
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        folder = Path(name)
        tiny = write_tiny(folder / "tiny.gguf", TinyOptions("llama", vocab=300, context=512))
        (folder / "many.jsonl").write_text(recording(2 * VIEW_S + 8))
        with live_server(folder, f"tiny={tiny.path}", "--threads", "1") as live:
            chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = chromium.new_page(viewport={"width": 1440, "height": 1000})
            page.goto(f"{live.url}/#/engine")
            page.locator("input[type=file]").set_input_files(folder / "many.jsonl")
            page.wait_for_timeout(6000)
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            before = _busy(session)
            page.wait_for_timeout(VIEW_S * 1000)
            after = _busy(session)
            frames = page.evaluate(FRAMES, VIEW_S)
            chromium.close()
    found = {**frames, **{name: (after[name] - before[name]) / VIEW_S for name in after}}
    print(f"{SLOTS} lanes, 200 steps/s, 10 ticks/s: {found}")
    return dict(found)


def _busy(session: CDPSession) -> dict[str, float]:
    """Seconds of the page's main thread: tasks, and scripts among them."""
    metrics = {each["name"]: each["value"] for each in session.send("Performance.getMetrics")["metrics"]}
    return {"task_core": metrics["TaskDuration"], "script_core": metrics["ScriptDuration"]}


if __name__ == "__main__":
    parts: dict[str, Callable[..., dict[str, Any]]] = {"engine": engine, "server": server, "view": view}
    print(json.dumps(parts[sys.argv[1]](*sys.argv[2:])))
