"""Twofold's server compared with others: the same model, machine, requests and load generator, at rising rates.

Requests are greedy streamed completions of random words, each to its full length. Arrivals are a Poisson process at a
share of the rate that Twofold serves when all requests arrive at once. Servers take turns at each rate with the same
arrivals and prompts; no prompt repeats, and the other servers are idle. A request that is still open ``grace_s`` after
the last arrival is cancelled and misses its objectives. TTFT counts from when a request was due. The objectives are
``TTFT_SCALE`` and ``TPOT_SCALE`` times the TTFT and TPOT of a lone request on the slowest server. Goodput is the
requests that meet both per second of arrivals (after DistServe, OSDI 2024).
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.compare import SETTLE_S
from benchmarks.http.asking import ListedLoad, ask, ask_all
from benchmarks.http.processes import Serving, serving
from benchmarks.http.recipes import others, ours
from benchmarks.setting import Setting
from benchmarks.worker import WorkerError
from twofold.bench.load.base import Ask
from twofold.bench.load.lengths import Fixed, Uniform
from twofold.bench.load.synthetic import Arrivals, ClosedLoop, OpenLoop, RandomRequests
from twofold.bench.metrics.goodput import MeasuredGoodput, Objectives
from twofold.bench.metrics.requests import RequestFigures, request_figures
from twofold.bench.metrics.summary import Latency, summarise
from twofold.bench.prompts.local import local_counter
from twofold.bench.prompts.prompter import Prompter, make_prompter
from twofold.bench.record import plain
from twofold.core.errors import NetworkError

TTFT_SCALE: Final = 3.0
TPOT_SCALE: Final = 2.0
MAX_ROUNDS: Final = 2
FEWER_IS_BETTER: Final = ("ttft_p50_s", "ttft_p99_s", "tpot_p50_s", "tpot_p99_s")


@dataclass(frozen=True, slots=True)
class Sizes:
    """``seconds`` of arrivals in a round; requests for measuring ``alone`` and, all at once, for ``calibration``."""

    seconds: float
    grace_s: float
    prompt: Uniform
    answer: Uniform
    alone: int
    calibration: int
    shares: tuple[float, ...]

    @property
    def context(self) -> int:
        return 2 * self.prompt.most + self.answer.most

    @property
    def middle(self) -> tuple[int, int]:
        """Input and output tokens of the mean request."""
        return (self.prompt.least + self.prompt.most) // 2, (self.answer.least + self.answer.most) // 2

    def requests(self, seed: int) -> RandomRequests:
        return RandomRequests(self.prompt, self.answer, seed=seed)


FULL: Final = Sizes(30.0, 15.0, Uniform(64, 192), Uniform(32, 96), 5, 32, (0.05, 0.1, 0.2, 0.4, 0.8))
QUICK: Final = Sizes(2.0, 2.0, Uniform(8, 24), Uniform(6, 12), 2, 8, (0.1, 0.5))


def run(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    prompt, answer = sizes.middle
    print(f"\nservers  {setting.name}, about {prompt} tokens in and {answer} out, over HTTP")
    floor = setting.serve_floor(8, prompt, answer) / 8
    print(f"  limit: {1 / floor:.1f} requests/s by the cost model, eight at a time", flush=True)
    failures: dict[str, str] = {}
    counter = local_counter(str(setting.path), chat=False, models=setting.path.parent)
    prompter = make_prompter(counter, chat=False, seed=0)
    with ExitStack() as stack:
        servers = _start(setting, sizes, prompter, stack, failures)
        alone = {server.name: _alone(server, sizes, prompter.with_seed(1)) for server in servers}
        ttft, tpot = (max(found[measure] for found in alone.values()) for measure in ("ttft_s", "tpot_s"))
        objectives = Objectives(ttft=TTFT_SCALE * ttft, tpot=TPOT_SCALE * tpot)
        capacity = _capacity(servers[0], sizes, prompter.with_seed(2))
        _print_terms(alone, objectives, capacity)
        contest = Contest(servers, sizes, prompter, objectives, min(setting.rounds, MAX_ROUNDS), failures)
        rows = [contest.at(share, capacity) for share in sizes.shares]
    for what, reason in failures.items():
        print(f"  {what} failed: {reason}")
    return {
        "limit_requests_s": 1 / floor,
        "capacity_requests_s": capacity,
        "alone": alone,
        "objectives": {f"{name}_s": limit for name, limit in objectives.limits()},
        "rates": rows,
        "failures": failures,
    }


def _start(
    setting: Setting, sizes: Sizes, prompter: Prompter, stack: ExitStack, failures: dict[str, str]
) -> list[Serving]:
    """The servers that started, after a warm-up; Twofold first. Raises WorkerError if Twofold does not start."""
    arguments = (setting.path, setting.threads, sizes.context)
    servers = [stack.enter_context(serving(ours(*arguments)))]
    for recipe in others(*arguments):
        try:
            servers.append(stack.enter_context(serving(recipe)))
        except WorkerError as error:
            failures[recipe.name] = str(error)
    for server in servers:
        ask(server, ListedLoad(Ask(0, 0.0, sizes.prompt.most, 4), Ask(1, 0.0, sizes.prompt.least, 4)), prompter)
    if len(servers) == 1:
        print("  No other server is installed: `make peers` installs them.")
    return servers


def _alone(server: Serving, sizes: Sizes, prompter: Prompter) -> dict[str, float]:
    """Median TTFT and TPOT, in seconds, of sequential requests."""
    prompt, answer = sizes.middle
    one_by_one = ClosedLoop(1, RandomRequests(Fixed(prompt), Fixed(answer)), requests=sizes.alone)
    latency = Latency.of(request_figures(ask_all(server, one_by_one, prompter)))
    return {"ttft_s": latency.ttft_s.p50 or 0.0, "tpot_s": latency.tpot_s.p50 or 0.0}


def _capacity(server: Serving, sizes: Sizes, prompter: Prompter) -> float:
    """Requests per second when all arrive at once."""
    at_once = OpenLoop(Arrivals(math.inf), sizes.requests(200), requests=sizes.calibration)
    achieved = summarise(ask_all(server, at_once, prompter)).rates.achieved
    assert achieved is not None
    return achieved.requests_per_s


@dataclass(frozen=True, slots=True)
class Contest:
    """Servers that take turns at a rate. One that fails is added to ``failures`` and no longer measured."""

    servers: Sequence[Serving]
    sizes: Sizes
    prompter: Prompter
    objectives: Objectives
    rounds: int
    failures: dict[str, str]

    def at(self, share: float, capacity: float) -> dict[str, Any]:
        """Measures each server at ``share`` of Twofold's capacity, and lists where Twofold is ahead."""
        found: dict[str, list[RequestFigures]] = {}
        for turn in range(self.rounds):
            seed = 1_000 * (turn + 1)
            load = OpenLoop(Arrivals(share * capacity), self.sizes.requests(seed), self.sizes.seconds)
            prompter = self.prompter.with_seed(seed + self.sizes.shares.index(share))
            for server in self.servers if turn % 2 == 0 else reversed(self.servers):
                if server.name in self.failures:
                    continue
                try:
                    found.setdefault(server.name, []).extend(self._turn(server, load, prompter))
                except (WorkerError, NetworkError) as error:
                    self.failures[server.name] = str(error)
        seconds = self.rounds * self.sizes.seconds
        table = {name: figures(served, self.objectives, seconds) for name, served in found.items()}
        row = {"share": share, "requests_s": share * capacity, "servers": table, "ahead": _ahead(table)}
        _print_row(row)
        return row

    def _turn(self, server: Serving, load: OpenLoop, prompter: Prompter) -> Sequence[RequestFigures]:
        """Runs one server once. Raises WorkerError if it cannot serve a short request afterwards."""
        time.sleep(SETTLE_S)
        record = ask(server, load, prompter, self.sizes.grace_s)
        ask_all(server, ListedLoad(Ask(0, 0.0, 1, 1)), self.prompter)
        return request_figures(record)


def figures(found: Sequence[RequestFigures], objectives: Objectives, seconds: float) -> dict[str, Any]:
    """Figures of one server; a percentile is None if too many requests failed or received nothing."""
    goodput, latency = MeasuredGoodput.of(found, objectives, seconds), Latency.of(found)
    row: dict[str, Any] = plain(
        {
            "requests": len(found),
            "whole_share": sum(each.outcome == "ok" for each in found) / max(1, len(found)),
            "goodput_requests_s": goodput.requests_per_s,
            "ttft_p50_s": latency.ttft_s.p50,
            "ttft_p99_s": latency.ttft_s.p99,
            "tpot_p50_s": latency.tpot_s.p50,
            "tpot_p99_s": latency.tpot_s.p99,
        }
    )
    return row


def _ahead(table: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """For each other server, the measures in which Twofold is not behind."""
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
        f"  ours serves {capacity:.2f} requests/s when all arrive at once; objectives: {objectives}",
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
