"""Our server beside others: the same model, machine, requests and load generator, at rising rates.

Requests are streamed completions of random words, greedy, each to its full length; arrivals are a Poisson process at a
share of the rate that ours serves when all requests are there at once. Servers take turns at each rate with the same
arrivals; who is not measured is idle. What has not ended ``grace_s`` after the last arrival is given up: it has missed.
TTFT counts from when a request was due. Objectives are those that the slowest server meets easily when it has one
request at a time: ``TTFT_SCALE`` and ``TPOT_SCALE`` times what it takes then. Goodput is requests that meet both, a
second of arrivals (after DistServe, OSDI 2024).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np

from benchmarks.compare import SETTLE_S
from benchmarks.figures import median, percentile
from benchmarks.http.load import Call, Load, Reply, Told, read_reply
from benchmarks.http.processes import Serving, serving
from benchmarks.http.recipes import MODEL, others, ours
from benchmarks.setting import Setting
from benchmarks.worker import WorkerError

TTFT_SCALE: Final = 3.0
TPOT_SCALE: Final = 2.0
MOST_ROUNDS: Final = 2
PAUSE_S: Final = 0.001
ALONE_LIMIT_S: Final = 120.0
WORDS: Final = "time year people way day man thing woman life child world school state family group country hand part"
FEWER_IS_BETTER: Final = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")


@dataclass(frozen=True, slots=True)
class Sizes:
    """``seconds`` of arrivals in a turn, words in and tokens out of a request (least, most), requests alone."""

    seconds: float
    grace_s: float
    words: tuple[int, int]
    answer: tuple[int, int]
    alone: int
    calibration: int
    shares: tuple[float, ...]

    @property
    def context(self) -> int:
        """Enough for the longest; a word is rarely two tokens."""
        return 2 * self.words[1] + self.answer[1]


FULL: Final = Sizes(30.0, 15.0, (64, 192), (32, 96), 5, 32, (0.05, 0.1, 0.2, 0.4, 0.8))
QUICK: Final = Sizes(2.0, 2.0, (8, 24), (6, 12), 2, 8, (0.1, 0.5))


@dataclass(frozen=True, slots=True)
class Asked:
    """A request of ``words`` random words for ``count`` tokens."""

    due: float
    words: int
    count: int
    seed: int

    def call(self, server: Serving) -> Call:
        words = WORDS.split()
        chosen = np.random.default_rng(self.seed).integers(0, len(words), self.words)
        body = {
            "model": MODEL,
            "prompt": " ".join(words[index] for index in chosen),
            "max_tokens": self.count,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return Call(self.due, "/v1/completions", body | server.recipe.fields)


@dataclass(frozen=True, slots=True)
class Served:
    """What came of a request; ``ttft_s`` is infinite where nothing came, ``tpot_s`` None where there was one token."""

    ttft_s: float
    tpot_s: float | None
    whole: bool

    @classmethod
    def of(cls, reply: Reply, told: Told) -> Served:
        ttft = math.inf if told.first is None else told.first - reply.due
        return cls(ttft, told.tpot_s, told.error is None)


@dataclass(frozen=True, slots=True)
class Objectives:
    ttft_s: float
    tpot_s: float

    def met_by(self, served: Served) -> bool:
        return served.whole and served.ttft_s <= self.ttft_s and (served.tpot_s or 0.0) <= self.tpot_s


def run(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    words, answer = (sum(span) // 2 for span in (sizes.words, sizes.answer))
    print(f"\nservers  {setting.name}, about {words} tokens in and {answer} out, over HTTP")
    floor = setting.prefill_floor(words) + answer * setting.step_floor([words + answer] * 8) / 8
    print(f"  limit: {1 / floor:.1f} requests/s by the cost model, eight at a time", flush=True)
    failures: dict[str, str] = {}
    with ExitStack() as stack:
        servers = _start(setting, sizes, stack, failures)
        alone = {server.name: _alone(server, sizes) for server in servers}
        slowest = (max(found[measure] for found in alone.values()) for measure in ("ttft_s", "tpot_s"))
        objectives = Objectives(*(scale * most for scale, most in zip((TTFT_SCALE, TPOT_SCALE), slowest, strict=True)))
        capacity = _capacity(servers[0], sizes)
        _print_terms(alone, objectives, capacity)
        rows = _measure(servers, sizes, objectives, capacity, min(setting.rounds, MOST_ROUNDS), failures)
    for what, why in failures.items():
        print(f"  {what} failed: {why}")
    return {
        "limit_requests_s": 1 / floor,
        "capacity_requests_s": capacity,
        "alone": alone,
        "objectives": asdict(objectives),
        "rates": rows,
        "failures": failures,
    }


def _start(setting: Setting, sizes: Sizes, stack: ExitStack, failures: dict[str, str]) -> list[Serving]:
    """The servers that serve, warm; ours first. Raises WorkerError where ours does not."""
    arguments = (setting.path, setting.threads, sizes.context)
    servers = [stack.enter_context(serving(ours(*arguments)))]
    for recipe in others(*arguments):
        try:
            servers.append(stack.enter_context(serving(recipe)))
        except WorkerError as error:
            failures[recipe.name] = str(error)
    for server in servers:
        _ask(server, [Asked(0.0, sizes.words[1], 4, 1), Asked(0.0, sizes.words[0], 4, 2)], ALONE_LIMIT_S)
    if len(servers) == 1:
        print("  No other server is installed: `make peers` installs those that are compared.")
    return servers


def _alone(server: Serving, sizes: Sizes) -> dict[str, float]:
    """Medians of requests that come one after the other."""
    words, answer = (sum(span) // 2 for span in (sizes.words, sizes.answer))
    found = []
    for turn in range(sizes.alone):
        found += _ask(server, [Asked(0.0, words, answer, 100 + turn)], ALONE_LIMIT_S)
    if not all(served.whole for served in found):
        raise WorkerError(f"{server.name} does not answer one request at a time in {ALONE_LIMIT_S:.0f} s")
    return {
        "ttft_s": median(served.ttft_s for served in found),
        "tpot_s": median(served.tpot_s or 0.0 for served in found),
    }


def _capacity(server: Serving, sizes: Sizes) -> float:
    """Requests a second when all are there at once."""
    chosen = [Asked(0.0, *_lengths(sizes, seed), seed) for seed in range(200, 200 + sizes.calibration)]
    began = time.perf_counter()
    _ask(server, chosen, ALONE_LIMIT_S)
    return len(chosen) / (time.perf_counter() - began)


def _measure(
    servers: Sequence[Serving],
    sizes: Sizes,
    objectives: Objectives,
    capacity: float,
    rounds: int,
    failures: dict[str, str],
) -> list[dict[str, Any]]:
    """A row for each rate: what each server made of it, and where ours is ahead."""
    rows = []
    for share in sizes.shares:
        found: dict[str, list[Served]] = {}
        for turn in range(rounds):
            asked = _arrivals(sizes, share * capacity, 1_000 * (turn + 1))
            for server in servers if turn % 2 == 0 else reversed(servers):
                if server.name in failures:
                    continue
                try:
                    found.setdefault(server.name, []).extend(_turn(server, asked, sizes))
                except WorkerError as error:
                    failures[server.name] = str(error)
        table = {name: _figures(served, objectives, rounds * sizes.seconds) for name, served in found.items()}
        rows.append({"share": share, "requests_s": share * capacity, "servers": table, "ahead": _ahead(table)})
        _print_row(rows[-1])
    return rows


def _turn(server: Serving, asked: Sequence[Asked], sizes: Sizes) -> list[Served]:
    """One server at one rate. Raises WorkerError where it does not come to rest afterwards."""
    time.sleep(SETTLE_S)
    served = _ask(server, asked, sizes.seconds + sizes.grace_s)
    (rest,) = _ask(server, [Asked(0.0, 1, 1, 3)], ALONE_LIMIT_S)
    if not rest.whole:
        raise WorkerError(f"{server.name} answers nothing in {ALONE_LIMIT_S:.0f} s after a turn")
    return served


def _ask(server: Serving, asked: Sequence[Asked], limit_s: float) -> list[Served]:
    replies = Load(server.port, PAUSE_S).run([one.call(server) for one in asked], limit_s)
    return [Served.of(reply, read_reply(reply)) for reply in replies]


def _arrivals(sizes: Sizes, rate: float, seed: int) -> list[Asked]:
    """A Poisson process; at least one request."""
    random = np.random.default_rng(seed)
    found: list[Asked] = []
    moment = 0.0
    while not found or moment < sizes.seconds:
        found.append(Asked(moment, *_lengths(sizes, seed + len(found)), seed + len(found)))
        moment += float(random.exponential(1 / rate))
    return found


def _lengths(sizes: Sizes, seed: int) -> tuple[int, int]:
    random = np.random.default_rng((7, seed))
    return int(random.integers(*sizes.words, endpoint=True)), int(random.integers(*sizes.answer, endpoint=True))


def _figures(found: Sequence[Served], objectives: Objectives, seconds: float) -> dict[str, float | None]:
    """None where a figure has no bound, for too many requests got nothing."""
    ttfts = [served.ttft_s for served in found]
    tpots = [served.tpot_s for served in found if served.tpot_s is not None]
    met = sum(objectives.met_by(served) for served in found)
    figures = {
        "requests": len(found),
        "whole_share": sum(served.whole for served in found) / len(found),
        "goodput_requests_s": met / seconds,
        "ttft_p50_s": percentile(ttfts, 0.5),
        "ttft_p99_s": percentile(ttfts, 0.99),
        "tpot_p50_s": percentile(tpots, 0.5),
        "tpot_p99_s": percentile(tpots, 0.99),
    }
    return {name: value if math.isfinite(value) else None for name, value in figures.items()}


def _ahead(table: dict[str, dict[str, float | None]]) -> dict[str, list[str]]:
    """By other server, the measures in which ours is not behind."""
    us = table.get("twofold", {})
    return {name: _won(us, them) for name, them in table.items() if name != "twofold"} if us else {}


def _won(us: dict[str, float | None], them: dict[str, float | None]) -> list[str]:
    def value(row: dict[str, float | None], measure: str) -> float:
        found = row[measure]
        return math.inf if found is None else found

    won = [measure for measure in FEWER_IS_BETTER if value(us, measure) <= value(them, measure)]
    goodput = "goodput_requests_s"
    return [*won, goodput] if value(us, goodput) >= value(them, goodput) else won


def _print_terms(alone: dict[str, dict[str, float]], objectives: Objectives, capacity: float) -> None:
    for name, found in alone.items():
        print(f"  {name:10s} alone: TTFT {found['ttft_s'] * 1e3:.0f} ms, TPOT {found['tpot_s'] * 1e3:.1f} ms")
    print(
        f"  ours serves {capacity:.2f} requests/s when all are there; "
        f"objectives: TTFT {objectives.ttft_s:.2f} s, TPOT {objectives.tpot_s * 1e3:.0f} ms",
        flush=True,
    )


def _print_row(row: dict[str, Any]) -> None:
    print(f"  {row['requests_s']:.2f} requests/s ({row['share']:g} of ours)")
    for name, figures in row["servers"].items():
        ttft = " ".join(_ms(figures[f"ttft_p{rank}_s"]) for rank in (50, 99))
        tpot = " ".join(_ms(figures[f"tpot_p{rank}_s"]) for rank in (50, 99))
        print(
            f"    {name:10s} {figures['requests']:4d} requests, {figures['whole_share']:4.0%} whole, "
            f"goodput {figures['goodput_requests_s']:.2f}/s; ms P50 P99: TTFT {ttft}, TPOT {tpot}"
        )
    for name, won in row["ahead"].items():
        behind = [measure for measure in (*FEWER_IS_BETTER, "goodput_requests_s") if measure not in won]
        print(f"    against {name}: {'ahead in all' if not behind else 'behind in ' + ', '.join(behind)}", flush=True)


def _ms(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1e3:.0f}"
