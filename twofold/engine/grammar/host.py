"""The processes that run grammars. llguidance cannot be interrupted, so each grammar has its own process, which the
operating system ends when it exceeds a limit, without any effect on others.

    fork server   ``main``: has the vocabulary, and forks hosts on request
    host          compiles one grammar, and makes the masks of its completions

The limits are in the host's processor time, enforced by a timer whose signal ends the host. Messages to the fork server
have nine bytes. FORK carries the socket of the new host; the reply is the process id. STATUS carries a process id; the
reply is the exit status (``os.waitpid``). Both processes end when the other side of their socket is closed.
"""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from threading import Thread
from typing import Final

from twofold.core.errors import ParameterError
from twofold.engine.grammar import wire
from twofold.engine.grammar.compiled import CompiledGrammar, matched, path_of, prepared
from twofold.engine.grammar.completion import Path
from twofold.engine.grammar.constraint import GrammarConstraint
from twofold.engine.grammar.form import too_much
from twofold.engine.grammar.source import grammar_source
from twofold.engine.grammar.vocabulary import TokenVocabulary
from twofold.engine.grammar.wire import FORK, NUMBER, Pipe
from twofold.text.tokenizers.encoder import PlainEncoder

MEMORY: Final = 256 << 20
"""Bytes that a host may use in addition to the memory of the fork server."""
SEARCHING: Final = 4
"""The search for a shortest output may take this many times the limit of compiling. It runs in a process of its own, so
that only the search ends at this limit: the grammar is used without a known end."""
BANK_S: Final = 4.0
TOKEN_S: Final = 0.1
"""A completion starts with BANK_S seconds of processor time, and every mask adds TOKEN_S, up to BANK_S."""
DRAFTS_S: Final = 2e-3
"""Processor time for the masks after drafts: if masks of a completion take longer, fewer are made."""
COMPILE_NICENESS: Final = 5
SLOW_STEP_S: Final = 0.02
SLOW_NICENESS: Final = 19
"""Hosts that compile, and hosts that once took more processor time than SLOW_STEP_S for a token or a mask, have a lower
priority than the engine. Other hosts have the engine's priority, since the engine waits for their masks."""


@dataclass(slots=True)
class _HostedCompletion:
    """``bank`` is the processor time left, and ``mask_s`` that of a recent mask, in seconds."""

    constraint: GrammarConstraint
    step_s: float
    bank: float = BANK_S
    mask_s: float = DRAFTS_S


class Host:
    """One grammar and its completions, over a socket. Tokens are taken on arrival, before masks are made. ``_wanted``
    are the completions whose masks are to be made, with their drafts."""

    def __init__(self, pipe: Pipe, vocabulary: TokenVocabulary) -> None:
        self._pipe = pipe
        self._vocabulary = vocabulary
        self._grammar: CompiledGrammar | None = None
        self._step_s = 0.0
        self._completions: dict[int, _HostedCompletion] = {}
        self._wanted: dict[int, tuple[int, ...]] = {}

    def run(self) -> None:
        """Serves messages until the other side is closed."""
        with suppress(EOFError, OSError):
            while True:
                message = self._pipe.receive(block=not self._wanted)
                if message is None:
                    self._make_masks(next(iter(self._wanted)))
                else:
                    self._handle(message)  # type: ignore[arg-type]

    def _handle(self, message: wire.ToHost) -> None:
        match message:
            case wire.Compile():
                compiling = Thread(target=self._compile, args=[message])  # a lowered priority cannot be raised again
                compiling.start()
                compiling.join()
            case wire.Start(number, max_tokens) if self._grammar is not None:
                self._completions[number] = _HostedCompletion(self._grammar.start(max_tokens), self._step_s)
            case wire.Prepare(number, drafts) if number in self._completions:
                self._wanted[number] = drafts
            case wire.Advance(number, tokens) if number in self._completions:
                self._advance(number, tokens)
            case wire.Drop(number):
                self._completions.pop(number, None)
                self._wanted.pop(number, None)

    def _compile(self, message: wire.Compile) -> None:
        """Runs on a separate thread, whose priority it lowers."""
        os.setpriority(os.PRIO_PROCESS, 0, COMPILE_NICENESS)
        try:
            with ended_after(message.compile_s):
                source = grammar_source(message.params)
                matcher = matched(source, self._vocabulary)
            with ended_after(SEARCHING * message.compile_s):
                grammar = prepared(source, matcher, self._vocabulary)
            if message.ends is not False:
                path = self._search(SEARCHING * message.compile_s, partial(path_of, source, grammar))
                if path is None and message.ends:  # outputs were promised to end
                    raise too_much(source.form, "takes too long to find a complete output again")
                grammar = replace(grammar, path=path)
            self._grammar = grammar
        except ParameterError as error:
            self._pipe.send(wire.Refused.of(error))
            return
        except Exception:  # such as MemoryError: it would end only this thread, and the engine would wait forever
            os._exit(1)
        self._step_s = message.step_s
        self._pipe.send(wire.Compiled(grammar.min_tokens, grammar.path is not None))

    def _search(self, seconds: float, find: Callable[[], Path | None]) -> Path | None:
        """The result of a search in another process, None if that ends without one. Raises ParameterError as
        ``find``."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            child = os.fork()
            if not child:
                self._pipe.close()
                with suppress(BaseException), ended_after(seconds):
                    try:
                        Pipe(theirs).send(wire.Found(find()))
                    except ParameterError as error:
                        Pipe(theirs).send(wire.Refused.of(error))
                os._exit(0)
            theirs.close()
            try:
                reply = Pipe(ours).receive()
            except (EOFError, OSError):
                return None
            finally:
                os.waitpid(child, 0)
        if isinstance(reply, wire.Refused):
            raise reply.error
        assert isinstance(reply, wire.Found)
        return reply.path

    def _advance(self, number: int, tokens: tuple[int, ...]) -> None:
        completion = self._completions[number]
        constraint = completion.constraint
        try:
            with _paid(completion):
                constraint.advance(tokens)
                forced = constraint.forced
        except ParameterError as error:
            self._refuse(number, error)
            return
        self._pipe.send(wire.Advanced(number, constraint.finished, constraint.shortened, forced))

    def _make_masks(self, number: int) -> None:
        drafts = self._wanted.pop(number)
        completion = self._completions[number]
        before = completion.bank = min(BANK_S, completion.bank + TOKEN_S)
        try:
            with _paid(completion):
                completion.constraint.prepare(drafts[: int(DRAFTS_S / completion.mask_s)])
                words = [bytes(mask) for mask in completion.constraint.masks()]
            seconds = before - completion.bank
            completion.mask_s = max(seconds / len(words), 1e-6)
        except ParameterError as error:
            self._refuse(number, error)
            return
        self._pipe.send(wire.Masks(number, words, completion.constraint.narrowed, seconds))

    def _refuse(self, number: int, error: ParameterError) -> None:
        del self._completions[number]
        self._wanted.pop(number, None)
        self._pipe.send(wire.Refused.of(error, number))


@contextmanager
def ended_after(seconds: float) -> Iterator[None]:
    """Ends this process when the block takes more than ``seconds`` of processor time."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


@contextmanager
def _paid(completion: _HostedCompletion) -> Iterator[None]:
    """Subtracts the block's processor time from the completion's; ends this process when that is used up."""
    allowed = max(min(completion.step_s, completion.bank), 1e-3)
    signal.setitimer(signal.ITIMER_PROF, allowed)
    try:
        yield
    finally:
        left, _ = signal.setitimer(signal.ITIMER_PROF, 0)
        taken = allowed - left
        completion.bank -= taken
        if taken > SLOW_STEP_S:
            os.setpriority(os.PRIO_PROCESS, 0, SLOW_NICENESS)


def _limit_memory() -> None:
    with open("/proc/self/statm", "rb") as file:
        data = int(file.read().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (data + MEMORY, data + MEMORY))


def _serve_forks(control: socket.socket, vocabulary: TokenVocabulary) -> None:
    ended: dict[int, int] = {}
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 1 + NUMBER, 1)
        if not data:
            return
        _reap(ended)
        number = int.from_bytes(data[1:], "little")
        if data[:1] == FORK:
            with socket.socket(fileno=descriptors[0]) as connection:
                number = os.fork()
                if not number:
                    control.close()
                    with suppress(OSError):  # only Linux has the file
                        _limit_memory()
                    Host(Pipe(connection), vocabulary).run()
                    os._exit(0)
        else:
            number = ended.pop(number) if number in ended else os.waitpid(number, 0)[1]
        control.sendall(number.to_bytes(NUMBER, "little"))


def _reap(ended: dict[int, int]) -> None:
    with suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            ended[found[0]] = found[1]


class _ReceivedVocabulary:
    """A ``TokenSource`` that another process described."""

    def __init__(self, description: wire.Describe) -> None:
        self.vocab_size = len(description.tokens)
        self.special_ids = description.special_ids
        self.bos_id = description.bos_id
        self.strips_first_space = description.strips_first_space
        self.token_bytes = description.tokens.__getitem__
        self._encode = PlainEncoder.from_description(description.encoder).encode

    def encode(self, text: str, *, add_special_tokens: bool, parse_special: bool) -> list[int]:
        assert not add_special_tokens
        assert not parse_special
        return self._encode(text)


def vocabulary_of(description: wire.Describe) -> TokenVocabulary:
    """The vocabulary that a message describes."""
    return TokenVocabulary(_ReceivedVocabulary(description), description.end_ids, description.size)


def main() -> None:
    """Serves forks over the socket whose descriptor is the argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine's process ends this one
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    control = socket.socket(fileno=int(sys.argv[1]))
    with suppress(EOFError, OSError):
        description = Pipe(control).receive()
        assert isinstance(description, wire.Describe)
        vocabulary = vocabulary_of(description)
        gc.collect()
        gc.freeze()  # so that collections do not write to the pages that hosts share
        control.sendall(bytes(NUMBER))
        _serve_forks(control, vocabulary)


if __name__ == "__main__":
    main()
