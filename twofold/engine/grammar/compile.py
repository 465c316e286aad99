"""Compiles grammars in the background, within a budget of processor time, and caches them.

Each grammar has its own process (``host``), which is ended when it exceeds its limits. So a hostile grammar delays
others only by its turn: callers take turns, one grammar of each caller is compiled at a time, and when the queue is
full, the last entry of the caller with the most entries is refused.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Container, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

from twofold.core.errors import ResourceError
from twofold.core.params import StructuredOutputsParams
from twofold.engine.grammar.form import OutputGrammar, form_of, impossible, portable
from twofold.engine.grammar.hosted import ForkServer, GrammarHost, HostedGrammar, Inbox
from twofold.engine.grammar.wire import Compile, described
from twofold.text.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")
COMPILE_S: Final = 0.25
STEP_S: Final = 1.0
CACHED_GRAMMARS: Final = 64
IDLE_HOSTS: Final = 8
"""Maximum number of idle hosts. A grammar whose host was closed is compiled again when it is used."""
MAX_WAITING: Final = 256
COMPILING: Final = 2


class Turns(Generic[T]):
    """A queue in which callers take turns, however many items each has. Items of a caller stay in order. Not
    thread-safe."""

    def __init__(self) -> None:
        self._queues: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._queues.values()))

    def add(self, caller: str, item: T) -> None:
        """Appends an item to its caller's queue."""
        self._queues.setdefault(caller, deque()).append(item)

    def next(self, besides: Container[str]) -> T | None:
        """Removes and returns the next item of a caller outside ``besides``; None if no such caller has an item."""
        caller = next((caller for caller in self._queues if caller not in besides), None)
        if caller is None:
            return None
        queue = self._queues.pop(caller)
        item = queue.popleft()
        if queue:
            self._queues[caller] = queue
        return item

    def surplus(self, most: int) -> T | None:
        """If there are more than ``most`` items, removes and returns the last one of the caller with the most items."""
        if len(self) <= most:
            return None
        caller = max(reversed(self._queues), key=lambda caller: len(self._queues[caller]))
        queue = self._queues[caller]
        item = queue.pop()
        if not queue:
            del self._queues[caller]
        return item


@dataclass(frozen=True, slots=True)
class _CompileJob:
    caller: str
    key: bytes
    params: StructuredOutputsParams
    future: Future[OutputGrammar] = field(default_factory=Future)


class GrammarCompiler:
    """Compiles grammars for one model. Processes are started with the first grammar. Thread-safe.

    end_ids     every token that may end a completion
    vocab_size  logits of a row
    seconds     maximum processor time of a compilation
    step_s      maximum processor time of a token, and of the mask after it; both limits end requests with an error and
                never change a completion

    ``narrowed`` counts the masks from which a token was sampled and in which the token limit forbade tokens that the
    grammar allows; on the engine's thread.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        end_ids: Iterable[int],
        vocab_size: int,
        *,
        seconds: float = COMPILE_S,
        step_s: float = STEP_S,
    ) -> None:
        self.narrowed = 0
        self._end_ids = tuple(end_ids)
        self._seconds, self._step_s = seconds, step_s
        self._server = ForkServer(lambda: described(tokenizer, self._end_ids, vocab_size))
        self._lock = threading.RLock()
        self._hosts_lock = threading.RLock()  # held while a process starts; ``submit`` does not wait for it
        self._turns: Turns[_CompileJob] = Turns()
        self._compiling: set[str] = set()
        self._known: OrderedDict[bytes, OutputGrammar] = OrderedDict()
        self._hosts: OrderedDict[bytes, GrammarHost] = OrderedDict()
        self._workers = ThreadPoolExecutor(COMPILING, thread_name_prefix="twofold-grammar")

    def submit(self, params: StructuredOutputsParams, caller: str = "") -> Future[OutputGrammar]:
        """Compiles in the background. The future raises ParameterError for an impossible grammar, ResourceError if too
        many are waiting. Equal grammars of different callers are compiled separately."""
        params = portable(params)
        key = msgspec.msgpack.encode((caller, params))
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                done: Future[OutputGrammar] = Future()
                done.set_result(known)
                return done
            job = _CompileJob(caller, key, params)
            self._turns.add(caller, job)
            surplus = self._turns.surplus(MAX_WAITING)
            self._start_jobs()
        if surplus is not None:
            surplus.future.set_exception(
                ResourceError(
                    f"{MAX_WAITING} grammars are already waiting to be compiled.", hint="Try again in a few seconds."
                )
            )
        return job.future

    def close(self) -> None:
        """Cancels waiting jobs, and ends all processes."""
        with self._lock:
            while (job := self._turns.next(())) is not None:
                job.future.cancel()
        with self._hosts_lock:
            for host in self._hosts.values():
                host.close()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._server.close()

    def begin(self, grammar: HostedGrammar, max_tokens: int) -> tuple[GrammarHost, int, Inbox]:
        """A new completion under a grammar: its process, its number there, and its inbox."""
        with self._hosts_lock:
            host = self._host_of(grammar)
            return host, *host.start(max_tokens)

    def _host_of(self, grammar: HostedGrammar) -> GrammarHost:
        """The process of a grammar, started if necessary. Too many idle hosts are closed, least recently used first."""
        with self._hosts_lock:
            host = self._hosts.get(grammar.key)
            if host is None or host.error is not None:
                host = GrammarHost(
                    self._server, grammar.form, Compile(grammar.params, self._seconds, self._step_s, grammar.ends)
                )
                self._hosts[grammar.key] = host
            self._hosts.move_to_end(grammar.key)
            idle = [key for key, each in self._hosts.items() if each.idle and key != grammar.key]
            for key in idle[: max(0, len(idle) - IDLE_HOSTS + 1)]:
                self._hosts.pop(key).close()
            return host

    def _start_jobs(self) -> None:
        """Starts the next jobs, of callers without a running one, on idle workers."""
        while len(self._compiling) < COMPILING and (job := self._turns.next(self._compiling)) is not None:
            if job.future.set_running_or_notify_cancel():
                self._compiling.add(job.caller)
                self._workers.submit(self._work, job)

    def _work(self, job: _CompileJob) -> None:
        try:
            job.future.set_result(self._compiled(job))
        except Exception as error:
            job.future.set_exception(error)
        finally:
            with self._lock:
                self._compiling.discard(job.caller)
                self._start_jobs()

    def _compiled(self, job: _CompileJob) -> OutputGrammar:
        with self._lock:
            known = self._known.get(job.key)
        if known is not None:
            return known
        grammar = HostedGrammar(self, job.key, job.params, form_of(job.params))
        if not self._end_ids:
            raise impossible(grammar.form, "needs a model with an end-of-sequence token", "Use another model.")
        host = self._host_of(grammar)
        host.read_until(lambda: host.compiled is not None)
        if host.error is not None:
            with self._hosts_lock:
                self._hosts.pop(job.key, None)
            raise host.error
        assert host.compiled is not None
        grammar.min_tokens, grammar.ends = host.compiled.min_tokens, host.compiled.ends
        with self._lock:
            self._known[job.key] = grammar
            while len(self._known) > CACHED_GRAMMARS:
                self._known.popitem(last=False)
        return grammar
