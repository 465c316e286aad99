"""A benchmark of one server: inspects it, then sends one or more loads.

Each run has its own prompts, since a server that caches prefixes would know those of the run before.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Final

from twofold.bench.base import TokenCounter, Watcher
from twofold.bench.client.client import LoadClient
from twofold.bench.client.loop import ClientOptions
from twofold.bench.client.target import ServerTarget
from twofold.bench.endpoints.discover import ServerFacts, check_lengths, find_server, first_response
from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions, no_prompt
from twofold.bench.load.base import Ask, Load, Prompt, PromptMessage
from twofold.bench.prompts.prompter import Prompter, make_prompter
from twofold.bench.prompts.remote import remote_counter
from twofold.bench.record import RunRecord

SEEDS_APART: Final = 1_000_003
"""Distance of the seeds of two runs."""
FIRST_WORDS: Final = 8
FIRST_TOKENS: Final = 4
"""Words of the first request, and tokens of its completion."""

MakeLoad = Callable[[Prompt, int], Load]
"""Makes a load from the messages of requests and a seed."""


@dataclass(frozen=True, slots=True)
class Setup:
    """The server of a benchmark, and how to send requests to it.

    model     None is the only model of the server
    options   of every request; their model is ignored
    seed      of the load: arrivals and lengths
    prompts   seed of the texts of prompts. With an equal one, the server has the prompts cached the next time
    """

    target: ServerTarget
    endpoint: str
    model: str | None
    options: EndpointOptions
    client: ClientOptions
    seed: int = 0
    prompts: int = 0


class Session:
    """Sends loads to one server. The runs of a session are numbered from 0."""

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
def opened(setup: Setup, local: TokenCounter | None = None, lengths: tuple[int, int] = (0, 0)) -> Iterator[Session]:
    """A session with a server that served one request, and so is warm.

    local    counts prompts; None counts them with the server
    lengths  maximum of input and of output tokens of the loads

    Raises NetworkError, AccessError, NotFoundError, ContextLengthError and others, as documented in ``discover``.
    """
    as_given = ApiEndpoint(setup.endpoint, setup.options, no_prompt)
    with LoadClient(setup.target, as_given, setup.client) as client:
        facts = find_server(client.exchange, as_given.headers, setup.model)
        check_lengths(facts, *lengths)
        options = replace(setup.options, model=facts.model, usage_each=facts.counts)
        counter = local or remote_counter(client.exchange, setup.endpoint, options)
        prompter = make_prompter(counter, chat=setup.endpoint != "completions", seed=setup.prompts)
        first = ApiEndpoint(setup.endpoint, options, prompter)
        first_response(client.exchange, first, Ask(0, 0.0, prompter.enough_tokens + FIRST_WORDS, FIRST_TOKENS))
        if facts.context is None:  # some servers report it only after loading the model
            facts = find_server(client.exchange, as_given.headers, facts.model)
            check_lengths(facts, *lengths)
    session: list[Session] = []
    endpoint = ApiEndpoint(setup.endpoint, options, lambda ask: session[0].prompt(ask))  # noqa: PLW0108 - made below
    with LoadClient(setup.target, endpoint, setup.client) as client:
        session.append(Session(setup, client, facts, prompter))
        yield session[0]


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls ``stop`` for the first Ctrl-C or SIGTERM; the second one ends the program as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set signal handlers
        return
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(_number: int, _frame: FrameType | None) -> None:
        restore()
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, handle)
    try:
        yield
    finally:
        restore()
