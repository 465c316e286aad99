"""A bench of one server: looked at before the load, then asked by as many loads as it takes to answer a question.

A question is a plain load, a sweep of rates or concurrencies, or the search for the highest rate that meets objectives.
Each run has prompts of its own, or else a server that caches prefixes would know those of the run before.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any, Final

from twofold.bench.base import Watcher
from twofold.bench.client.client import ClientOptions, LoadClient, ServerTarget
from twofold.bench.endpoints.choose import endpoint_of
from twofold.bench.endpoints.discover import ServerFacts, check_lengths, find_server, first_answer
from twofold.bench.endpoints.options import EndpointOptions
from twofold.bench.load.base import Ask, Load, Prompt, PromptMessage
from twofold.bench.prompts.base import TokenCounter
from twofold.bench.prompts.choose import first_that_counts
from twofold.bench.prompts.prompter import Prompter, make_prompter
from twofold.bench.prompts.remote import remote_counters
from twofold.bench.record import RunRecord

SEEDS_APART: Final = 1_000_003
"""Between the seeds of two runs of a bench."""
FIRST_WORDS: Final = 8
FIRST_ANSWER: Final = 4
"""Words of the request that is sent before all, and tokens of its answer."""

MakeLoad = Callable[[Prompt, int], Load]
"""A load from what says what was sent, and a seed."""


@dataclass(frozen=True, slots=True)
class Setup:
    """Whom a bench asks, and how.

    model     None takes the only one that the server has
    options   of every request; their model is not looked at
    seed      of the load: arrivals and lengths
    prompts   the seed of what prompts say. Equal ones find their prompts in the server's cache the next time
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
        self._prompter = prompter
        self._runs = 1  # 0 are the prompts of the first request
        self.facts = facts

    @property
    def prompter(self) -> Prompter:
        return self._prompter

    def run(self, make: MakeLoad, watcher: Watcher | None = None, *, seed: int | None = None) -> RunRecord:
        """Sends a load with prompts that no other run has. The first Ctrl-C ends it, with what there is.

        ``seed`` is that of the load; the same for all runs where it is left out, so that only one thing differs.
        """
        self._prompter = self._prompter.with_seed(self._setup.prompts + SEEDS_APART * self._runs)
        self._runs += 1
        load = make(self.prompt, self._setup.seed if seed is None else self._setup.seed + seed)
        with stopped_by_signals(self._client.stop):
            return self._client.run(load, watcher)

    def prompt(self, ask: Ask) -> tuple[PromptMessage, ...]:
        """All messages of a request of the present run."""
        return self._prompter(ask)


@contextmanager
def opened(setup: Setup, local: TokenCounter | None = None, lengths: tuple[int, int] = (0, 0)) -> Iterator[Session]:
    """A session with a server that answered once, and so is warm.

    local    counts prompts; the server is asked to where it is None
    lengths  most tokens of a prompt and of an answer that will be asked for

    Raises NetworkError, AccessError, NotFoundError, ContextLengthError and others, each for what ``discover`` says.
    """
    as_given = endpoint_of(setup.endpoint, setup.options, _as_given)
    with LoadClient(setup.target, as_given, setup.client) as client:
        facts = find_server(client.exchange, as_given.headers, setup.model)
        check_lengths(facts, *lengths)
        options = replace(setup.options, model=facts.model, usage_each=facts.counts)
        counter = local or first_that_counts(remote_counters(client.exchange, setup.endpoint, options))
        prompter = make_prompter(counter, chat=setup.endpoint != "completions", seed=setup.prompts)
        first = endpoint_of(setup.endpoint, options, prompter)
        first_answer(client.exchange, first, Ask(0, 0.0, prompter.enough_tokens + FIRST_WORDS, FIRST_ANSWER))
        if facts.context is None:  # some servers know it once the model is loaded
            facts = find_server(client.exchange, as_given.headers, facts.model)
            check_lengths(facts, *lengths)
    session: list[Session] = []

    def prompt(ask: Ask) -> tuple[PromptMessage, ...]:
        return session[0].prompt(ask)

    endpoint = endpoint_of(setup.endpoint, options, prompt)
    with LoadClient(setup.target, endpoint, setup.client) as client:
        session.append(Session(setup, client, facts, prompter))
        yield session[0]


@contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Calls ``stop`` for the first Ctrl-C or SIGTERM; the second one ends the program as it does without this."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may say what signals do
        return
    before: dict[int, Any] = {}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def heard(_number: int, _frame: FrameType | None) -> None:
        restore()
        stop()

    for number in (signal.SIGINT, signal.SIGTERM):
        before[number] = signal.signal(number, heard)
    try:
        yield
    finally:
        restore()


def described(session: Session) -> Mapping[str, Any]:
    """What is known of the server and of the prompts, for the report."""
    return {"context": session.facts.context, "prompts": session.prompter.describe()}


def _as_given(ask: Ask) -> tuple[PromptMessage, ...]:
    return ask.messages or ()
