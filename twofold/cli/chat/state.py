"""The state of a chat: its settings, and its turns, which can be undone, dropped, saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final

from twofold.cli.chat.base import Message
from twofold.cli.options import DisplayOptions, SamplingOptions
from twofold.core import sampling_defaults
from twofold.core.errors import ParameterError, ResourceError, UsageError, closest_match
from twofold.core.sampling_defaults import SamplingDefaults

NAMES: Final = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "seed",
    "stop",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Sampling parameters by their names in the APIs."""
SWITCHES: Final = ("stats", "markdown")
DEFAULT: Final = "default"
"""Resets a parameter to the default of the model or server."""
OFF: Final = ("off", "none", "no", "false", "0")
ON: Final = ("on", "yes", "true", "1")
_WHOLE: Final = frozenset({"top_k", "max_tokens", "seed"})
DOCUMENT_KIND: Final = "twofold chat"
ROLES: Final = ("system", "user", "assistant")
MAX_BYTES: Final = 64 << 20


@dataclass(slots=True)
class ChatSettings:
    """Sampling parameters and display options of the next completion."""

    sampling: SamplingOptions
    output: DisplayOptions

    def change(self, name: str, text: str) -> None:
        """Sets ``name`` to the value in ``text``. Raises UsageError for an unknown name or invalid value."""
        name = full_name(name)
        if name in SWITCHES:
            self.output = replace(self.output, quiet=False, **{name: _switch(name, text)})
            return
        changed = replace(self.sampling, **{name: _value(name, text)})
        changed.params()
        self.sampling = changed

    def text(self, name: str, defaults: SamplingDefaults) -> str:
        """A setting as ``change`` accepts it, or the model's default."""
        name = full_name(name)
        value = getattr(self.output if name in SWITCHES else self.sampling, name)
        if value is None and name in sampling_defaults.NAMES:
            default = defaults.given().get(name)
            return DEFAULT if default is None else f"{default:g} ({DEFAULT})"
        return _text(value)

    def as_dict(self) -> dict[str, Any]:
        """The sampling parameters by name."""
        return {name: getattr(self.sampling, name) for name in NAMES}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restores the result of ``as_dict``. Raises ParameterError for an invalid value and changes nothing."""
        known = {field.name for field in fields(self.sampling)} & set(NAMES)
        try:
            changed = replace(self.sampling, **{name: value for name, value in saved.items() if name in known})
            changed.params()
        except (TypeError, ValueError) as error:
            raise ParameterError("The saved settings are invalid.", param="settings") from error
        self.sampling = changed

    def lines(self, defaults: SamplingDefaults) -> list[str]:
        """All settings and their values, one per line."""
        return [f"{name:<20}{self.text(name, defaults)}" for name in (*NAMES, *SWITCHES)]


def full_name(given: str) -> str:
    """The setting with this name, or the only one with this prefix. Raises UsageError."""
    known = (*NAMES, *SWITCHES)
    given = given.replace("-", "_")
    found = [given] if given in known else [name for name in known if given and name.startswith(given)]
    if len(found) == 1:
        return found[0]
    close = ", ".join(found) or closest_match(given, known)
    raise UsageError(
        f"There is no setting {given!r:.60}.",
        hint=f"Did you mean {close}?" if close else f"Settings: {', '.join((*known, 'system'))}.",
    )


def _text(value: object) -> str:
    if value is None or value == []:
        return "off"
    if isinstance(value, bool):
        return "on" if value else "off"
    return ", ".join(map(repr, value)) if isinstance(value, list) else str(value)


def _switch(name: str, text: str) -> bool:
    word = text.strip().lower()
    if word in ON or word in OFF:
        return word in ON
    raise UsageError(f"{name} is on or off, not {text!r:.40}.")


def _value(name: str, text: str) -> Any:
    text = text.strip()
    if name == "stop" and text.lower() in OFF:
        return []
    if name == "seed" and text.lower() in ("off", "none"):
        return None
    if name in sampling_defaults.NAMES and text.lower() == DEFAULT:
        return None
    try:
        if name == "stop":
            return [text.encode("latin-1", "backslashreplace").decode("unicode_escape")]
        return int(text) if name in _WHOLE else float(text)
    except ValueError:
        kind = "a text with valid escapes" if name == "stop" else "a whole number" if name in _WHOLE else "a number"
        raise UsageError(f"{name} must be {kind}, not {text!r:.40}.") from None


@dataclass(slots=True)
class Transcript:
    """A system message, and questions and replies in turn.

    ``dropped`` counts the oldest questions that are no longer sent, because the context was full.
    """

    system: str | None = None
    turns: list[Message] = field(default_factory=list)
    dropped: int = 0

    def messages(self, question: str) -> list[Message]:
        """The messages to send for a question."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.turns[2 * self.dropped :], {"role": "user", "content": question}]

    def add(self, question: str, reply: str) -> None:
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]

    def drop(self) -> None:
        """Drops the older half of the sent turns, at least one.

        Dropping half keeps the prefix of the next prompts equal for a while, so the prefix cache has it.
        """
        self.dropped += (len(self.turns) // 2 - self.dropped + 1) // 2

    def undo(self) -> str | None:
        """Removes the last question and its reply. Returns the question, or None."""
        if not self.turns:
            return None
        question = self.turns[-2]["content"]
        del self.turns[-2:]
        self.dropped = min(self.dropped, len(self.turns) // 2)
        return question

    def clear(self) -> None:
        """Removes the turns; keeps the system message."""
        self.turns.clear()
        self.dropped = 0

    @property
    def last_reply(self) -> str | None:
        return self.turns[-1]["content"] if self.turns else None

    def save(self, path: Path, model: str, settings: Mapping[str, Any]) -> None:
        """Writes Markdown to a file named .md, otherwise JSON that ``load`` reads.

        Raises UsageError if the file exists and is not a chat, ResourceError if it cannot be written.
        """
        if path.exists() and not _is_saved_chat(path):
            raise UsageError(f"{path} exists and is not a saved chat.", hint="Choose another name.")
        messages = [*([] if self.system is None else [{"role": "system", "content": self.system}]), *self.turns]
        if path.suffix == ".md":
            text = f"<!-- {DOCUMENT_KIND}: {model} -->\n\n"
            text += "\n\n".join(f"**{message['role'].capitalize()}**\n\n{message['content']}" for message in messages)
        else:
            document = {"kind": DOCUMENT_KIND, "model": model, "settings": settings, "messages": messages}
            text = json.dumps(document, indent=2, ensure_ascii=False)
        try:
            path.write_text(text + "\n", "utf-8")
        except OSError as error:
            raise ResourceError(f"{path} cannot be written: {error.strerror}.") from error

    def load(self, path: Path) -> Mapping[str, Any]:
        """Loads a saved chat, or any object with ``messages``. Returns its settings.

        Raises UsageError for other files.
        """
        document = _read(path)
        messages = document if isinstance(document, list) else document.get("messages")
        if not isinstance(messages, list) or not all(map(_is_message, messages)):
            raise UsageError(
                f"{path} is not a saved chat.", hint='A chat is {"messages": [{"role": …, "content": …}, …]}.'
            )
        system = messages[0]["content"] if messages and messages[0]["role"] == "system" else None
        turns = messages[system is not None :]
        wanted = ["user", "assistant"] * (len(turns) // 2)
        if [message["role"] for message in turns] != wanted:
            raise UsageError(
                f"{path} is not a saved chat: user and assistant must alternate, and the assistant must be last."
            )
        self.system, self.turns, self.dropped = system, turns, 0
        settings = document.get("settings", {}) if isinstance(document, dict) else {}
        return settings if isinstance(settings, dict) else {}


def _read(path: Path) -> Any:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{path} is too large for a chat.")
        return json.loads(path.read_text("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON.", hint="Save chats to a file that does not end in .md.") from error


def _is_message(message: object) -> bool:
    return (
        isinstance(message, dict)
        and message.get("role") in ROLES
        and isinstance(message.get("content"), str)
        and message.keys() <= {"role", "content"}
    )


def _is_saved_chat(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return DOCUMENT_KIND in file.read(200) or path.stat().st_size == 0
    except (OSError, UnicodeDecodeError):
        return False
