"""The engine: requests over one model, and one step of the loop.

    plan    = scheduler.plan(now)
    outcome = run_step(runner, plan, overlap)   overlap: delivers the last step's outputs, and plans rows of the next
    events  = scheduler.commit(plan, outcome, now)

A request that asks for structured output waits here until its grammar is compiled; then its sequences are queued.

Ownership: the scheduler owns sequences and their blocks, requests own their completions. An engine belongs to one
thread.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from time import perf_counter
from typing import TYPE_CHECKING, Final

from twofold.backends.base import ModelRunner
from twofold.core.clock import Clock
from twofold.core.errors import ParameterError, TwofoldError, WorkerError
from twofold.core.forecast import Forecast, RequestProgress
from twofold.core.params import RequestParams, SamplingParams
from twofold.core.report import Observer, RequestMetrics
from twofold.core.request import DEFAULT_OPTIONS, EngineRequest, RequestOptions, TextOrTokens
from twofold.core.step import SequenceOutcome, StepMasks, StepOutcome, StepPlan, TokenConstraint, TokenEvent
from twofold.engine.grammar.form import OutputGrammar
from twofold.engine.inputs import InputProcessor
from twofold.engine.kv_files import KVFiles
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.request import ActiveRequest, EngineState
from twofold.engine.scheduler.report import step_report
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.engine.scheduler.sequence import SequenceState
from twofold.text.tokenizers.tokenizer import Tokenizer

if TYPE_CHECKING:
    from twofold.engine.grammar.compile import GrammarCompiler


class StepReporter:
    """Reports steps and requests to observers."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.observers: list[Observer] = []
        self.plan_listeners: list[Callable[[StepPlan], None]] = []
        self._scheduler = scheduler
        self._ended: float | None = None

    def step(self, plan: StepPlan, outcome: StepOutcome, planned: float, ended: float) -> None:
        """Reports a step that was planned and had ended at these times."""
        since = planned if self._ended is None else self._ended
        self._ended = ended
        if not self.observers:
            return
        started = ended - (outcome.seconds + outcome.moves_s)
        report = step_report(
            self._scheduler,
            plan,
            started,
            outcome.seconds,
            moves_s=outcome.moves_s,
            host_s=max(0.0, started - since),
            forward_s=outcome.forward_s,
            sample_s=outcome.sample_s,
            overlap_s=outcome.overlap_s,
            draft_s=sum(outcome.draft_s),
        )
        for observer in self.observers:
            observer.on_step(report)

    def idle(self) -> None:
        """No work is left: the time until the next step does not count as the engine's own."""
        self._ended = None

    def request(self, report: RequestMetrics) -> None:
        for observer in self.observers:
            observer.on_request(report)


def run_step(runner: ModelRunner, plan: StepPlan, overlap: Callable[[], None] | None = None) -> StepOutcome:
    """Computes a step. Meanwhile ``overlap`` is called and masks are prepared. An exception of ``overlap`` is raised
    once the rows are computed.
    """
    constraints = plan.constraints
    overlaps = overlap is not None or bool(constraints)
    handle = runner.execute(plan, overlap=overlaps)
    began = perf_counter()
    try:
        if overlap is not None:
            overlap()
        if constraints:
            for step in plan.steps:
                if step.sequence_id in constraints:
                    constraints[step.sequence_id].prepare(step.draft_tokens)
        all(constraint.wait() for constraint in constraints.values())  # leaves this core to hosts, until one is late
        overlap_s = perf_counter() - began if overlaps else 0.0
    finally:
        handle.wait()
    masks, settled = _read_masks(constraints)
    outcome = handle.result(masks)
    sequences = outcome.sequences
    if settled:
        sequences = tuple(_settled(sequence, settled) for sequence in sequences)
    return replace(outcome, sequences=sequences, overlap_s=overlap_s)


def _read_masks(constraints: Mapping[int, TokenConstraint]) -> tuple[StepMasks, dict[int, SequenceOutcome]]:
    """The masks of a step, and the outcomes of sequences that sample nothing, because their output is complete, their
    mask is not ready, or their constraint failed."""
    allowed, settled = {}, {}
    for number, constraint in constraints.items():
        try:
            if not constraint.wait():
                settled[number] = SequenceOutcome(number, deferred=True)
            elif constraint.finished:
                settled[number] = SequenceOutcome(number, complete=True)
            else:
                allowed[number] = tuple(None if mask is None else bytes(mask) for mask in constraint.masks())
        except TwofoldError as error:
            settled[number] = SequenceOutcome(number, error=error)
    return StepMasks(allowed, frozenset(settled)), settled


def _settled(computed: SequenceOutcome, settled: Mapping[int, SequenceOutcome]) -> SequenceOutcome:
    mine = settled.get(computed.sequence_id)
    return computed if mine is None else replace(mine, prompt_logprobs=computed.prompt_logprobs)


SAVE_S: Final = 20.0
"""Maximum seconds for which the end of an engine waits for its KV store."""
Outlet = Callable[[list[OutputDelta]], None]


@dataclass(slots=True)
class _Compiling:
    """A request that waits for its grammar since ``began``. ``ended`` is when the grammar was ready, or had failed."""

    active: ActiveRequest
    grammar: Future[OutputGrammar]
    began: float
    ended: float = 0.0


class Engine:
    """Requests over one model.

    context        maximum number of tokens of a prompt with its completion
    seed           gives a seed to each request without one: the n-th request samples the same tokens in every run
    overlap        deliver a step's results while the next one computes, or else before it starts
    keeps_targets  whether the token budget keeps TPOT targets
    files          reads and writes the segments of the scheduler's KV store
    stop_loops     completions that repeat themselves end with the finish reason "repetition"

    ``idle``: the last step had nothing to compute: there is no work, or all of it waits for readers or grammars.
    """

    def __init__(
        self,
        runner: ModelRunner,
        scheduler: Scheduler,
        tokenizer: Tokenizer,
        clock: Clock,
        *,
        vocab_size: int,
        context: int,
        seed: int = 0,
        overlap: bool = True,
        keeps_targets: bool = True,
        files: KVFiles | None = None,
        stop_loops: bool = False,
    ) -> None:
        self._runner = runner
        self.scheduler = scheduler
        self._state = EngineState(scheduler, tokenizer, clock, stop_loops)
        self._grammars: GrammarCompiler | None = None
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._inputs = InputProcessor(self._state, vocab_size=vocab_size, context=context, seed=seed)
        self._clock = clock
        self._overlap = overlap
        self._keeps_targets = keeps_targets
        self._files = files
        self._requests: dict[str, ActiveRequest] = {}
        self._compiling: dict[str, _Compiling] = {}
        self._compiled: deque[_Compiling] = deque()
        self._numbers = count()
        self._postponed: list[tuple[float, list[TokenEvent]]] = []
        self._outlet: Outlet | None = None
        self._wake: Callable[[], None] | None = None
        self.idle = True
        self._reporter = StepReporter(scheduler)

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or bool(self._postponed) or bool(self._compiling)

    @property
    def waiting(self) -> int:
        """Sequences that wait for a slot, including those of requests that wait for their grammar."""
        return self.scheduler.waiting + sum(len(each.active.sequences) for each in self._compiling.values())

    @property
    def masks_narrowed(self) -> int:
        """``GrammarCompiler.narrowed``."""
        return 0 if self._grammars is None else self._grammars.narrowed

    def observe(self, observer: Observer) -> None:
        """Adds an observer, which gets the report of every step and every request from now on."""
        self._reporter.observers.append(observer)

    def watch_plans(self, listener: Callable[[StepPlan], None]) -> None:
        """Adds a listener, which gets each step before it runs."""
        self._reporter.plan_listeners.append(listener)

    def deliver_to(self, outlet: Outlet) -> None:
        """Delivers deltas to ``outlet`` as soon as they are made; ``step`` returns nothing from now on."""
        self._outlet = outlet

    def wake_with(self, wake: Callable[[], None]) -> None:
        """Calls ``wake``, on any thread, when the grammar of a request is ready or has failed, and when the KV store
        has read or written something."""
        self._wake = wake
        if self._files is not None:
            self._files.wake = wake

    # -- requests -----------------------------------------------------------------------------------------------------

    def request(
        self, prompt: TextOrTokens, params: RequestParams, options: RequestOptions = DEFAULT_OPTIONS
    ) -> EngineRequest:
        """A checked request for a text or token ids, not queued. Raises as ``check``. Any thread may call it."""
        return self._inputs.request(prompt, params, options)

    def check(self, request: EngineRequest) -> None:
        """Checks a request against the model; to be called once, by the caller that made it or received it.

        Raises ParameterError for an empty prompt or unknown token ids, ContextLengthError for a prompt that leaves no
        room for a completion. Any thread may call it.
        """
        self._inputs.check(request)

    def add(self, request: EngineRequest) -> str:
        """Queues a checked request and returns its id. Raises ParameterError for an id that is in use,
        ContextLengthError for a request that can never run, ResourceError if the queue is full.

        A request with a grammar is queued once the grammar is compiled. If compiling fails, the only delta of the
        request has the error and no output.
        """
        if request.options.tpot_target_s is not None and not self._keeps_targets:
            raise ParameterError(
                "A fixed token budget cannot keep a TPOT target.",
                param="tpot_target_s",
                hint="Remove it, or set token_budget to live.",
            )
        number = next(self._numbers)
        request_id = request.request_id or f"request-{number}"
        if request_id in self._requests:
            raise ParameterError(f"The request id {request_id!r} is in use.", param="request_id")
        now = self._clock.now()
        arrival = now if request.arrival is None else request.arrival
        active = self._inputs.active(replace(request, request_id=request_id, arrival=arrival), number)
        grammar = self._compile(request)
        if grammar is None:
            self._inputs.constrain(active, None)
            active.enter()
        else:
            self._compiling[request_id] = waiting = _Compiling(active, grammar, now)
            grammar.add_done_callback(lambda _: self._ready(waiting))
        self._requests[request_id] = active
        return request_id

    def has(self, request_id: str) -> bool:
        """Whether a request has not ended."""
        return request_id in self._requests

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request at once and frees all it holds; its output so far, or None if it has ended before."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        self._take_postponed(request)
        del self._requests[request_id]
        self._compiling.pop(request_id, None)
        request.abort()
        return self._final_output(request, self._clock.now())

    # -- the loop -----------------------------------------------------------------------------------------------------

    def step(self) -> list[OutputDelta]:
        """One turn of the loop; the deltas made in it, if any.

        Deltas of a step are delivered while the next one computes, or at once if nothing is left to compute. When the
        runner fails, every queued request is aborted, because the contents of blocks are unknown, and the runner's
        error is raised.
        """
        now = self._clock.now()
        refused = self._enter_compiled()
        self._take_stored(now)
        self.expire()
        plan = self.scheduler.plan(now)
        if not plan.moves:
            self._submit_jobs()
        returned: list[OutputDelta] = []
        self._emit(refused, returned)
        self.idle = not plan
        if plan:
            overlaps = self._overlap and (self._postponed or plan.decode_rows)
            overlap = partial(self._overlapped, plan, returned) if overlaps else None
            for listener in self._reporter.plan_listeners:
                listener(plan)
            outcome = self._run(plan, overlap)
            ended = self._clock.now()
            events = self._deliver_candidates(self.scheduler.commit(plan, outcome, ended), ended, returned)
            self._postpone(events, ended)
            self._reporter.step(plan, outcome, now, ended)
        else:
            self._reporter.idle()
        if not self._overlap or not self.scheduler.has_work or not plan:
            self._deliver_postponed(returned)
        if not self.has_work:  # no turn follows until there is
            self._reporter.idle()
        return returned

    def pause(self, request_id: str, *, paused: bool) -> None:
        """Pauses a request, or resumes it. A paused request computes nothing and holds no block and no slot."""
        request = self._requests.get(request_id)
        if request is not None:
            change = self.scheduler.pause if paused else self.scheduler.resume
            for sequence in request.sequences:
                change(sequence.sequence_id, self._clock.now())

    def forecast(self, token_ids: tuple[int, ...], options: RequestOptions) -> Forecast:
        """What a request with this prompt would meet if it arrived now. Nothing changes."""
        now = self._clock.now()
        cached = self.scheduler.manager.matched(array("i", token_ids), options.cache_key)
        return self.scheduler.queue_ahead(options.priority, now).forecast(len(token_ids), cached, now)

    def progress(self, request_ids: Iterable[str]) -> dict[str, RequestProgress]:
        """How far these requests are, without those that have a token or have ended."""
        now, found = self._clock.now(), {}
        line, urgencies = self.scheduler.queue_ahead(0, now), self.scheduler.queue.urgencies()
        for request_id in request_ids:
            request = self._requests.get(request_id)
            sequence = None if request is None else request.sequences[0]
            if sequence is None or sequence.first_token_at is not None:
                continue
            at_s, prompt = now - sequence.arrival, sequence.prompt_length
            if sequence.state is not SequenceState.RUNNING:
                ahead = bisect_left(urgencies, self.scheduler.queue.urgency(sequence))
                found[request_id] = RequestProgress(request_id, at_s, ahead, 0, 0, prompt)
                continue
            left_s = line.forecast(prompt, sequence.computed, now).prefill_s
            first_s = None if left_s is None else at_s + left_s
            done = sequence.record.cached, sequence.computed
            found[request_id] = RequestProgress(request_id, at_s, None, *done, prompt, first_s)
        return found

    def expire(self) -> None:
        """Ends sequences and cache pins whose time is up; to be called between steps."""
        now = self._clock.now()
        self._postpone(self.scheduler.expire(now), now)

    def now(self) -> float:
        """The engine's clock. Any thread may call it."""
        return self._clock.now()

    def check_idle(self) -> None:
        """Asserts that an engine without work holds nothing."""
        self.scheduler.check_idle()
        assert self.has_work or not (self._requests or self._state.owners), "a request was forgotten"

    def close(self) -> None:
        """Saves the prefix cache to the KV store, if there is one, and closes the compiler of grammars, with its
        processes. All requests must have ended."""
        self._save()
        if self._grammars is not None:
            self._grammars.close()

    def _run(self, plan: StepPlan, overlap: Callable[[], None] | None) -> StepOutcome:
        try:
            outcome = run_step(self._runner, plan, overlap)
            self._submit_jobs()
            return outcome
        except BaseException:
            for request_id in [each for each in self._requests if each not in self._compiling]:
                self.abort(request_id)
            self._submit_jobs()
            raise

    def _submit_jobs(self) -> None:
        """Begins the jobs of the KV store. Blocks that are to be filled may be sources of the moves of a plan, so its
        moves come first."""
        if self._files is not None and self.scheduler.store is not None:
            self._files.submit(self.scheduler.store.take_jobs())

    def _take_stored(self, now: float) -> None:
        """Takes what the KV store has read and written."""
        if self._files is not None and (results := self._files.take()):
            self.scheduler.take_stored(results, now)

    def _save(self) -> None:
        """Writes the prefix cache to the KV store, for SAVE_S seconds at most."""
        files, store = self._files, self.scheduler.store
        if files is None or store is None:
            return
        until = self._clock.now() + SAVE_S

        def settle() -> None:
            while store.busy:
                files.submit(store.take_jobs())
                self.scheduler.take_stored(files.wait(), self._clock.now())

        settle()
        for _ in store.save_all(self._clock.now()):
            settle()
            if self._clock.now() > until:
                break
        files.submit(store.take_jobs())
        files.close()

    def _compile(self, request: EngineRequest) -> Future[OutputGrammar] | None:
        """Starts compiling the grammar of a request; None without one."""
        params = request.params
        if not isinstance(params, SamplingParams) or params.structured_outputs is None:
            return None
        if self._grammars is None:
            from twofold.engine.grammar.compile import GrammarCompiler  # noqa: PLC0415 - start-up time

            self._grammars = GrammarCompiler(self._tokenizer, self._tokenizer.eos_ids, self._vocab_size)
        return self._grammars.submit(params.structured_outputs, request.options.tenant)

    def _ready(self, waiting: _Compiling) -> None:
        """Called on any thread when a grammar was compiled or has failed."""
        waiting.ended = self._clock.now()
        self._compiled.append(waiting)
        if self._wake is not None:
            self._wake()

    def _enter_compiled(self) -> list[OutputDelta]:
        """Queues requests whose grammars are ready; a delta with the error for each that is refused."""
        refused: list[OutputDelta] = []
        while self._compiled:
            waiting = self._compiled.popleft()
            active, request_id = waiting.active, waiting.active.request_id
            if self._compiling.get(request_id) is not waiting:
                continue  # it was aborted
            del self._compiling[request_id]
            try:
                grammar = waiting.grammar.result()
                self._inputs.constrain(active, grammar)
                active.open_ended = not grammar.ends
                active.compile_s = waiting.ended - waiting.began
                active.enter()
            except Exception as error:
                del self._requests[request_id]
                reason = error if isinstance(error, TwofoldError) else WorkerError(f"The grammar failed: {error!r}.")
                refused.append(OutputDelta(request_id, 0, "", (), None, "abort", error=reason))
        return refused

    def _deliver_candidates(
        self, events: list[TokenEvent], now: float, returned: list[OutputDelta]
    ) -> list[TokenEvent]:
        """Delivers candidates to beam searches at once, so that they join the next step; returns the other events."""
        for event in events:
            request = self._state.owners.get(event.sequence_id) if event.candidates else None
            if request is not None:
                self._emit(self._deliver(request, event, now), returned)
        return [event for event in events if not event.candidates]

    def _postpone(self, events: list[TokenEvent], now: float) -> None:
        """Keeps events for delivery while the next step computes."""
        if events:
            self._postponed.append((now, events))

    def _overlapped(self, plan: StepPlan, returned: list[OutputDelta]) -> None:
        """Delivers the results of the last step, and plans rows of the next one, while ``plan`` is computed."""
        self._deliver_postponed(returned)
        self.scheduler.plan_ahead(plan)

    def _deliver_postponed(self, returned: list[OutputDelta]) -> None:
        """Delivers the deltas of postponed events to the outlet, or appends them to ``returned``."""
        postponed, self._postponed = self._postponed, []
        deltas: list[OutputDelta] = []
        for now, events in postponed:
            for event in events:
                request = self._state.owners.get(event.sequence_id)
                if request is not None:
                    deltas += self._deliver(request, event, now) if event.error is None else self._fail(request, event)
        self._emit(deltas, returned)

    def _emit(self, deltas: list[OutputDelta], returned: list[OutputDelta]) -> None:
        if self._outlet is None:
            returned += deltas
        elif deltas:
            self._outlet(deltas)

    def _deliver(self, request: ActiveRequest, event: TokenEvent, now: float) -> list[OutputDelta]:
        deltas = request.take(event, now)
        if not request.finished:
            return deltas
        del self._requests[request.request_id]
        whole = self._final_output(request, now)
        return [*deltas[:-1], replace(deltas[-1], request=whole)]

    def _take_postponed(self, request: ActiveRequest) -> None:
        """Applies the postponed events of a request to its output."""
        mine = {sequence.sequence_id for sequence in request.sequences}
        postponed, self._postponed = self._postponed, []
        for now, events in postponed:
            for event in events:
                if event.sequence_id in mine and not request.finished:
                    request.take(event, now)
            rest = [event for event in events if event.sequence_id not in mine]
            if rest:
                self._postponed.append((now, rest))

    def _fail(self, request: ActiveRequest, event: TokenEvent) -> list[OutputDelta]:
        """Aborts a request because one of its sequences failed."""
        request_id = request.request_id
        whole = self.abort(request_id)
        return [OutputDelta(request_id, 0, "", (), None, "abort", request=whole, error=event.error)]

    def _final_output(self, request: ActiveRequest, now: float) -> RequestOutput:
        """The output of a request that has ended, which is reported to the observers."""
        whole = request.output(now)
        self._reporter.request(whole.metrics)
        return whole
