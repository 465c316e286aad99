"""A benchmark of one server: inspects the server, then runs a load, a sweep, or a search for the highest rate.

Each run has its own prompts, since a server may have the prompts of the previous run in its prefix cache. Every run is
added to the document when it ends, so that a stopped study keeps its results.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

from twofold.bench.client.loop import ClientOptions, LoadClient, Watcher
from twofold.bench.client.target import ServerTarget, exchange
from twofold.bench.endpoints.discover import ServerFacts, check_lengths, find_server, first_response
from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions, given_messages
from twofold.bench.load.base import Ask, Load, Prompt, PromptMessage
from twofold.bench.load.lengths import Fixed
from twofold.bench.load.synthetic import LoadPlan
from twofold.bench.load.trace import write_trace
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import MeasurementRule
from twofold.bench.metrics.summary import Note, Summary, summarise
from twofold.bench.prompts.prompter import Prompter, TokenCounter, make_prompter
from twofold.bench.prompts.remote import remote_counter
from twofold.bench.record import RunRecord
from twofold.bench.report.document import SCHEMA, Document, Run, Target, machine_of_this, public_url, run_of
from twofold.bench.report.live import Goal
from twofold.bench.search import Aim, LoadRunner, SearchOptions, SearchResult, Trial, curve_point, find_rate
from twofold.core.errors import ParameterError
from twofold.host.signals import handled

SEEDS_APART: Final = 1_000_003
"""Distance of the seeds of two runs."""
FIRST_WORDS: Final = 8
FIRST_TOKENS: Final = 4
"""Words in the prompt of the first request, and tokens of its completion."""

SWEEP_S: Final = 30.0
"""Default duration of each rate of a sweep."""

SHORTEST_S: Final = 1e-3
ONE_BY_ONE: Final[Mapping[str, Any]] = {
    "concurrency": 1,
    "requests": 3,
    "rate": None,
    "duration_s": None,
    "kind": "poisson",
    "burstiness": 1.0,
    "turns": Fixed(1),
}
"""Changes of a plan, for a few requests one after another."""

Show: TypeAlias = Callable[[Goal], AbstractContextManager[Watcher]]
"""Shows the progress of a run."""

MakeLoad: TypeAlias = Callable[[Prompt, int], Load]
"""Makes a load from a prompt function and a seed."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The server of a benchmark, and how to send requests to it.

    model     None selects the only model of the server
    options   options of every request; their model is ignored
    seed      seed of arrivals and lengths
    prompts   seed of prompt texts; if it is used again, the server may have the prompts in its cache
    """

    target: ServerTarget
    endpoint: str
    model: str | None
    options: EndpointOptions
    client: ClientOptions
    seed: int = 0
    prompts: int = 0


class Session:
    """Sends loads to one server."""

    def __init__(self, setup: Setup, client: LoadClient, facts: ServerFacts, prompter: Prompter) -> None:
        self._setup = setup
        self._client = client
        self.prompter = prompter
        self._runs = 1  # run 0 is the first request
        self.facts = facts

    def run(self, make: MakeLoad, watcher: Watcher | None = None, *, seed: int | None = None) -> RunRecord:
        """Sends a load with new prompts. The first Ctrl-C ends it early.

        ``seed`` is added to the seed of the load; without it, all runs have equal arrivals and lengths.
        """
        self.prompter = self.prompter.with_seed(self._setup.prompts + SEEDS_APART * self._runs)
        self._runs += 1
        load = make(self.prompt, self._setup.seed if seed is None else self._setup.seed + seed)
        with stopped_by_signals(self._client.stop):
            return self._client.run(load, watcher)

    def prompt(self, ask: Ask) -> tuple[PromptMessage, ...]:
        """All messages of a request of the current run."""
        return self.prompter(ask)


@contextmanager
def connect(setup: Setup, local: TokenCounter | None = None, lengths: tuple[int, int] = (0, 0)) -> Iterator[Session]:
    """A session with a server that has completed one request, and so is warm.

    local    counts the tokens of prompts; None counts them with the server
    lengths  maximum input tokens and output tokens of the loads; 0 if unknown

    Raises NetworkError, AccessError, NotFoundError, ContextLengthError and the other errors of ``discover``.
    """
    send = partial(exchange, setup.target)
    headers = ApiEndpoint(setup.endpoint, setup.options, given_messages).headers
    facts = find_server(send, headers, setup.model)
    check_lengths(facts, *lengths)
    options = replace(setup.options, model=facts.model, usage_each=facts.counts)
    counter = local or remote_counter(send, setup.endpoint, options)
    prompter = make_prompter(counter, chat=setup.endpoint != "completions", seed=setup.prompts)
    first = ApiEndpoint(setup.endpoint, options, prompter)
    first_response(send, first, Ask(0, 0.0, prompter.min_tokens + FIRST_WORDS, FIRST_TOKENS))
    if facts.context is None:  # some servers report it only after loading the model
        facts = find_server(send, headers, facts.model)
        check_lengths(facts, *lengths)
    endpoint = ApiEndpoint(setup.endpoint, options, lambda ask: session.prompt(ask))  # noqa: PLW0108 - made below
    with LoadClient(setup.target, endpoint, setup.client) as client:
        session = Session(setup, client, facts, prompter)
        yield session


@dataclass(slots=True)
class Study:
    """The runs of a session, all with the same rule and objectives.

    chunks  whether the document contains the gaps between chunks
    show    shows the progress of runs; None shows nothing
    """

    setup: Setup
    session: Session
    rule: MeasurementRule
    objectives: Objectives | None = None
    chunks: bool = True
    show: Show | None = None
    runs: list[Run] = field(default_factory=list)
    _last: RunRecord | None = None
    _summary: Summary | None = None
    _search: SearchResult | None = None
    _sweep: Mapping[str, Any] | None = None

    @property
    def interrupted(self) -> bool:
        """Whether a run or the search was stopped."""
        stopped = self._search is not None and self._search.interrupted
        return stopped or any(run.interrupted for run in self.runs)

    def measure(self, make: MakeLoad, goal: Goal, *, seed: int | None = None) -> RunRecord:
        """Sends one load and adds its run."""
        with nullcontext() if self.show is None else self.show(goal) as watcher:
            record = self.session.run(make, watcher, seed=seed)
        self._last = record
        summary = summarise(record, self.rule, self.objectives, template=self.session.prompter.recipe.first)
        self._summary = replace(summary, notes=(*summary.notes, *self._short_prompts(record)))
        self.runs.append(run_of(record, self.rule, self._summary.to_json(), chunks=self.chunks))
        return record

    def measure_plan(self, plan: LoadPlan, *, seed: int | None = None) -> RunRecord:
        """Sends the load of a plan and adds its run."""
        goal = Goal(self.session.facts.model, plan.requests, plan.until_s, plan.rate)
        if plan.multi_turn:
            goal = replace(goal, requests=None, rate=None)  # a plan counts sessions, not requests
        return self.measure(plan.load, goal, seed=seed)

    def sweep_rates(self, plan: LoadPlan, rates: Sequence[float]) -> None:
        """Runs each rate for the duration of the plan, or SWEEP_S, until a run is stopped."""
        run, points = self._at_rate(plan), list[dict[str, Any]]()
        for seed, rate in enumerate(rates):
            record = run(rate, plan.duration_s or SWEEP_S, seed)
            assert self._summary is not None
            points.append(curve_point(rate, self._summary))
            self._sweep = {"rates": list(rates), "interrupted": record.interrupted, "points": points}
            if record.interrupted:
                return

    def sweep_concurrencies(self, plan: LoadPlan, clients: Sequence[int]) -> None:
        """Runs closed loops of these concurrencies, each for the duration of the plan, or SWEEP_S."""
        seconds = plan.duration_s or (None if plan.requests else SWEEP_S)
        self._sweep = {"concurrencies": list(clients)}
        for count in clients:
            closed = replace(plan, rate=None, concurrency=count, kind="poisson", duration_s=seconds)
            if self.measure_plan(closed).interrupted:
                return

    def search_rate(
        self, plan: LoadPlan, attainment: float, options: SearchOptions, on_trial: Callable[[Trial], None] | None = None
    ) -> SearchResult:
        """Searches the highest rate at which that share of requests meets the objectives. Raises ParameterError without
        objectives."""
        if self.objectives is None:
            raise ParameterError("A search needs objectives.", param="slo", hint="Give --slo ttft=500ms,tpot=50ms.")
        aim = Aim(self.objectives, attainment, self.rule)
        self._search = find_rate(self._at_rate(plan), aim, options, on_trial)
        return self._search

    def rate_one_by_one(self, plan: LoadPlan) -> float:
        """The first rate of a search: half the rate of a few requests sent one after another.

        A server that batches sustains more, so the first trial passes and is short.
        """
        single = replace(plan, **ONE_BY_ONE)
        record = self.session.run(single.load)
        taken = [sample.ended_s - sample.ask.due_s for sample in record.samples if sample.ended_s is not None]
        return 0.5 / max(sum(taken) / len(taken), SHORTEST_S) if taken else 1.0

    def write_trace(self, path: Path) -> None:
        """Writes the requests of the last run in Twofold's format of traces. Raises ResourceError."""
        if self._last is not None:
            write_trace(path, self._last.samples)

    def document(self, command: str, settings: Mapping[str, Any], version: str) -> Document:
        """The document of all results so far."""
        facts = self.session.facts
        target = Target(
            url=public_url(str(self.setup.target)),
            endpoint=self.setup.endpoint,
            model=facts.model,
            server=facts.server,
            details={"context": facts.context, "prompts": self.session.prompter.describe()},
        )
        return Document(
            schema=SCHEMA,
            version=version,
            command=command,
            settings=settings,
            target=target,
            machine=machine_of_this(),
            runs=self.runs,
            search=None if self._search is None else self._search.to_json(),
            sweep=self._sweep,
        )

    def _short_prompts(self, record: RunRecord) -> Iterator[Note]:
        """A warning about prompts that are longer than requested because the template has too many tokens."""
        minimum = self.session.prompter.min_tokens
        made = [sample.ask for sample in record.samples if not sample.ask.history and sample.ask.messages is None]
        short = sum(1 for ask in made if ask.input_tokens < minimum)
        if short:
            text = f"{short} of {len(made)} prompts are longer than requested: {minimum} tokens is the minimum here"
            yield Note("short_prompts", text)

    def _at_rate(self, plan: LoadPlan) -> LoadRunner:
        """A function that runs the plan at a rate."""

        def run(rate: float, seconds: float, seed: int) -> RunRecord:
            return self.measure_plan(replace(plan, rate=rate, duration_s=seconds, requests=None), seed=seed)

        return run


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls ``stop`` for the first Ctrl-C or SIGTERM; the second one ends the program as usual."""
    with ExitStack() as stack:

        def handle(_number: int, _frame: FrameType | None) -> None:
            stack.close()
            stop()

        stack.enter_context(handled(handle, signal.SIGINT, signal.SIGTERM))
        yield
