"""The engine's side of grammars, which run in other processes (``host``).

A host that exceeds its limits is ended. Its completions end with an error, and the next one of its grammar gets a new
host.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import Final, Protocol

from twofold.core.errors import ParameterError, ResourceError, TwofoldError
from twofold.core.params import StructuredOutputsParams
from twofold.core.step import common_prefix
from twofold.engine.grammar import wire
from twofold.engine.grammar.form import check_room, too_much
from twofold.engine.grammar.wire import FORK, NUMBER, STATUS, Pipe
from twofold.host.env import quiet_child

START_S: Final = 60.0
PATIENCE_S: Final = 0.01
MIN_PATIENCE_S: Final = 1e-6
PATIENCE_GAIN: Final = 1.1
"""How long a step waits for a message of a host, at first and at most. This is halved after each mask that took more
processor time than PATIENCE_S, and multiplied by PATIENCE_GAIN after each other mask. Elapsed time does not count: a
busy machine delays cheap masks, too, and computing a row again costs more than waiting for them."""


class ForkServer:
    """The process that has the vocabulary and forks hosts; started when it is first needed. Thread-safe."""

    def __init__(self, describe: Callable[[], wire.Describe]) -> None:
        self._describe = describe
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None

    def fork(self) -> tuple[socket.socket, int]:
        """A new host: its socket, and its process id. Raises ResourceError if it cannot be started."""
        ours, theirs = socket.socketpair()
        with theirs:
            return ours, self._ask(FORK, 0, [theirs.fileno()])

    def status(self, process: int) -> int:
        """The exit status of a host, as from ``os.waitpid``; 0 if it is no longer known."""
        try:
            return self._ask(STATUS, process, [])
        except ResourceError:
            return 0

    def close(self) -> None:
        """Ends the process. Hosts end by themselves."""
        with self._lock:
            self._end()

    def _ask(self, command: bytes, number: int, descriptors: list[int]) -> int:
        with self._lock:
            try:
                control = self._control or self._start()
                socket.send_fds(control, [command + number.to_bytes(NUMBER, "little")], descriptors)
                return int.from_bytes(_read(control), "little")
            except OSError as error:
                self._end()
                raise ResourceError(
                    "The process that holds grammars could not be started.",
                    hint="Structured output needs processes of up to 256 MiB each.",
                ) from error

    def _start(self) -> socket.socket:
        control, theirs = socket.socketpair()
        self._control = control
        with theirs:
            command = [sys.executable, "-P", "-m", "twofold.engine.grammar.host", str(theirs.fileno())]
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=quiet_child(),
            )
        Pipe(control).send(self._describe())
        control.settimeout(START_S)
        _read(control)
        return control

    def _end(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _read(control: socket.socket) -> bytes:
    data = control.recv(NUMBER)
    if len(data) < NUMBER:
        raise ConnectionResetError("the fork server ended")
    return data


class Inbox:
    """The state of one completion, from its host's messages. ``awaited`` counts the ``Advanced`` still to arrive."""

    def __init__(self) -> None:
        self.finished = False
        self.shortened = False
        self.awaited = 0
        self.masks: list[memoryview] = []
        self.narrowed: list[bool] = []
        self.forced: list[int] = []
        self.error: TwofoldError | None = None


class GrammarHost:
    """A process that compiles one grammar and makes masks for its completions. Thread-safe: a waiting thread reads the
    messages of all completions."""

    def __init__(self, server: ForkServer, form: str, wanted: wire.Compile) -> None:
        connection, self._process = server.fork()
        self._server = server
        self._form = form
        self._seconds = wanted.compile_s
        self._pipe = Pipe(connection)
        self._lock = threading.RLock()
        self._numbers = count()
        self._inboxes: dict[int, Inbox] = {}
        self._patience = PATIENCE_S
        self.compiled: wire.Compiled | None = None
        self.error: TwofoldError | None = None
        self.send(wanted)

    @property
    def idle(self) -> bool:
        """Whether it is compiled and has no completion."""
        return not self._inboxes and self.compiled is not None

    def start(self, max_tokens: int) -> tuple[int, Inbox]:
        """A new completion: its number and its inbox."""
        with self._lock:
            number, inbox = next(self._numbers), Inbox()
            inbox.error = self.error
            self._inboxes[number] = inbox
            self.send(wire.Start(number, max_tokens))
            return number, inbox

    def drop(self, number: int) -> None:
        """Removes a completion."""
        with self._lock:
            self._inboxes.pop(number, None)
            self.send(wire.Drop(number))

    def send(self, message: wire.ToHost) -> None:
        """Sends a message. If the host has ended, nothing happens here, and the next ``read`` sets ``error``."""
        with self._lock, suppress(OSError):
            if self.error is None:
                self._pipe.send(message)

    def read(self, seconds: float | None) -> bool:
        """Waits up to ``seconds`` for a message or the end of the host (None: no limit); whether there was one."""
        if seconds != 0.0:  # without the lock, so that other threads can use the host
            with suppress(OSError):
                self._pipe.wait(seconds)
        with self._lock:
            if self.error is not None:
                return False
            try:
                message = self._pipe.receive(block=False)
            except (EOFError, OSError):
                self._fail(self._fault())
                return True
            if message is not None:
                self._take(message)  # type: ignore[arg-type]
            return message is not None

    def look(self, arrived: Callable[[], bool]) -> bool:
        """Reads all available messages; whether ``arrived`` holds now, or the host has ended."""
        while not arrived() and self.error is None:
            if not self.read(0.0):
                return False
        return True

    def wait_for(self, arrived: Callable[[], bool]) -> bool:
        """As ``look``, but waits for each message, at most PATIENCE_S, or less if masks of this grammar are slow."""
        while not self.look(arrived):
            if not self.read(self._patience):
                return False
        return True

    def read_until(self, arrived: Callable[[], bool]) -> None:
        """Waits until ``arrived`` holds, or the host has ended."""
        while not self.look(arrived):
            self.read(None)

    def close(self) -> None:
        """Ends the process."""
        with self._lock:
            if self.error is None:
                self._fail(ResourceError("The engine was closed.", hint="Send it to another engine."))
        with suppress(OSError):
            os.kill(self._process, signal.SIGKILL)

    def _take(self, message: wire.FromHost) -> None:
        match message:
            case wire.Compiled():
                self.compiled = message
            case wire.Refused(completion=None):
                self._fail(message.error)
            case wire.Refused(completion=int(number)):
                if number in self._inboxes:
                    self._inboxes[number].error = message.error
            case wire.Advanced(number, finished, shortened, forced):
                if number in self._inboxes:
                    inbox = self._inboxes[number]
                    inbox.finished, inbox.shortened, inbox.forced = finished, shortened, forced
                    inbox.awaited -= 1
            case wire.Masks(number, words, narrowed, seconds):
                changed = self._patience * (0.5 if seconds > PATIENCE_S else PATIENCE_GAIN)
                self._patience = min(max(changed, MIN_PATIENCE_S), PATIENCE_S)
                if number in self._inboxes:
                    self._inboxes[number].masks = [memoryview(mask).cast("I") for mask in words]
                    self._inboxes[number].narrowed = narrowed

    def _fail(self, error: TwofoldError) -> None:
        self.error = error
        self._pipe.close()
        for inbox in list(self._inboxes.values()):
            inbox.error = inbox.error or error

    def _fault(self) -> ParameterError:
        """The error for a process that ended by itself."""
        if self.compiled is not None:  # on the engine's thread, which waits for no fork server
            what = "takes too much processor time or memory"
            return too_much(self._form, f"is too complex: finding which tokens may follow {what}")
        slow = os.WTERMSIG(self._server.status(self._process)) == signal.SIGPROF
        limit = f"takes more than {self._seconds * 1e3:.0f} ms to compile"
        return too_much(self._form, limit if slow else "is too deep or too large to compile")


class _Hosts(Protocol):
    """The hosts of a model's grammars. ``narrowed`` as in ``GrammarCompiler``."""

    narrowed: int

    def begin(self, grammar: HostedGrammar, max_tokens: int) -> tuple[GrammarHost, int, Inbox]: ...


class HostedGrammar:
    """A compiled grammar in another process, for any number of completions. Thread-safe.

    ``min_tokens``, ``ends``: as in ``OutputGrammar``.
    """

    def __init__(self, hosts: _Hosts, key: bytes, params: StructuredOutputsParams, form: str) -> None:
        self._hosts = hosts
        self.key = key
        self.params = params
        self.form = form
        self.min_tokens = 0
        self.ends: bool | None = None

    def begin(self, max_tokens: int) -> tuple[GrammarHost, int, Inbox]:
        """A new completion, in the process of the grammar, which is started again if it was closed."""
        return self._hosts.begin(self, max_tokens)

    def count_narrowed(self, masks: int) -> None:
        """Counts masks that a token limit narrowed."""
        self._hosts.narrowed += masks

    def start(self, max_tokens: int) -> HostedConstraint:
        """The constraint of one completion of at most ``max_tokens`` tokens, which is valid whenever it ends if
        ``ends``.

        Raises ParameterError if the grammar needs more tokens than that.
        """
        check_room(self.min_tokens, max_tokens)
        return HostedConstraint(self, max_tokens)


class HostedConstraint:
    """A ``TokenConstraint`` whose masks are made in another process in parallel. Not thread-safe.

    ``masks`` waits for the masks, and raises ParameterError if the grammar exceeds a limit. The process is not used
    before the first mask or token.
    """

    def __init__(self, grammar: HostedGrammar, max_tokens: int) -> None:
        self._grammar = grammar
        self._max_tokens = max_tokens
        self._host: GrammarHost | None = None
        self._number = 0
        self._inbox = Inbox()
        self._prepared = False
        self._sent: tuple[int, ...] = ()
        self._drafts: tuple[int, ...] = ()

    def prepare(self, drafts: Sequence[int] = ()) -> None:
        """``TokenConstraint.prepare``: requests the next masks, once."""
        self._drafts = tuple(drafts)
        if not self._prepared:
            self._prepared, self._sent = True, self._drafts
            self._begin()
            if self._host is not None:
                self._host.send(wire.Prepare(self._number, self._sent))

    def _begin(self) -> None:
        if self._host is None and self._inbox.error is None:
            try:
                self._host, self._number, self._inbox = self._grammar.begin(self._max_tokens)
                weakref.finalize(self, self._host.drop, self._number).atexit = False
            except TwofoldError as error:
                self._inbox.error = error

    @property
    def ready(self) -> bool:
        return self._known_after(GrammarHost.look)

    def wait(self) -> bool:
        """``TokenConstraint.wait``."""
        return self._known_after(GrammarHost.wait_for)

    @property
    def finished(self) -> bool:
        if self._host is not None and self._inbox.awaited:
            self._host.wait_for(lambda: not self._inbox.awaited)
        return self._inbox.finished

    @property
    def shortened(self) -> bool:
        return self._inbox.shortened

    @property
    def forced(self) -> list[int]:
        """``TokenConstraint.forced``, from the host's reply to the last ``advance``."""
        return [] if self._inbox.awaited else self._inbox.forced

    def masks(self) -> list[memoryview]:
        """``TokenConstraint.masks``."""
        self._known_after(GrammarHost.read_until)
        if self._inbox.error is not None:
            raise self._inbox.error
        return self._inbox.masks[: 1 + common_prefix(self._sent, self._drafts)]

    def advance(self, tokens: Sequence[int]) -> None:
        """``TokenConstraint.advance``. The host makes no mask before ``prepare``: that would delay its reply to another
        completion's ``advance``."""
        assert not self._inbox.finished, "no token can follow a finished output"
        self._begin()
        self._grammar.count_narrowed(sum(self._inbox.narrowed[: len(tokens)]))
        self._inbox.masks, self._inbox.narrowed, self._prepared = [], [], False
        if self._host is not None:
            self._inbox.awaited += 1
            self._host.send(wire.Advance(self._number, tuple(tokens)))

    def _known_after(self, read: Callable[[GrammarHost, Callable[[], bool]], object]) -> bool:
        """Whether the mask or an error has arrived, after reading the host's messages by ``read``."""
        if not self._prepared:
            self.prepare()
        if not self._known() and self._host is not None:
            read(self._host, self._known)
        return self._known()

    def _known(self) -> bool:
        return bool(self._inbox.masks) or self._inbox.error is not None
