"""Compiles what callers ask for, off their threads and within a budget, and keeps what it compiled.

A form lives in a process of its own (``host``), which ends when it takes more than it may. So the only thing that a
hostile one costs others is a place in the line: callers take turns there, one form of each is compiled at a time, and
where the line is full the caller that has most in it is refused.
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
from twofold.engine.grammar.hosted import ForkServer, GrammarHost, HostedGrammar, Inbox
from twofold.engine.grammar.source import AnswerForm, form_of, impossible, portable
from twofold.engine.grammar.wire import Compile, described
from twofold.text.tokenizers.tokenizer import Tokenizer

T = TypeVar("T")
COMPILE_S: Final = 0.25
STEP_S: Final = 1.0
CACHED_GRAMMARS: Final = 64
IDLE_HOSTS: Final = 8
"""Hosts without an answer that are kept for the next one; a form whose host was let go is compiled again."""
MAX_WAITING: Final = 256
COMPILING: Final = 2


class Turns(Generic[T]):
    """Items by caller: callers take turns, however many items each has, and its own are in order. Not thread-safe."""

    def __init__(self) -> None:
        self._lines: OrderedDict[str, deque[T]] = OrderedDict()

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def add(self, caller: str, item: T) -> None:
        """Puts an item behind those of its caller."""
        self._lines.setdefault(caller, deque()).append(item)

    def next(self, besides: Container[str]) -> T | None:
        """Takes the next item of a caller that is not one of ``besides``; None where there is none."""
        caller = next((caller for caller in self._lines if caller not in besides), None)
        if caller is None:
            return None
        line = self._lines.pop(caller)
        item = line.popleft()
        if line:
            self._lines[caller] = line
        return item

    def surplus(self, most: int) -> T | None:
        """Takes the last item of the caller with the most where there are more than ``most``."""
        if len(self) <= most:
            return None
        caller = max(reversed(self._lines), key=lambda caller: len(self._lines[caller]))
        line = self._lines[caller]
        item = line.pop()
        if not line:
            del self._lines[caller]
        return item


@dataclass(frozen=True, slots=True)
class _CompileJob:
    caller: str
    key: bytes
    params: StructuredOutputsParams
    future: Future[AnswerForm] = field(default_factory=Future)


class GrammarCompiler:
    """Compiles for one model. Made cheaply: processes are started with the first grammar. Thread-safe.

    end_ids     every token that may end an answer
    vocab_size  how many logits a row has
    seconds     processor time of a compilation
    step_s      processor time of a token or of the mask after it; both decide what is refused, never an answer
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
        self._end_ids = tuple(end_ids)
        self._seconds, self._step_s = seconds, step_s
        self._server = ForkServer(lambda: described(tokenizer, self._end_ids, vocab_size))
        self._lock = threading.RLock()
        self._turns: Turns[_CompileJob] = Turns()
        self._compiling: set[str] = set()
        self._known: OrderedDict[bytes, AnswerForm] = OrderedDict()
        self._hosts: OrderedDict[bytes, GrammarHost] = OrderedDict()
        self._workers = ThreadPoolExecutor(COMPILING, thread_name_prefix="twofold-grammar")

    def submit(self, params: StructuredOutputsParams, caller: str = "") -> Future[AnswerForm]:
        """Compiles in the background. The future raises ParameterError for a form that is impossible, and
        ResourceError where too many wait already; callers share nothing but that line."""
        params = portable(params)
        key = msgspec.msgpack.encode((caller, params))
        with self._lock:
            known = self._known.get(key)
            if known is not None:
                self._known.move_to_end(key)
                done: Future[AnswerForm] = Future()
                done.set_result(known)
                return done
            job = _CompileJob(caller, key, params)
            self._turns.add(caller, job)
            surplus = self._turns.surplus(MAX_WAITING)
            self._go_on()
        if surplus is not None:
            surplus.future.set_exception(
                ResourceError(
                    f"{MAX_WAITING} grammars are already waiting to be compiled.", hint="Try again in a few seconds."
                )
            )
        return job.future

    def close(self) -> None:
        """Drops what waits, ends what runs, and lets the other processes go."""
        with self._lock:
            while (job := self._turns.next(())) is not None:
                job.future.cancel()
            hosts = [*self._hosts.values()]
        for host in hosts:
            host.close()
        self._workers.shutdown(wait=True, cancel_futures=True)
        self._server.close()

    def begin(self, grammar: HostedGrammar, max_tokens: int) -> tuple[GrammarHost, int, Inbox]:
        """A new answer of a form: its process, its number there, and what is said of it."""
        with self._lock:
            host = self._host_of(grammar)
            return host, *host.start(max_tokens)

    def _host_of(self, grammar: HostedGrammar) -> GrammarHost:
        """The process of a form that is in use; hosts that nobody uses are let go, the least recently used first."""
        with self._lock:
            host = self._hosts.get(grammar.key)
            if host is None or host.error is not None:
                host = GrammarHost(self._server, grammar.form, Compile(grammar.params, self._seconds, self._step_s))
                self._hosts[grammar.key] = host
            self._hosts.move_to_end(grammar.key)
            idle = [key for key, each in self._hosts.items() if each.idle and key != grammar.key]
            for key in idle[: max(0, len(idle) - IDLE_HOSTS + 1)]:
                self._hosts.pop(key).close()
            return host

    def _go_on(self) -> None:
        """Gives idle workers the next jobs of callers that none of them works for."""
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
                self._go_on()

    def _compiled(self, job: _CompileJob) -> AnswerForm:
        with self._lock:
            known = self._known.get(job.key)
        if known is not None:
            return known
        grammar = HostedGrammar(self, job.key, job.params, form_of(job.params))
        if not self._end_ids:
            raise impossible(grammar.form, "needs a model with an end-of-sequence token", "Use another model.")
        host = self._host_of(grammar)
        host.read_until(lambda: host.enough_tokens is not None)
        if host.error is not None:
            with self._lock:
                self._hosts.pop(job.key, None)
            raise host.error
        grammar.enough_tokens = host.enough_tokens or 0
        with self._lock:
            self._known[job.key] = grammar
            while len(self._known) > CACHED_GRAMMARS:
                self._known.popitem(last=False)
        return grammar
