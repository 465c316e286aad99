"""The loop. Requests come in, three calls are made again and again, and what was added to answers comes out.

    plan    = scheduler.plan(now)
    outcome = run_step(runner, plan, meanwhile) meanwhile: the last step's tokens become text and leave, and rows of the
                                                next step are planned
    events  = scheduler.commit(plan, outcome, now)

Ownership: the scheduler owns sequences and their blocks, requests own their answers, the roster knows which belong
together. An engine belongs to one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Final

from twofold.backends.base import ModelRunner
from twofold.core.clock import Clock
from twofold.core.errors import ParameterError
from twofold.core.params import BeamSearchParams, SamplingParams
from twofold.core.report import Observer
from twofold.core.request import RequestOptions
from twofold.core.step import Pooling, StepOutcome, StepPlan, TokenEvent
from twofold.engine.executor import run_step
from twofold.engine.grammar.compile import GrammarCompiler
from twofold.engine.grammar.form import AnswerForm
from twofold.engine.intake import Came, Intake
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.engine.prompts import GivenPrompt
from twofold.engine.reports import StepReporter
from twofold.engine.request import EngineRequest
from twofold.engine.roster import Roster
from twofold.engine.scheduler.scheduler import Scheduler
from twofold.text.tokenizers.tokenizer import Tokenizer

Outlet = Callable[[list[OutputDelta]], None]

DEFAULT_OPTIONS: Final = RequestOptions()


class Engine:
    """Requests over one model. ``context`` is the most tokens of a prompt with its answer; ``seed`` the source of
    seeds for requests without one: the n-th request of an engine draws the same in every run. Without ``overlap`` a
    step's results leave before the next one starts. ``keeps_targets`` says whether steps heed TPOT targets.
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
    ) -> None:
        self._runner = runner
        self._scheduler = scheduler
        self._roster = Roster(scheduler, clock)
        self._grammars = GrammarCompiler(tokenizer, tokenizer.eos_ids, vocab_size)
        self._intake = Intake(self._roster, tokenizer, vocab_size=vocab_size, context=context, seed=seed)
        self._clock = clock
        self._overlap = overlap
        self._keeps_targets = keeps_targets
        self._requests: dict[str, EngineRequest] = {}
        self._numbers = count()
        self._arrived: list[tuple[float, list[TokenEvent]]] = []
        self._outlet: Outlet | None = None
        self._idle = True
        self._reporter = StepReporter(scheduler)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._arrived)

    @property
    def idle(self) -> bool:
        """Whether the last step had nothing to compute: there is no work, or all of it waits for readers."""
        return self._idle

    @property
    def scheduler(self) -> Scheduler:
        """What waits, what runs, and how far steps were as long as predicted."""
        return self._scheduler

    def observe(self, observer: Observer) -> None:
        """Tells ``observer``, beside those that listen already, of every step and every request from now on."""
        self._reporter.observers.append(observer)

    def watch_plans(self, listener: Callable[[StepPlan], None]) -> None:
        """From now on ``listener`` gets each step before it runs."""
        self._reporter.plan_listeners.append(listener)

    def deliver_to(self, outlet: Outlet) -> None:
        """From now on ``outlet`` gets what leaves, the moment that it does, and ``step`` returns nothing."""
        self._outlet = outlet

    # -- requests -----------------------------------------------------------------------------------------------------

    def prepare(self, prompt: GivenPrompt, params: SamplingParams | BeamSearchParams | None = None) -> GivenPrompt:
        """The prompt with its token ids, checked together with ``params`` against the model; nothing is queued.

        Raises ParameterError for an empty prompt or unknown token ids, ContextLengthError for a prompt that leaves no
        room for an answer. Any thread may call it.
        """
        return self._intake.prepare(prompt, params)

    def compile(self, params: SamplingParams, options: RequestOptions = DEFAULT_OPTIONS) -> Future[AnswerForm] | None:
        """Starts compiling what ``structured_outputs`` asks for, if anything. Any thread may call it."""
        wanted = params.structured_outputs
        return None if wanted is None else self._grammars.submit(wanted, options.tenant)

    def add(
        self,
        prompt: GivenPrompt,
        params: SamplingParams,
        request_id: str | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
        *,
        grammar: AnswerForm | None = None,
        grammar_s: float = 0.0,
        arrival: float | None = None,
    ) -> str:
        """Queues a request and returns its id. Raises as ``prepare``, for an id that is in use, and where the queue is
        full.

        Where ``params`` ask for a form of the answer and no compiled ``grammar`` is given, it waits for the compiler;
        ``grammar_s`` is how long the caller waited for it. ``arrival`` is now unless it came before.
        """
        began = self._clock.now()
        if params.structured_outputs is not None and grammar is None:
            self.prepare(prompt, params)
            grammar = self._grammars.submit(params.structured_outputs, options.tenant).result()
            grammar_s += self._clock.now() - began
        came = self._came(request_id, options, began if arrival is None else arrival, grammar_s)
        return self._keep(self._intake.generation(came, prompt, params, grammar))

    def add_beams(
        self,
        prompt: GivenPrompt,
        params: BeamSearchParams,
        request_id: str | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> str:
        """Queues a beam search."""
        return self._keep(self._intake.beams(self._came(request_id, options), prompt, params))

    def add_embedding(
        self,
        prompt: GivenPrompt,
        pooling: Pooling = "mean",
        request_id: str | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
        *,
        normalize: bool = True,
    ) -> str:
        """Queues a text whose vector is wanted."""
        came = self._came(request_id, options)
        return self._keep(self._intake.embedding(came, prompt, pooling, normalize=normalize))

    def add_scoring(
        self,
        prompt: GivenPrompt,
        alternatives: int = 0,
        request_id: str | None = None,
        options: RequestOptions = DEFAULT_OPTIONS,
    ) -> str:
        """Queues a text whose tokens' log-probabilities are wanted: ``prompt_logprobs`` of a request without answer."""
        return self._keep(self._intake.scoring(self._came(request_id, options), prompt, alternatives))

    def abort(self, request_id: str) -> RequestOutput | None:
        """Ends a request at once and frees all it holds; what there is of it, or None if it is not there any more."""
        request = self._requests.get(request_id)
        if request is None:
            return None
        self._settle(request)
        del self._requests[request_id]
        request.abort()
        return self._closed(request, self._clock.now())

    # -- the loop -----------------------------------------------------------------------------------------------------

    def step(self) -> list[OutputDelta]:
        """One turn of the loop; what left in it. Empty where it only computed, or had nothing to do.

        What a step drew leaves while the next one computes, or at once when nothing is left to compute. When the
        runner fails, every request is aborted, because blocks may not hold what they should, and its error leaves.
        """
        now = self._clock.now()
        self._arrive(self._scheduler.expire(now), now)
        plan = self._scheduler.plan(now)
        left: list[OutputDelta] = []
        self._idle = not plan
        if plan:
            overlaps = self._overlap and (self._arrived or plan.decode_rows)
            meanwhile = partial(self._meanwhile, plan, left) if overlaps else None
            self._reporter.plan(plan)
            outcome = self._run(plan, meanwhile)
            ended = self._clock.now()
            self._arrive(self._steer(self._scheduler.commit(plan, outcome, ended), ended, left), ended)
            self._reporter.step(plan, outcome, now, ended)
        else:
            self._reporter.idle()
        if not self._overlap or not self._scheduler.has_work or not plan:
            self._leave(left)
        return left

    def hold(self, request_id: str, *, hold: bool) -> None:
        """Lets a request rest, or go on. A resting one computes nothing and holds no block and no place."""
        request = self._requests.get(request_id)
        if request is not None:
            change = self._scheduler.hold if hold else self._scheduler.resume
            for sequence in request.sequences:
                change(sequence.sequence_id, self._clock.now())

    def now(self) -> float:
        """The engine's clock. Any thread may call it."""
        return self._clock.now()

    def check_idle(self) -> None:
        """Asserts that an engine without work holds nothing."""
        self._scheduler.check_idle()
        assert self.has_work or not (self._requests or len(self._roster)), "a request was forgotten"

    def close(self) -> None:
        """Ends the compiler of grammars."""
        self._grammars.close()

    def _run(self, plan: StepPlan, meanwhile: Callable[[], None] | None) -> StepOutcome:
        try:
            return run_step(self._runner, plan, meanwhile)
        except BaseException:
            for request_id in list(self._requests):
                self.abort(request_id)
            raise

    def _steer(self, events: list[TokenEvent], now: float, left: list[OutputDelta]) -> list[TokenEvent]:
        """Lets beam searches choose at once, or they would miss the next step; the other events."""
        for event in events:
            request = self._roster.owner(event.sequence_id) if event.candidates else None
            if request is not None:
                self._hand_on(self._deliver(request, event, now), left)
        return [event for event in events if not event.candidates]

    def _arrive(self, events: list[TokenEvent], now: float) -> None:
        if events:
            self._arrived.append((now, events))

    def _meanwhile(self, plan: StepPlan, left: list[OutputDelta]) -> None:
        """While a step is computed: what the step before gave leaves, and the next one is planned as far as it can."""
        self._leave(left)
        self._scheduler.plan_ahead(plan)

    def _leave(self, left: list[OutputDelta]) -> None:
        """Turns what arrived into what callers get: through the outlet, or appended to ``left``."""
        arrived, self._arrived = self._arrived, []
        deltas: list[OutputDelta] = []
        for now, events in arrived:
            for event in events:
                request = self._roster.owner(event.sequence_id)
                if request is not None:
                    deltas += self._deliver(request, event, now) if event.error is None else self._fail(request, event)
        self._hand_on(deltas, left)

    def _hand_on(self, deltas: list[OutputDelta], left: list[OutputDelta]) -> None:
        if self._outlet is None:
            left += deltas
        elif deltas:
            self._outlet(deltas)

    def _deliver(self, request: EngineRequest, event: TokenEvent, now: float) -> list[OutputDelta]:
        deltas = request.take(event, now)
        if not request.finished:
            return deltas
        del self._requests[request.given.request_id]
        whole = self._closed(request, now)
        return [*deltas[:-1], replace(deltas[-1], request=whole)]

    def _settle(self, request: EngineRequest) -> None:
        """Gives a request what arrived for it and has not left yet."""
        mine = {sequence.sequence_id for sequence in request.sequences}
        arrived, self._arrived = self._arrived, []
        for now, events in arrived:
            for event in events:
                if event.sequence_id in mine and not request.finished:
                    request.take(event, now)
            rest = [event for event in events if event.sequence_id not in mine]
            if rest:
                self._arrived.append((now, rest))

    def _fail(self, request: EngineRequest, event: TokenEvent) -> list[OutputDelta]:
        """Ends a request of which one sequence cannot go on."""
        request_id = request.given.request_id
        whole = self.abort(request_id)
        return [OutputDelta(request_id, 0, "", (), None, "abort", request=whole, error=event.error)]

    def _closed(self, request: EngineRequest, now: float) -> RequestOutput:
        whole = request.output(now)
        self._reporter.request(whole.report)
        return whole

    def _came(
        self,
        request_id: str | None,
        options: RequestOptions,
        arrival: float | None = None,
        grammar_s: float = 0.0,
    ) -> Came:
        """Who comes, under an id that nobody has. Raises ParameterError for one that is in use."""
        if options.tpot_target_s is not None and not self._keeps_targets:
            raise ParameterError(
                "A fixed token budget has no a TPOT target.",
                param="tpot_target_s",
                hint="Remove it, or set token_budget to live.",
            )
        number = next(self._numbers)
        request_id = f"request-{number}" if request_id is None else request_id
        if request_id in self._requests:
            raise ParameterError(f"The request id {request_id!r} is in use.", param="request_id")
        return Came(number, request_id, self._clock.now() if arrival is None else arrival, options, grammar_s)

    def _keep(self, request: EngineRequest) -> str:
        self._requests[request.given.request_id] = request
        return request.given.request_id
