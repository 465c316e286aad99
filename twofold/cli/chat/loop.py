"""The loop of a chat: reads messages, prints replies, and runs commands such as /help."""

from __future__ import annotations

import base64
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, TypeAlias

from twofold.cli.chat.base import ChatCompletion, ChatModel, Prompt, PromptRequest, end_notes
from twofold.cli.chat.state import ChatSettings, Transcript, full_name
from twofold.cli.console import completion_writer, faint, fold, is_terminal, note, print_error
from twofold.core.errors import ContextLengthError, TwofoldError, UsageError, closest_match
from twofold.core.units import count

QUOTES: Final = '"""'
MORE_TOKENS: Final = "/set max_tokens raises the limit"
ROOM_SHARE: Final = 4
"""Turns are dropped until at least 1/ROOM_SHARE of the context is free for a completion."""
LEAVE: Final = "Press Ctrl-C again to leave, or type /bye."
MAX_BYTES: Final = 74_994
"""Maximum length of a text for the clipboard, from xterm's documentation of control sequences."""


Argument: TypeAlias = Literal["", "file", "model", "setting", "switch", "text"]
_FORM: Final = re.compile(r"/[a-z?]*(?=\s|$)")

KEYS: Final = """\
Enter sends. Alt-Enter, Ctrl-J or a backslash at the end of a line starts a new line. Text between \"\"\" can have \
several lines.
Ctrl-C stops a reply, and leaves at an empty prompt when pressed twice. Ctrl-D leaves. Ctrl-R searches the history."""


class Reader(Protocol):
    """A source of messages."""

    def read(self) -> str:
        """The next message. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C at an empty prompt."""


def is_open(text: str) -> bool:
    """Whether a message continues on the next line: it ends in a backslash, or its three quotes are not closed."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return len(stripped) < 2 * len(QUOTES) or not stripped.endswith(QUOTES)
    return text.endswith("\\")


def message(text: str) -> str:
    """The typed message, without the quotes around it or the backslashes at the ends of its lines."""
    stripped = text.strip()
    if stripped.startswith(QUOTES):
        return stripped[len(QUOTES) :].removesuffix(QUOTES).strip("\n")
    return text.replace("\\\n", "\n").strip()


class StandardInputReader:
    """``Reader`` of standard input, without line editing."""

    def __init__(self, *, prompts: bool) -> None:
        self._prompt, self._more = ("> ", "… ") if prompts else ("", "")

    def read(self) -> str:
        """``Reader.read``. Text before the end of input is a message, even without a line end."""
        lines = [input(self._prompt)]
        while is_open("\n".join(lines)):
            try:
                lines.append(input(self._more))
            except EOFError:
                break
        return message("\n".join(lines))


@dataclass(slots=True)
class Chat:
    """A conversation with a model. Setting ``left`` ends it."""

    model: ChatModel
    settings: ChatSettings
    transcript: Transcript
    left: bool = False

    def run(self, reader: Reader) -> None:
        """Reads messages and replies to them until the end."""
        warned = False
        while not self.left:
            try:
                text = reader.read()
            except EOFError:
                return
            except KeyboardInterrupt:
                if warned:
                    return
                warned = True
                note(LEAVE)
                continue
            warned = False
            self.take(text)

    def take(self, text: str) -> None:
        """Runs a command or replies to a message; prints errors instead of raising them."""
        try:
            if is_command(text):
                run_command(self, text)
            elif text.strip():
                self.ask(text)
        except TwofoldError as error:
            print_error(str(error), error.hint)

    def ask(self, question: str) -> None:
        """Prints a reply and adds the turn to the transcript. Drops the oldest turns if the context is full."""
        sent_from = self.transcript.dropped
        completion = self._reply(question) if self.model.has_template else self._complete(question, 1)
        self.transcript.add(question, completion.text)
        if self.settings.output.quiet:
            return
        if (dropped := self.transcript.dropped) > sent_from:
            oldest = "turn was" if dropped == 1 else f"{dropped:,} turns were"
            note(f"The context is full: the oldest {oldest} not sent.")
        for line in end_notes(completion, self.settings.sampling.max_tokens, self.model.context, MORE_TOKENS):
            note(fold(line))
        if self.settings.output.stats and (line := self.model.statistics()):
            note(faint(fold(line)))
        if self.settings.output.verbose:
            note(faint("\n".join(self.model.explain())))

    def say(self, line: str) -> None:
        """Prints a line unless --quiet is set."""
        if not self.settings.output.quiet:
            note(line)

    def greet(self) -> None:
        """Prints the model's name."""
        self.say(f"{self.model.name}. /help lists the commands.")
        self.mention_template()

    def mention_template(self) -> None:
        """Prints a note if the model has no chat template."""
        if not self.model.has_template:
            self.say("The model has no chat template: it completes each message by itself.")

    def _reply(self, question: str) -> ChatCompletion:
        """The reply. Drops as many turns as needed, and none if that does not help."""
        before = self.transcript.dropped
        while True:
            can_drop = len(self.transcript.turns) > 2 * self.transcript.dropped
            try:
                return self._complete(self.transcript.messages(question), self._room() if can_drop else 1)
            except TwofoldError as error:
                if not isinstance(error, ContextLengthError) or not can_drop:
                    self.transcript.dropped = before
                    raise
                self.transcript.drop()

    def _complete(self, prompt: Prompt, room: int) -> ChatCompletion:
        markdown = self.settings.output.markdown and not isinstance(prompt, str)
        with completion_writer(markdown=markdown) as write:
            return self.model.complete(PromptRequest(prompt, self.settings.sampling, room=room), write)

    def _room(self) -> int:
        wanted = self.settings.sampling.max_tokens
        return wanted if self.model.context is None else max(1, min(wanted, self.model.context // ROOM_SHARE))


def copy(text: str) -> None:
    """Copies ``text`` to the clipboard of the terminal with the escape sequence OSC 52, which also works over ssh.

    Raises UsageError without a terminal, and for long texts.
    """
    stream = next((stream for stream in (sys.stdout, sys.stderr) if is_terminal(stream)), None)
    if stream is None:
        raise UsageError("Copying needs a terminal.")
    data = text.encode()
    if len(data) > MAX_BYTES:
        raise UsageError("The reply is too long for the clipboard of a terminal.", hint="Use /save FILE.")
    stream.write(f"\x1b]52;c;{base64.b64encode(data).decode()}\x07")
    stream.flush()


@dataclass(frozen=True, slots=True)
class Command:
    """A command. ``usage`` describes its argument, ``kind`` selects its completions."""

    name: str
    usage: str
    help: str
    run: Callable[[Chat, str], None]
    kind: Argument = ""
    aliases: tuple[str, ...] = ()


def is_command(text: str) -> bool:
    """Whether a message is a command, /name alone or before a space. A path is not."""
    return _FORM.match(text) is not None


def run_command(chat: Chat, line: str) -> None:
    """Runs a command line. Raises UsageError for an unknown command."""
    name, _, text = line.partition(" ")
    command = BY_NAME.get(name)
    if command is None:
        close = closest_match(name, BY_NAME)
        raise UsageError(f"There is no {name}.", hint=f"Did you mean {close}?" if close else "/help lists them.")
    text = text.strip()
    if text and not command.usage:
        raise UsageError(f"{name} takes no argument.")
    command.run(chat, text)


def _help(_chat: Chat, _text: str) -> None:
    width = max(len(f"{command.name} {command.usage}") for command in COMMANDS) + 2
    for command in COMMANDS:
        also = f" (also {', '.join(command.aliases)})" if command.aliases else ""
        note(fold(f"{command.name + ' ' + command.usage:<{width}}{command.help}{also}", width))
    note(fold(KEYS))


def _set(chat: Chat, text: str) -> None:
    name, _, value = text.partition(" ")
    if name == "system":
        _system(chat, value)
    elif value.strip():
        chat.settings.change(name, value)
        chat.say(f"{full_name(name)} is {chat.settings.text(name, chat.model.defaults)}.")
    elif name:
        note(chat.settings.text(name, chat.model.defaults))
    else:
        note("\n".join([*chat.settings.lines(chat.model.defaults), f"{'system':<20}{chat.transcript.system or 'off'}"]))


def _system(chat: Chat, text: str) -> None:
    if not text:
        note(chat.transcript.system or "There is no system message.")
        return
    if not chat.model.has_template:
        raise UsageError("The model has no chat template, which a system message needs.")
    chat.transcript.system = None if text == "off" else text
    chat.say("The system message is set." if chat.transcript.system else "The system message is removed.")


def _show(chat: Chat, _text: str) -> None:
    context = "" if chat.model.context is None else f", context {chat.model.context:,} tokens"
    questions = len(chat.transcript.turns) // 2
    dropped = f", the oldest {chat.transcript.dropped} no longer sent" if chat.transcript.dropped else ""
    note(f"{'model':<20}{chat.model.name}{context}")
    note(f"{'system':<20}{chat.transcript.system or 'off'}")
    note(f"{'turns':<20}{questions}{dropped}")
    note("\n".join(chat.settings.lines(chat.model.defaults)))


def _save(chat: Chat, text: str) -> None:
    path = _path("/save", text)
    chat.transcript.save(path, chat.model.name, chat.settings.as_dict())
    chat.say(f"Saved {_questions(chat)} to {path}.")


def _load(chat: Chat, text: str) -> None:
    path = _path("/load", text)
    loaded = Transcript()
    chat.settings.restore(loaded.load(path))
    chat.transcript = loaded
    chat.say(f"Loaded {_questions(chat)} from {path}.")


def _path(command: str, text: str) -> Path:
    if not text:
        raise UsageError(f"{command} needs a file.", hint=f"{command} chat.json")
    return Path(text).expanduser()


def _questions(chat: Chat) -> str:
    return count(len(chat.transcript.turns) // 2, "turn")


def _clear(chat: Chat, _text: str) -> None:
    chat.transcript.clear()
    chat.say("The conversation is cleared.")


def _undo(chat: Chat, _text: str) -> None:
    question = chat.transcript.undo()
    if question is None:
        raise UsageError("There is nothing to undo.")
    line = " ".join(question.split())
    chat.say(f"Took back: {line if len(line) <= 60 else line[:59] + '…'}")


def _regenerate(chat: Chat, _text: str) -> None:
    last_turn = chat.transcript.turns[-2:]
    question = chat.transcript.undo()
    if question is None:
        raise UsageError("There is no reply to generate again.")
    try:
        chat.ask(question)
    except TwofoldError:
        chat.transcript.turns += last_turn
        raise


def _model(chat: Chat, text: str) -> None:
    if not text:
        note(chat.model.name)
        return
    chat.model.use(text)
    chat.greet()


def _models(chat: Chat, _text: str) -> None:
    for name in chat.model.models():
        note(f"{'*' if name == chat.model.name else ' '} {name}")


def _stats(chat: Chat, text: str) -> None:
    if text:
        chat.settings.change("stats", text)
        return
    note(chat.model.statistics() or "There is no reply yet.")


def _timeline(chat: Chat, _text: str) -> None:
    lines = chat.model.explain()
    note("\n".join(lines) if lines else "There is nothing to show.")


def _copy(chat: Chat, _text: str) -> None:
    if chat.transcript.last_reply is None:
        raise UsageError("There is no reply to copy.")
    copy(chat.transcript.last_reply)
    chat.say("The reply is on the clipboard, if the terminal allows that.")


def _leave(chat: Chat, _text: str) -> None:
    chat.left = True


COMMANDS: Final = (
    Command("/help", "", "List the commands.", _help, aliases=("/?",)),
    Command(
        "/set", "[NAME [VALUE]]", "Show or change settings: temperature, max_tokens, seed, system, …", _set, "setting"
    ),
    Command("/show", "", "Show the model, the system message and the settings.", _show),
    Command("/system", "[TEXT]", "Show or set the system message; off removes it.", _system, "text"),
    Command("/clear", "", "Forget the conversation; keep the system message.", _clear, aliases=("/reset",)),
    Command("/regenerate", "", "Generate the last reply again.", _regenerate, aliases=("/retry",)),
    Command("/undo", "", "Remove the last question and its reply.", _undo),
    Command("/save", "FILE", "Save the conversation as JSON, or as Markdown to a .md file.", _save, "file"),
    Command("/load", "FILE", "Load a saved conversation.", _load, "file"),
    Command("/model", "[NAME]", "Show or change the model; keeps the conversation.", _model, "model"),
    Command("/models", "", "List the models.", _models),
    Command("/copy", "", "Copy the last reply to the clipboard.", _copy),
    Command("/stats", "[on|off]", "Show statistics of the last reply, or switch them on or off.", _stats, "switch"),
    Command("/timeline", "", "Show where the time of the last reply went.", _timeline),
    Command("/bye", "", "Leave.", _leave, aliases=("/exit", "/quit")),
)
BY_NAME: Final = {name: command for command in COMMANDS for name in (command.name, *command.aliases)}
