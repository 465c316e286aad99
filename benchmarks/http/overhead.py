"""Overhead of HTTP: the server and its engine alone take turns with the same prompts and options.

throughput  output tokens per second of ``STREAMS`` simultaneous requests over HTTP, as a share of those of the engine
            in a separate process without threads, messages or sockets
TTFT        of an idle server, from before connecting to the first event with text, less that of the engine
processor   seconds per streamed token of the HTTP process, and of the worker for receiving and sending messages

The load generator shares the machine with the server; its processor time is reported too.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from benchmarks.compare import ROOT, SETTLE_S, our_command
from benchmarks.figures import median, random_tokens
from benchmarks.http.asking import ask_all, of_tokens
from benchmarks.http.messages import send_floor_s, worker_message_s
from benchmarks.http.processes import Serving, cpu_s, serving
from benchmarks.http.recipes import ours
from benchmarks.setting import Setting
from benchmarks.worker import Worker
from twofold.core.ranks import nearest_rank

STREAMS: Final = 32
GOAL_SHARE: Final = 0.95
GOAL_TTFT_S: Final = 0.005
GOAL_CPU_S: Final = 60e-6
OPTIONS: Final = {"token_budget": "live", "overlap": True}
"""Defaults of ``twofold serve``, applied to the engine alone."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """TTFT uses ``pairs`` prompts of ``short`` tokens; throughput uses ``prompt`` and ``answer``."""

    prompt: int
    answer: int
    short: int
    pairs: int


FULL: Final = Sizes(128, 256, 32, 60)
QUICK: Final = Sizes(16, 24, 16, 5)


@dataclass(frozen=True, slots=True)
class Turn:
    """One round of both. Processor seconds are per token."""

    engine_tok_s: float
    http_tok_s: float
    http_cpu_s: float
    receive_cpu_s: float
    client_cpu_s: float

    @property
    def share(self) -> float:
        return self.http_tok_s / self.engine_tok_s


def run(setting: Setting) -> dict[str, Any]:
    sizes = QUICK if setting.quick else FULL
    print(f"\nserver  {setting.name}, {STREAMS} streams of {sizes.prompt} tokens in, {sizes.answer} out, over HTTP")
    limit = STREAMS * sizes.answer / setting.serve_floor(STREAMS, sizes.prompt, sizes.answer)
    floor, sending = send_floor_s(), worker_message_s(STREAMS)
    print(
        f"  limit: {limit:,.0f} tok/s by the cost model; {floor * 1e6:.1f} µs to write an event to a socket", flush=True
    )
    flags = ("--no-enable-prefix-caching", "--speculative-config", '{"method": "off"}', "--max-num-seqs", f"{STREAMS}")
    with (
        Worker("twofold", our_command(), ROOT.parent) as engine,
        serving(ours(setting.path, setting.threads, _context(sizes), *flags)) as server,
    ):
        _load_engine(engine, setting, sizes)
        _http(server, setting, sizes, 900)
        _alone(engine, setting, sizes, 900)
        turns = [_turn(engine, server, setting, sizes, turn) for turn in range(setting.rounds)]
        added = _added_ttft(engine, server, setting, sizes)
    report = _report(turns, added, sending) | {"limit_tok_s": limit, "send_floor_us": floor * 1e6}
    _print(report)
    return report


def _context(sizes: Sizes) -> int:
    return 2 * (sizes.prompt + sizes.answer)


def _load_engine(engine: Worker, setting: Setting, sizes: Sizes) -> None:
    engine.ask(
        op="load",
        path=str(setting.path),
        threads=setting.threads,
        context=_context(sizes),
        streams=STREAMS,
        options=OPTIONS,
    )


def _turn(engine: Worker, server: Serving, setting: Setting, sizes: Sizes, turn: int) -> Turn:
    """Runs both once, in alternating order."""
    alone = 0.0
    http: tuple[float, ...] = ()
    for is_http in _order(turn):
        time.sleep(SETTLE_S)
        if is_http:
            http = _http(server, setting, sizes, turn)
        else:
            alone = _alone(engine, setting, sizes, turn)
    return Turn(alone, *http)


def _order(turn: int) -> tuple[bool, bool]:
    return (True, False) if turn % 2 == 0 else (False, True)


def _alone(engine: Worker, setting: Setting, sizes: Sizes, seed: int) -> float:
    """Tokens per second of the engine, detokenising included."""
    prompts = _prompts(setting, sizes, seed)
    seconds: float = engine.ask(op="steps", prompts=prompts, count=sizes.answer, text=True)["whole"]
    return STREAMS * sizes.answer / seconds


def _http(server: Serving, setting: Setting, sizes: Sizes, seed: int) -> tuple[float, float, float, float]:
    """Tokens per second; processor seconds per token of the server, of its worker's main thread and of the client."""
    (worker,) = server.workers()
    before = (cpu_s(server.pid), cpu_s(worker, main_only=True))
    record = ask_all(server, of_tokens(_prompts(setting, sizes, seed), sizes.answer))
    after = (cpu_s(server.pid), cpu_s(worker, main_only=True))
    tokens = STREAMS * sizes.answer
    first, last = min(s.sent_s or 0.0 for s in record.samples), max(s.last_s or 0.0 for s in record.samples)
    spent = (*(late - early for early, late in zip(before, after, strict=True)), record.client.cpu_s)
    http, receiving, client = (each / tokens for each in spent)
    return tokens / (last - first), http, receiving, client


def _added_ttft(engine: Worker, server: Serving, setting: Setting, sizes: Sizes) -> list[tuple[float, float]]:
    """Seconds of TTFT of the engine and over HTTP, for each prompt."""
    found = []
    for pair in range(sizes.pairs):
        prompt = random_tokens(sizes.short, setting.vocabulary, 10_000 + pair)
        ask = {True: lambda ids=prompt: _http_ttft(server, ids), False: lambda ids=prompt: _engine_ttft(engine, ids)}
        seconds = {is_http: ask[is_http]() for is_http in _order(pair)}
        found.append((seconds[False], seconds[True]))
    return found


def _http_ttft(server: Serving, prompt: list[int]) -> float:
    (sample,) = ask_all(server, of_tokens([prompt], 2)).samples
    assert sample.first_s is not None
    assert sample.started_s is not None
    return sample.first_s - sample.started_s


def _engine_ttft(engine: Worker, prompt: list[int]) -> float:
    (served,) = engine.ask(op="drive", arrivals=[{"at": 0.0, "prompt": prompt, "count": 2}])
    seconds: float = served["ttft"]
    return seconds


def _prompts(setting: Setting, sizes: Sizes, seed: int) -> list[list[int]]:
    return [random_tokens(sizes.prompt, setting.vocabulary, 100 * seed + stream) for stream in range(STREAMS)]


def _report(turns: Sequence[Turn], added: Sequence[tuple[float, float]], sending: float) -> dict[str, Any]:
    http, receiving = median(turn.http_cpu_s for turn in turns), median(turn.receive_cpu_s for turn in turns)
    gains = sorted(over_http - alone for alone, over_http in added)
    return {
        "engine_tok_s": median(turn.engine_tok_s for turn in turns),
        "http_tok_s": median(turn.http_tok_s for turn in turns),
        "share": median(turn.share for turn in turns),
        "shares": [turn.share for turn in turns],
        "client_cpu_us": median(turn.client_cpu_s for turn in turns) * 1e6,
        "http_cpu_us": http * 1e6,
        "worker_hearing_us": receiving * 1e6,
        "worker_telling_us": sending * 1e6,
        "cpu_us": (http + receiving + sending) * 1e6,
        "engine_ttft_s": nearest_rank(sorted(alone for alone, _ in added), 0.5),
        "http_ttft_s": nearest_rank(sorted(over_http for _, over_http in added), 0.5),
        "added_ttft_s": nearest_rank(gains, 0.5),
        "added_ttft_p90_s": nearest_rank(gains, 0.9),
    }


def _print(report: dict[str, Any]) -> None:
    shares = ", ".join(f"{share:.1%}" for share in report["shares"])
    print(
        f"  {report['http_tok_s']:,.0f} tok/s over HTTP, {report['engine_tok_s']:,.0f} of the engine alone: "
        f"{report['share']:.1%} (goal ≥ {GOAL_SHARE:.0%}; turns {shares})"
    )
    print(
        f"  TTFT P50 {report['http_ttft_s'] * 1e3:.1f} ms over HTTP, {report['engine_ttft_s'] * 1e3:.1f} ms alone: "
        f"{report['added_ttft_s'] * 1e3:+.1f} ms, P90 {report['added_ttft_p90_s'] * 1e3:+.1f} "
        f"(goal ≤ {GOAL_TTFT_S * 1e3:.0f} ms)"
    )
    print(
        f"  processor time of a token: {report['cpu_us']:.0f} µs (goal ≤ {GOAL_CPU_S * 1e6:.0f}): HTTP process "
        f"{report['http_cpu_us']:.0f}, worker receives {report['worker_hearing_us']:.1f}, "
        f"sends {report['worker_telling_us']:.1f}; the load generator took {report['client_cpu_us']:.0f}",
        flush=True,
    )
