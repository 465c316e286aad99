"""Metrics of engines: their load, their caches and their steps.

Snapshots have counts since the engine's process started. The counts of a restarted process are added to those of
earlier ones, so the counters here never fall.
"""

from __future__ import annotations

from typing import Final

from twofold.core.report import EngineSnapshot, StepReport
from twofold.core.request import TTL_SECONDS
from twofold.observe.metrics.instruments import STEP_SECONDS, STEP_TOKENS, Counter, Gauge, Instruments

ENGINE: Final = "0"
"""The value of the label ``engine`` in metrics of requests, which may run on several engines."""
MODEL: Final = ("model_name", "engine")
"""The label ``engine`` is the number of the model's replica."""
COUNTS: Final = {
    "queries": ("vllm:prefix_cache_queries", "Tokens that were looked up in the prefix cache."),
    "hits": ("vllm:prefix_cache_hits", "Tokens that were found in the prefix cache."),
    "preemptions": ("vllm:num_preemptions", "Preemptions of running sequences."),
    "swaps": ("twofold:swaps", "Sequences that were swapped to host memory."),
    "evicted": ("twofold:evicted_blocks", "Cached blocks that were evicted."),
    "masks_narrowed": (
        "twofold:grammar_masks_narrowed",
        "Sampled tokens of structured outputs for which the token limit narrowed the grammar's choice.",
    ),
}
"""Counters by the field of a snapshot."""
DRAFT_COUNTS: Final = {
    "drafts": ("vllm:spec_decode_num_drafts", "Steps with draft tokens, counted for each sequence."),
    "drafted": ("vllm:spec_decode_num_draft_tokens", "Draft tokens that were computed."),
    "accepted": ("vllm:spec_decode_num_accepted_tokens", "Draft tokens that were accepted."),
}
"""Counters by the field of a snapshot's ``drafts``."""
STORE_EVENTS: Final = {
    "loads": "loaded",
    "declined": "declined",
    "written": "written",
    "evicted": "evicted",
    "bad": "damaged",
    "failed_reads": "read_failed",
    "failed_writes": "write_failed",
}
"""Events of the KV store by the field of a snapshot's ``store`` that counts them."""
PIN_EVENTS: Final = ("written", "read", "expired", "refused")
TTLS: Final = {seconds: ttl for ttl, seconds in TTL_SECONDS.items()}


class EngineMetrics:
    """``EngineObserver`` of all models, on the event loop."""

    def __init__(self, instruments: Instruments) -> None:
        gauge, counter, histogram = instruments.gauge, instruments.counter, instruments.histogram
        self._running = gauge("vllm:num_requests_running", "Running sequences.", *MODEL)
        self._waiting = gauge("vllm:num_requests_waiting", "Waiting sequences.", *MODEL)
        self._tokens = histogram(
            "vllm:iteration_tokens_total", "Rows of a step, prefill and decode.", STEP_TOKENS, *MODEL
        )
        self._rows = counter("twofold:rows", "Computed rows.", *MODEL, "phase")
        self._seconds = counter(
            "twofold:engine_seconds",
            "Seconds of the engine: rows computes them, moves copies blocks, host is its own time between steps.",
            *MODEL,
            "part",
        )
        self._step = histogram(
            "twofold:step_seconds", "Seconds of a step's rows, by the phase of its rows.", STEP_SECONDS, *MODEL, "phase"
        )
        self._predicted_steps = counter(
            "twofold:predicted_step_seconds", "Measured seconds of steps whose time was predicted.", *MODEL
        )
        self._prediction_errors = counter(
            "twofold:mispredicted_step_seconds", "Absolute errors of predicted step times, in seconds.", *MODEL
        )
        self._usage = gauge("vllm:kv_cache_usage_perc", "Share of the KV cache's blocks in use.", *MODEL)
        self._blocks = gauge("twofold:kv_blocks", "Blocks of the KV cache.", *MODEL, "state")
        self._pinned = gauge("twofold:pinned_blocks", "Blocks that a cache pin protects.", *MODEL)
        self._info = gauge(
            "vllm:cache_config_info", "The KV cache's sizes; always 1.", *MODEL, "block_size", "num_gpu_blocks"
        )
        self._error = gauge(
            "twofold:step_prediction_error", "Recent error of predicted step times, as a share.", *MODEL
        )
        self._counts = {field: counter(name, text, *MODEL) for field, (name, text) in COUNTS.items()}
        self._drafts = {field: counter(name, text, *MODEL) for field, (name, text) in DRAFT_COUNTS.items()}
        self._positions = counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by place in the draft.", *MODEL, "position"
        )
        self._store_bytes = gauge("twofold:kv_store_bytes", "Bytes of the KV store's segments.", *MODEL)
        self._loaded = counter("twofold:kv_store_loaded_tokens", "Tokens that were loaded from the KV store.", *MODEL)
        self._store = counter(
            "twofold:kv_store_events",
            "The KV store: prefixes loaded, or declined because computing was faster; segments written, evicted, "
            "damaged; reads and writes that the system refused.",
            *MODEL,
            "event",
        )
        self._pins = counter(
            "twofold:cache_pin_tokens",
            "Tokens of cache pins by time to live: written, read again, expired, or refused for lack of space.",
            *MODEL,
            "ttl",
            "event",
        )
        self._seen: dict[tuple[Counter, tuple[str, ...]], int] = {}
        self._restarts = counter(
            "twofold:engine_restarts", "Restarts of a model's process after it ended unexpectedly.", *MODEL
        )
        self._gauges = [each for each in vars(self).values() if isinstance(each, Gauge)]

    def on_step(self, model: str, report: StepReport, replica: int = 0) -> None:
        engine = str(replica)
        self._set_load(model, engine, report.waiting, report.running)
        rows = report.decode_rows + report.prefill_rows
        if rows:
            phase = "decode" if not report.prefill_rows else "mixed" if report.decode_rows else "prefill"
            self._tokens.observe(rows, model, engine)
            self._step.observe(report.seconds, model, engine, phase)
        self._rows.add(report.decode_rows, model, engine, "decode")
        self._rows.add(report.prefill_rows, model, engine, "prefill")
        for part, seconds in (("rows", report.seconds), ("moves", report.moves_s), ("host", report.host_s)):
            self._seconds.add(seconds, model, engine, part)
        if report.predicted_s is not None:
            self._predicted_steps.add(report.seconds, model, engine)
            self._prediction_errors.add(abs(report.predicted_s - report.seconds), model, engine)

    def on_snapshot(self, model: str, snapshot: EngineSnapshot, replica: int = 0) -> None:
        engine = str(replica)
        self._restarts.add(0, model, engine)
        self._set_load(model, engine, snapshot.waiting, snapshot.running)
        blocks = snapshot.blocks
        total = blocks.free + blocks.cached + blocks.held
        self._usage.set(blocks.held / total if total else 0.0, model, engine)
        for state in ("free", "cached", "held"):
            self._blocks.set(getattr(blocks, state), model, engine, state)
        self._pinned.set(snapshot.pinned, model, engine)
        self._info.drop(model, engine)
        self._info.set(1, model, engine, str(snapshot.block_size), str(total))
        for name, counter in self._counts.items():
            self._add_growth(counter, getattr(snapshot, name), model, engine)
        for seconds, pins in snapshot.pins.items():
            for event in PIN_EVENTS:
                self._add_growth(self._pins, getattr(pins, event), model, engine, TTLS[seconds], event)
        for name, counter in self._drafts.items():
            self._add_growth(counter, getattr(snapshot.drafts, name), model, engine)
        for position, accepted in enumerate(snapshot.drafts.positions):
            self._add_growth(self._positions, accepted, model, engine, str(position))
        if snapshot.store is not None:
            self._store_bytes.set(snapshot.store.bytes, model, engine)
            self._add_growth(self._loaded, snapshot.store.loaded, model, engine)
            for name, event in STORE_EVENTS.items():
                self._add_growth(self._store, getattr(snapshot.store, name), model, engine, event)
        if snapshot.prediction_error is None:
            self._error.drop(model, engine)
        else:
            self._error.set(snapshot.prediction_error, model, engine)

    def on_lanes(self, model: str, events: object, served: object) -> None:
        """Does nothing: metrics have no sequences."""

    def on_picture(self, model: str, at: float, picture: object) -> None:
        """Does nothing: snapshots have the counts of blocks."""

    def on_leave(self, model: str, replica: int = 0) -> None:
        """Counters stay, so that their sums never fall; gauges end with the replica."""
        for gauge in self._gauges:
            gauge.drop(model, str(replica))
        self._forget(model, str(replica))

    def on_restart(self, model: str, replica: int = 0) -> None:
        engine = str(replica)
        self._restarts.add(1, model, engine)
        self._set_load(model, engine, 0, 0)
        self._forget(model, engine)
        self._error.drop(model, engine)

    def _forget(self, model: str, engine: str) -> None:
        """The engine's counts begin at 0 again."""
        self._seen = {key: count for key, count in self._seen.items() if key[1][:2] != (model, engine)}

    def _set_load(self, model: str, engine: str, waiting: int, running: int) -> None:
        self._waiting.set(waiting, model, engine)
        self._running.set(running, model, engine)

    def _add_growth(self, counter: Counter, count: int, *labels: str) -> None:
        """Adds the growth of an engine's count. If it fell, the engine was restarted and has counted from 0 since."""
        before = self._seen.get((counter, labels), 0)
        counter.add(count - before if count >= before else count, *labels)
        self._seen[counter, labels] = count
