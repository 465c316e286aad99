"""Chat templates: the Jinja text inside a model file that turns messages into a prompt.

The variables and functions are those that Hugging Face's templates expect: ``messages``, ``tools``,
``add_generation_prompt``, ``bos_token``, ``eos_token``, ``raise_exception``, ``strftime_now``, ``tojson``.

Templates are rendered by processes of their own (``sandbox``); a process that exceeds its limits is replaced.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from twofold.core.child import ChildEndedError, ChildProcess
from twofold.core.errors import ParameterError, TemplateError, TemplateLimitError
from twofold.text.templates.messages import plain
from twofold.text.templates.sandbox_messages import DONE, EXCEEDED, FAILED, INVALID, REFUSED
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


class _TemplateProcess(ChildProcess):
    """A process that renders one template."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            "twofold.text.templates.sandbox",
            [str(seconds)],
            name="that renders chat templates",
            hint="Chats need one more process of up to 100 MiB.",
        )
        self.is_loaded = False


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
        self._idle: list[_TemplateProcess] = []
        self._owner = os.getpid()
        self._fault: tuple[str, str] | None = None

    def start(self) -> None:
        """Starts a process now, without waiting for it. Raises ResourceError."""
        with self._changed:
            if not self.processes:
                self._idle.append(_TemplateProcess(self._seconds))
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
        except ChildEndedError as ended:
            if again and not ended.by_work:
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

    def _load(self, process: _TemplateProcess) -> tuple[str, str]:
        """Compiles the template. A failure of the template is final: all further requests return it."""
        try:
            kind, text = process.ask(self.source)
        except ChildEndedError as ended:
            if not ended.by_work:
                raise
            kind, text = EXCEEDED, self._cause(ended)
        process.is_loaded = kind == DONE
        self._fault = None if process.is_loaded else (kind, text)
        return kind, text

    def _take(self) -> _TemplateProcess:
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
            return _TemplateProcess(self._seconds)
        except BaseException:
            with self._changed:
                self.processes -= 1
                self._changed.notify()
            raise

    def _give_back(self, process: _TemplateProcess, kept: bool) -> None:
        with self._changed:
            if kept and not self._idle:
                self._idle.append(process)
            else:
                process.close()
                self.processes -= 1
            self._changed.notify()

    def _cause(self, ended: ChildEndedError) -> str:
        if ended.timed_out:
            return f"it takes more than {self._seconds:g} s of processor time"
        return "its process crashed" if ended.by_work else "its process was ended from outside"


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
