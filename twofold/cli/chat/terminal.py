"""Messages from a terminal, with editing, history and completion."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from prompt_toolkit import PromptSession
from prompt_toolkit.auto_suggest import AutoSuggestFromHistory
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import has_completions, is_done
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import ColorDepth, Output
from prompt_toolkit.output.defaults import create_output

from twofold.cli.chat.loop import BY_NAME, COMMANDS, QUOTES, is_open, message
from twofold.cli.chat.state import NAMES, SWITCHES
from twofold.cli.console import is_terminal, note
from twofold.core.errors import ResourceError
from twofold.host.paths import private_folder

PROMPT: Final = ">>> "
MORE: Final = "... "
PLACEHOLDER: Final = "Send a message (/help for commands)"
MAX_HISTORY: Final = 1 << 20
"""Maximum size of the history file in bytes; its older half is removed beyond that."""
MENU_ROWS: Final = 6


class TerminalReader:
    """``Reader`` of a terminal. ``input`` and ``output`` replace the real ones.

    history  the file of earlier messages; None keeps them for this chat only
    models   names that complete /model
    """

    def __init__(
        self,
        history: Path | None,
        models: Callable[[], list[str]],
        *,
        colour: bool = True,
        input: Input | None = None,
        output: Output | None = None,
    ) -> None:
        self._session: PromptSession[str] = PromptSession(
            history=_history(history),
            completer=CommandCompleter(models),
            complete_while_typing=True,
            auto_suggest=AutoSuggestFromHistory(),
            multiline=True,
            prompt_continuation=lambda _width, _line, wrapped: " " * len(MORE) if wrapped else MORE,
            key_bindings=_bindings(),
            enable_open_in_editor=True,
            reserve_space_for_menu=MENU_ROWS,
            color_depth=None if colour else ColorDepth.DEPTH_1_BIT,
            input=input,
            # standard error if only that is a terminal, so that standard output can be redirected
            output=output or (None if is_terminal(sys.stdout) else create_output(stdout=sys.stderr)),
        )

    def read(self) -> str:
        placeholder = FormattedText([("fg:ansibrightblack", PLACEHOLDER)])
        text = self._session.prompt(FormattedText([("bold", PROMPT)]), placeholder=placeholder)
        return message(text)


class CommandCompleter(Completer):
    """Completes commands, and their arguments."""

    def __init__(self, models: Callable[[], list[str]]) -> None:
        self._models = models
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        """prompt_toolkit's ``Completer.get_completions``."""
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        name, space, argument = text.partition(" ")
        if not space:
            for command in COMMANDS:
                if command.name.startswith(name):
                    yield Completion(command.name, -len(name), display_meta=command.help)
            return
        kind = BY_NAME[name].kind if name in BY_NAME else ""
        if kind == "file":
            inside = Document(argument, len(argument))
            yield from self._paths.get_completions(inside, complete_event)
        words: Iterable[str] = ()
        if kind == "setting":
            words = (*NAMES, *SWITCHES, "system")
        elif kind == "switch":
            words = ("on", "off")
        elif kind == "model":
            words = self._models()
        yield from (Completion(word, -len(argument)) for word in words if word.startswith(argument))


def _bindings() -> KeyBindings:
    bindings = KeyBindings()

    @bindings.add("enter", filter=~is_done)
    def _send(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None
        elif is_open(buffer.text):
            buffer.cursor_position = len(buffer.text)
            if not buffer.text.lstrip().startswith(QUOTES):
                buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @bindings.add("escape", "enter")
    @bindings.add("c-j")
    def _new_line(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @bindings.add("c-c")
    def _interrupt(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt())

    @bindings.add("tab", filter=has_completions)
    def _next(event: KeyPressEvent) -> None:
        state = event.current_buffer.complete_state
        if state is not None and len(state.completions) == 1:
            event.current_buffer.apply_completion(state.completions[0])
        else:
            event.current_buffer.complete_next()

    return bindings


def _history(path: Path | None) -> History:
    """The history in a file that only its owner can read, or in memory if there cannot be a file."""
    if path is None:
        return InMemoryHistory()
    try:
        private_folder(path.parent)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
        path.chmod(0o600)
        _shorten(path)
        return FileHistory(str(path))
    except (OSError, ResourceError) as error:
        note(f"The history is not saved: {error}")
        return InMemoryHistory()


def _shorten(path: Path) -> None:
    """Removes the older half of a long history, at the start of an entry."""
    if path.stat().st_size <= MAX_HISTORY:
        return
    text = path.read_bytes()
    at = text.find(b"\n\n#", len(text) - MAX_HISTORY // 2)
    with suppress(OSError):
        path.write_bytes(text[at + 1 :] if at >= 0 else b"")
