"""A loaded model's engine in a worker process, and the hubs whose requests it runs."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Final

from twofold.core.clock import MonotonicClock
from twofold.core.errors import WorkerError
from twofold.core.params import SamplingParams
from twofold.core.report import BlockCounts, EngineFacts, EngineSnapshot, GroupFacts, RequestMetrics, StepReport
from twofold.core.request import EngineRequest
from twofold.engine.engine import Engine
from twofold.engine.kv.names import BlockKeys
from twofold.engine.load import LoadedModel, assemble
from twofold.engine.loop import EngineThread
from twofold.engine.outputs import OutputDelta
from twofold.engine.scheduler.lanes import TOKENS_S
from twofold.fleet.messages import FromWorker, Pong, Ready
from twofold.fleet.reporting import WorkReporter
from twofold.fleet.session import HubSession, SharedEngine, for_server
from twofold.fleet.transfer import STUCK_S

SNAPSHOT_S: Final = 0.25
PROGRESS_S: Final = 0.1
"""Minimum seconds between two messages about the progress of requests."""
SELF_TEST_S: Final = 120.0
SELF_TEST: Final = EngineRequest(
    (0,), SamplingParams(temperature=0, max_tokens=1, ignore_eos=True), request_id="self-test"
)


class Service:
    """A loaded model's engine. After each step the hubs that wait for its outputs get them, and after one with prompt
    rows all that route requests get the engine's work; the others, with the next snapshot."""

    def __init__(self, loaded: LoadedModel) -> None:
        self._engine = assemble(loaded, MonotonicClock())
        self._work = WorkReporter(self._engine)
        self._hubs: list[HubSession] = []
        self._snapshot_at = self._sent_at = self._progress_at = 0.0
        self._lanes = self._engine.scheduler.lanes
        self._thread = EngineThread(self._engine, self._flush)
        self._shared = SharedEngine(
            self._engine,
            self._thread,
            loaded.runner,
            self._leave,
            self._send,
            partial(self._send, read=True),
            self._pong,
            self._watch,
        )

    def test(self) -> None:
        """Generates one token. Raises the error if that fails."""
        test = _SelfTest()
        self._thread.submit(SELF_TEST, test)
        try:
            test.result(SELF_TEST_S)
        except TimeoutError:
            hint = "Use a smaller model."
            raise WorkerError(f"The model generated no token in {SELF_TEST_S:.0f} s.", hint=hint) from None
        except Exception as error:
            raise for_server(error) from error
        self._thread.call(lambda engine: engine.observe(self)).result()

    def open(
        self,
        post: Callable[[FromWorker], None],
        prefix: str = "",
        *,
        shares_clock: bool = True,
        keys: BlockKeys | None = None,
    ) -> HubSession:
        """Opens the session of a hub, which gets no reports before ``begin``."""
        return HubSession(self._shared, post, prefix, shares_clock=shares_clock, keys=keys)

    def begin(self, hub: HubSession, ready: Ready) -> None:
        """Sends a hub that the model is ready, and from now on all reports."""

        def begin(_: Engine) -> None:
            hub.begin(ready)
            self._hubs.append(hub)

        self._thread.call(begin).result(STUCK_S)

    def save(self) -> None:
        """Ends all requests, and saves the prefix cache to the KV store, if there is one."""
        if self._engine.scheduler.store is not None:
            self._thread.close()
            self._engine.close()

    # -- on the engine's thread ----------------------------------------------------------------------------------------

    def on_step(self, report: StepReport) -> None:
        """``Observer``: the report is sent with the next message, at the latest with the next snapshot."""
        for hub in self._hubs:
            hub.add_report(report)
        if report.ended - self._progress_at >= PROGRESS_S and any(hub.asking for hub in self._hubs):
            self._progress_at = report.ended
            noted = [hub.note_progress() for hub in self._hubs if hub.asking]
            if any(noted):
                self._send()
        since = report.ended - self._sent_at
        due = report.ended - self._snapshot_at >= SNAPSHOT_S or (since >= TOKENS_S and self._lanes.watched)
        read = bool(report.prefill_rows) and any(hub.reports for hub in self._hubs)
        if due or read:
            self._send(read=read)

    def on_request(self, report: RequestMetrics) -> None:
        """``Observer``: does nothing, because a request's last delta contains its report."""

    def _leave(self, hub: HubSession) -> None:
        if hub in self._hubs:
            self._hubs.remove(hub)

    def _watch(self, hub: HubSession, on: bool) -> None:
        """The first events of a hub show what all sequences do; those before them are for the others."""
        if hub.watching == on:
            return
        self._share_lanes()
        hub.watching = on
        if on:
            self._lanes.unwatch()
            self._engine.scheduler.watch(self._engine.now())
            hub.add_lanes(self._lanes.take())
            self._send()
        elif not any(each.watching for each in self._hubs):
            self._lanes.unwatch()

    def _share_lanes(self) -> None:
        events = self._lanes.take()
        for hub in self._hubs if events else ():
            if hub.watching:
                hub.add_lanes(events)

    def _pong(self, hub: HubSession) -> None:
        if not self._engine.has_work:
            self._engine.expire()
        hub.post(Pong(snapshot(self._engine)))

    def _flush(self) -> None:
        if any(hub.has_outputs for hub in self._hubs):
            self._send()

    def _send(self, *, read: bool = False) -> None:
        """Sends outputs and reports to the hubs that wait for them; after prompt rows were ``read`` or blocks arrived,
        also to all hubs that route requests."""
        now, current = self._engine.now(), None
        self._sent_at = now
        if now - self._snapshot_at >= SNAPSHOT_S or not self._engine.has_work:
            self._snapshot_at = now
            current = snapshot(self._engine)
        self._share_lanes()
        work = self._work.work() if any(hub.reports for hub in self._hubs) else None
        for hub in self._hubs:
            hub.send(current, work, always=read and hub.reports)


def facts(loaded: LoadedModel) -> EngineFacts:
    """What does not change in the engine of a loaded model."""
    config = loaded.config
    options, layout = config.options, config.options.kv_layout(loaded.spec, config.draft)
    groups = zip(loaded.spec.kv_groups(config.context), config.kv_groups, strict=True)
    return EngineFacts(
        slots=config.limits.sequences,
        rows=min(config.limits.rows, loaded.runner.max_rows),
        block_size=options.block_size,
        budget="live" if options.token_budget == "live" else "fixed",
        tpot_target_s=options.tpot_target_s if options.token_budget == "live" else None,
        groups=tuple(
            GroupFacts(size.window, size.blocks, layout.block_bytes(group)) for group, size in groups if not size.state
        ),
        attention_chunk=config.attention_chunk,
        step_basis=loaded.basis,
    )


def snapshot(engine: Engine) -> EngineSnapshot:
    """The state of an engine; to be called on its thread."""
    scheduler = engine.scheduler
    manager, counters = scheduler.manager, scheduler.manager.counters
    return EngineSnapshot(
        waiting=scheduler.waiting,
        running=scheduler.running,
        blocks=BlockCounts(sum(manager.free), sum(manager.cached), sum(manager.held)),
        pinned=sum(manager.pinned),
        block_size=manager.block_size,
        queries=counters.queries,
        hits=counters.hits,
        evicted=counters.evicted,
        pins={ttl_s: replace(pins) for ttl_s, pins in sorted(counters.pins.items())},
        preemptions=scheduler.preemptions,
        swaps=scheduler.swaps,
        store=None if scheduler.store is None else scheduler.store.snapshot(),
        prediction_error=scheduler.step_time.error,
        step_weights=scheduler.step_time.weights if scheduler.step_time.ready else None,
        max_rows=scheduler.limits.rows,
        max_logit_rows=scheduler.limits.logit_rows,
        drafts=replace(scheduler.drafts, positions=list(scheduler.drafts.positions)),
        masks_narrowed=engine.masks_narrowed,
    )


class _SelfTest(Future[None]):
    """The outbox of the self-test; done when its request has ended."""

    def give(self, deltas: list[OutputDelta]) -> None:
        last = deltas[-1]
        if last.request is None:
            return
        if last.error is None:
            self.set_result(None)
        else:
            self.set_exception(last.error)

    def fail(self, error: Exception) -> None:
        self.set_exception(error)
