"""What engines tell between requests: how full they are, and what their caches and steps did.

Snapshots count since an engine began. When its process ends and another one is started they begin again at 0, so what
earlier processes counted is added to what the present one does, and the counters here never fall.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from twofold.core.report import EngineSnapshot, StepReport
from twofold.observe.metrics.instruments import STEP_SECONDS, STEP_TOKENS, Counter, Instruments

ENGINE: Final = "0"
"""The label ``engine``: a model has one."""
MODEL: Final = ("model_name", "engine")
COUNTS: Final = {
    "queries": ("vllm:prefix_cache_queries", "Tokens that were looked up in the prefix cache."),
    "hits": ("vllm:prefix_cache_hits", "Tokens that were found in the prefix cache."),
    "preemptions": ("vllm:num_preemptions", "Times that a running sequence gave up its blocks."),
    "swaps": ("twofold:swaps", "Times that a sequence went to host memory."),
    "evicted": ("twofold:evicted_blocks", "Cached blocks that were forgotten to make room."),
}
"""Counters by the field of a snapshot that they show."""
PIN_EVENTS: Final = ("written", "read", "expired", "refused")
TTL_WORDS: Final = {300.0: "5m", 1800.0: "30m", 3600.0: "1h"}


class EngineMetrics:
    """``EngineObserver``: hears of steps and snapshots of all models, on the event loop."""

    def __init__(self, instruments: Instruments) -> None:
        self._load = _Load(instruments)
        self._cache = _Cache(instruments)
        self._steps = _Steps(instruments)
        self._restarts = instruments.counter(
            "twofold:engine_restarts", "Times that a model's process ended unasked and was started again.", *MODEL
        )

    def on_step(self, model: str, report: StepReport) -> None:
        self._steps.take(model, report)
        self._load.set(model, report.waiting, report.running)

    def on_snapshot(self, model: str, snapshot: EngineSnapshot) -> None:
        self._restarts.add(0, model, ENGINE)
        self._load.set(model, snapshot.waiting, snapshot.running)
        self._cache.take(model, snapshot)
        self._steps.predict(model, snapshot.prediction_error)

    def on_restart(self, model: str) -> None:
        self._restarts.add(1, model, ENGINE)
        self._load.set(model, 0, 0)
        self._cache.restart(model)
        self._steps.predict(model, None)


class _Load:
    """Requests at the engine now."""

    def __init__(self, instruments: Instruments) -> None:
        self._running = instruments.gauge("vllm:num_requests_running", "Sequences that run.", *MODEL)
        self._waiting = instruments.gauge("vllm:num_requests_waiting", "Sequences that wait to run.", *MODEL)

    def set(self, model: str, waiting: int, running: int) -> None:
        self._waiting.set(waiting, model, ENGINE)
        self._running.set(running, model, ENGINE)


class _Steps:
    """Forward passes: their rows, their time, and how well it was foreseen."""

    def __init__(self, instruments: Instruments) -> None:
        self._tokens = instruments.histogram(
            "vllm:iteration_tokens_total", "Rows of a step, of prompts and of answers.", STEP_TOKENS, *MODEL
        )
        self._rows = instruments.counter("twofold:rows", "Rows that were computed, as they are.", *MODEL, "phase")
        self._seconds = instruments.counter(
            "twofold:engine_seconds",
            "Seconds of the engine: rows computes them, moves copies blocks, host is its own time between steps.",
            *MODEL,
            "part",
        )
        self._step = instruments.histogram(
            "twofold:step_seconds", "Seconds of a step's rows, by whose they are.", STEP_SECONDS, *MODEL, "phase"
        )
        self._foreseen = instruments.counter(
            "twofold:predicted_step_seconds", "Measured seconds of steps whose time was predicted.", *MODEL
        )
        self._missed = instruments.counter(
            "twofold:mispredicted_step_seconds", "Seconds by which predictions were off, up or down.", *MODEL
        )
        self._error = instruments.gauge(
            "twofold:step_prediction_error", "How far predicted step times were off lately, as a share.", *MODEL
        )

    def take(self, model: str, report: StepReport) -> None:
        rows = report.decode_rows + report.prefill_rows
        if rows:
            self._tokens.observe(rows, model, ENGINE)
            self._step.observe(report.seconds, model, ENGINE, _phase(report))
        self._rows.add(report.decode_rows, model, ENGINE, "decode")
        self._rows.add(report.prefill_rows, model, ENGINE, "prefill")
        for part, seconds in (("rows", report.seconds), ("moves", report.moves_s), ("host", report.host_s)):
            self._seconds.add(seconds, model, ENGINE, part)
        if report.predicted_s is not None:
            self._foreseen.add(report.seconds, model, ENGINE)
            self._missed.add(abs(report.predicted_s - report.seconds), model, ENGINE)

    def predict(self, model: str, error: float | None) -> None:
        if error is None:
            self._error.drop(model, ENGINE)
        else:
            self._error.set(error, model, ENGINE)


def _phase(report: StepReport) -> str:
    if not report.prefill_rows:
        return "decode"
    return "mixed" if report.decode_rows else "prefill"


class _Cache:
    """The KV cache and what is found again in it."""

    def __init__(self, instruments: Instruments) -> None:
        self._usage = instruments.gauge("vllm:kv_cache_usage_perc", "Share of the KV cache's blocks in use.", *MODEL)
        self._blocks = instruments.gauge("twofold:kv_blocks", "Blocks of the KV cache.", *MODEL, "state")
        self._info = instruments.gauge(
            "vllm:cache_config_info", "The KV cache's sizes; always 1.", *MODEL, "block_size", "num_gpu_blocks"
        )
        self._sizes: dict[str, tuple[str, ...]] = {}
        self._pinned = instruments.gauge("twofold:pinned_blocks", "Blocks that a cache pin protects.", *MODEL)
        self._counts = {
            field: _MonotonicCounter(instruments.counter(name, text, *MODEL)) for field, (name, text) in COUNTS.items()
        }
        self._pins = _MonotonicCounter(
            instruments.counter(
                "twofold:cache_pin_tokens",
                "Tokens of cache pins by time to live: written, read again, expired, or refused for want of room.",
                *MODEL,
                "ttl",
                "event",
            )
        )

    def take(self, model: str, snapshot: EngineSnapshot) -> None:
        self._hold(model, snapshot)
        for name, carried in self._counts.items():
            carried.show(getattr(snapshot, name), model, ENGINE)
        for pins in snapshot.pins:
            ttl = TTL_WORDS.get(pins.ttl_s, f"{pins.ttl_s:g}s")
            for event in PIN_EVENTS:
                self._pins.show(getattr(pins, event), model, ENGINE, ttl, event)

    def restart(self, model: str) -> None:
        for carried in self._counts.values():
            carried.restart(model)
        self._pins.restart(model)

    def _hold(self, model: str, snapshot: EngineSnapshot) -> None:
        blocks = snapshot.blocks
        total = blocks.free + blocks.cached + blocks.held
        self._usage.set(blocks.held / total if total else 0.0, model, ENGINE)
        for state, count in (("free", blocks.free), ("cached", blocks.cached), ("held", blocks.held)):
            self._blocks.set(count, model, ENGINE, state)
        self._pinned.set(snapshot.pinned, model, ENGINE)
        self._info.drop(*self._sizes.get(model, ()))
        self._sizes[model] = (model, ENGINE, str(snapshot.block_size), str(total))
        self._info.set(1, *self._sizes[model])


@dataclass(slots=True)
class _MonotonicCounter:
    """A counter that shows what others count, who begin again at 0 when they are made anew."""

    counter: Counter
    _shown: dict[tuple[str, ...], int] = field(default_factory=dict)

    def show(self, count: int, *labels: str) -> None:
        """The count as it is now. One that fell began again, whether that was told or not."""
        before = self._shown.get(labels, 0)
        self.counter.add(count - before if count >= before else count, *labels)
        self._shown[labels] = count

    def restart(self, model: str) -> None:
        self._shown = {labels: count for labels, count in self._shown.items() if labels[0] != model}
