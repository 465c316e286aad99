"""Chat templates: the Jinja text inside a model file that turns messages into a prompt.

The variables and functions are those that Hugging Face's templates expect: ``messages``, ``tools``,
``add_generation_prompt``, ``bos_token``, ``eos_token``, ``raise_exception``, ``strftime_now``, ``tojson``.

Templates are rendered by processes of their own (``sandbox``); a process that exceeds its limits is replaced.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from twofold.core.errors import ParameterError, ResourceError, TemplateError, TemplateLimitError
from twofold.text.templates.messages import plain
from twofold.text.templates.sandbox_messages import (
    DONE,
    EXCEEDED,
    FAILED,
    HEAD_BYTES,
    INVALID,
    REFUSED,
    decoded,
    message,
)
from twofold.text.tokenizers.special import names

SECONDS: Final = 1.0
MAX_TEMPLATE_CHARACTERS: Final = 64 << 10
MAX_VARIABLE_CHARACTERS: Final = 64
RESERVED_VARIABLES: Final = names(
    "messages tools add_generation_prompt continue_final_message special_tokens tokenize trust_content "
    "bos_token eos_token pad_token range dict namespace cycler joiner raise_exception strftime_now "
    "self super loop caller varargs kwargs true false none True False None not and or in is if else"
)
"""Names that a caller's template variable cannot have: the engine sets them, or Jinja uses them."""
OTHER_TEMPLATE: Final = "Choose another one with chat_template: the name of a built-in family, or Jinja source."
MAX_PROCESSES: Final = 4
"""Processes of one template at the same time."""
START_ANOTHER_S: Final = 0.2
"""Seconds that a rendering waits for an idle process before it starts another: most renderings take a millisecond."""
WALL_S: Final = 60.0
"""Seconds to wait for a second of processor time on a busy machine; a process that takes longer was stopped."""
ROOT: Final = Path(__file__).parents[3]
FROM_OUTSIDE: Final = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGKILL, signal.SIGTERM})
"""Signals that are not caused by a template."""


class _EndedError(Exception):
    """The process ended before its reply.

    status       as ``Popen.returncode``
    by_template  whether the template is the cause
    """

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status
        self.by_template = -status not in FROM_OUTSIDE


class _Process:
    """A process that renders one template. One thread at a time may use it."""

    def __init__(self, seconds: float) -> None:
        # Python finds modules in the folder where it was started only if the package itself lies there. The process
        # has its own group, so that Ctrl-C does not reach it.
        here = os.path.samefile(".", ROOT)  # also if the current folder was deleted
        command = [sys.executable, *([] if here else ["-P"]), "-m", "twofold.text.templates.sandbox", str(seconds)]
        try:
            self.popen = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                process_group=0,
            )
        except OSError as error:
            raise ResourceError(
                f"The process that renders chat templates could not be started: {error.strerror}.",
                hint="Chats need one more process of up to 100 MiB.",
            ) from error
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        self._to, self._from = self.popen.stdin.fileno(), self.popen.stdout.fileno()
        os.set_blocking(self._to, False)
        os.set_blocking(self._from, False)
        self.is_loaded = False
        self.close = weakref.finalize(self, _end, self.popen, os.getpid())

    def ask(self, text: str) -> tuple[str, str]:
        """Sends a request; returns the kind and the text of the reply. Raises _EndedError."""
        until = time.monotonic() + WALL_S
        try:
            self._send(message(text), until)
            size = int.from_bytes(self._receive(HEAD_BYTES, until), "little")
            reply = decoded(self._receive(size, until))
        except (TimeoutError, BrokenPipeError, EOFError) as error:
            if not isinstance(error, TimeoutError):
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.popen.wait(1)  # its pipes are closed before it has ended
            status = self.popen.poll()
            raise _EndedError(-signal.SIGPROF if status is None else status) from error
        return reply[0], reply[1:]

    def _send(self, data: bytes, until: float) -> None:
        left = memoryview(data)
        while left:
            _wait(self._to, select.POLLOUT, until)
            with contextlib.suppress(BlockingIOError):
                left = left[os.write(self._to, left) :]

    def _receive(self, size: int, until: float) -> bytes:
        data = bytearray()
        while len(data) < size:
            _wait(self._from, select.POLLIN, until)
            piece = os.read(self._from, size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return bytes(data)


def _wait(descriptor: int, event: int, until: float) -> None:
    """Waits until there is something to read, or room to write. Raises TimeoutError."""
    poll = select.poll()
    poll.register(descriptor, event)
    if not poll.poll(max(0.0, until - time.monotonic()) * 1e3):
        raise TimeoutError


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    """Ends a process, unless this is a fork of the one that started it."""
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
    if os.getpid() == owner:
        process.kill()
        process.wait()
    else:
        process.returncode = 0


class ChatTemplate:
    """A chat template. Any thread may render it: a slow rendering does not delay others.

    A process starts when it is first needed. Up to ``MAX_PROCESSES`` run at once; one is kept while idle, and replaced
    if it ended. Raises TemplateError for source that is too long.

    processes  number of running processes
    clock      gives the local time that ``strftime_now`` shows
    seconds    limit on the processor time of compiling the template, and of each rendering
    """

    def __init__(self, source: str, *, clock: Callable[[], datetime] = datetime.now, seconds: float = SECONDS) -> None:
        if len(source) > MAX_TEMPLATE_CHARACTERS:
            raise _broken(f"has {len(source)} characters; at most {MAX_TEMPLATE_CHARACTERS} are allowed")
        self.source = source
        self.processes = 0
        self._clock = clock
        self._seconds = seconds
        self._changed = threading.Condition()
        self._idle: list[_Process] = []
        self._owner = os.getpid()
        self._fault: tuple[str, str] | None = None

    def start(self) -> None:
        """Starts a process now, without waiting for it. Raises ResourceError."""
        with self._changed:
            if not self.processes:
                self._idle.append(_Process(self._seconds))
                self.processes = 1

    def check(self) -> None:
        """Raises TemplateError if the template is not valid, TemplateLimitError if compiling it exceeds a limit."""
        self._ask(None)

    def close(self) -> None:
        """Ends idle processes until the next rendering."""
        with self._changed:
            self.processes -= len(self._idle)
            while self._idle:
                self._idle.pop().close()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        special_tokens: Mapping[str, str] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt. ``messages`` are as ``messages.validated`` returns them.

        Raises TemplateError when the template refuses them or fails, TemplateLimitError when it takes too much time
        or memory, ParameterError for a variable whose name is reserved, ResourceError if no process can be started.
        """
        named, own = dict(special_tokens or {}), plain(variables or {})
        check_variables(own, taken=named)
        context = named | {
            "messages": plain(messages),
            "tools": plain(tools),
            "add_generation_prompt": add_generation_prompt,
            **own,
        }
        try:
            request = json.dumps({"variables": context, "now": self._clock().isoformat()}, ensure_ascii=False)
        except ValueError as error:
            raise _broken(f"failed on these messages: {error}") from error
        return self._ask(request)

    def _ask(self, request: str | None, *, again: bool = True) -> str:
        """The prompt; for None, an empty text if the template compiles. ``again``: if the process was ended from
        outside, the request is sent to another one."""
        try:
            kind, text = self._fault or self._ask_once(request)
        except _EndedError as ended:
            if again and not ended.by_template:
                return self._ask(request, again=False)
            kind, text = EXCEEDED, self._cause(ended)
        if kind == DONE:
            return text
        if kind == REFUSED:
            raise TemplateError(
                f"The chat template refuses the messages: {text}",
                hint="Change the messages, or choose another chat template.",
            )
        if kind == EXCEEDED:
            raise TemplateLimitError(f"The chat template was stopped: {text}.", hint=OTHER_TEMPLATE)
        faults = {FAILED: "failed on these messages", INVALID: "is not valid"}
        raise _broken(f"{faults.get(kind, 'was stopped')}: {text.rstrip('.')}")

    def _ask_once(self, request: str | None) -> tuple[str, str]:
        process = self._take()
        kept = False
        try:
            kind, text = (DONE, "") if process.is_loaded else self._load(process)
            if process.is_loaded and request is not None:
                kind, text = process.ask(request)
            kept = process.is_loaded and kind != EXCEEDED
        finally:
            self._give_back(process, kept)
        return kind, text

    def _load(self, process: _Process) -> tuple[str, str]:
        """Compiles the template. A failure of the template is final: all further requests return it."""
        try:
            kind, text = process.ask(self.source)
        except _EndedError as ended:
            if not ended.by_template:
                raise
            kind, text = EXCEEDED, self._cause(ended)
        process.is_loaded = kind == DONE
        self._fault = None if process.is_loaded else (kind, text)
        return kind, text

    def _take(self) -> _Process:
        """An idle process, or a new one."""
        with self._changed:
            if self._owner != os.getpid():  # this is a fork: the processes belong to its parent
                self._idle, self.processes, self._owner = [], 0, os.getpid()
            if self.processes and not self._idle:
                self._changed.wait_for(lambda: self._idle, START_ANOTHER_S)
            self._changed.wait_for(lambda: self._idle or self.processes < MAX_PROCESSES)
            while self._idle:
                process = self._idle.pop()
                if process.popen.poll() is None:
                    return process
                process.close()
                self.processes -= 1
            self.processes += 1
        try:
            return _Process(self._seconds)
        except BaseException:
            with self._changed:
                self.processes -= 1
                self._changed.notify()
            raise

    def _give_back(self, process: _Process, kept: bool) -> None:
        with self._changed:
            if kept and not self._idle:
                self._idle.append(process)
            else:
                process.close()
                self.processes -= 1
            self._changed.notify()

    def _cause(self, ended: _EndedError) -> str:
        if ended.status == -signal.SIGPROF:
            return f"it takes more than {self._seconds:g} s of processor time"
        return "its process crashed" if ended.by_template else "its process was ended from outside"


def check_variables(variables: Iterable[str], taken: Iterable[str] = ()) -> None:
    """Raises ParameterError for a name that a template variable cannot have; ``taken`` are more reserved names."""
    for name in variables:
        if name in RESERVED_VARIABLES or name in taken:
            raise _unusable(name, f"The name of the template variable {name!r} is reserved.", "Remove it.")
        if not (name.isascii() and name.isidentifier()) or len(name) > MAX_VARIABLE_CHARACTERS:
            shown = f"{name[:MAX_VARIABLE_CHARACTERS]!r}"
            hint = f"Use ASCII letters, digits and underscores, at most {MAX_VARIABLE_CHARACTERS}."
            raise _unusable(name, f"A template variable cannot be named {shown}.", hint)


def _unusable(name: str, fault: str, hint: str) -> ParameterError:
    return ParameterError(fault, param=f"chat_template_kwargs.{name[:MAX_VARIABLE_CHARACTERS]}", hint=hint)


def _broken(fault: str) -> TemplateError:
    return TemplateError(f"The chat template {fault}.", hint=OTHER_TEMPLATE)
