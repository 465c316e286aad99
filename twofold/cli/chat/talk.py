"""The turns of a chat, which can be undone, dropped, saved and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from twofold.cli.chat.base import Message
from twofold.core.errors import ResourceError, UsageError

MARK: Final = "twofold chat"
ROLES: Final = ("system", "user", "assistant")
MAX_BYTES: Final = 64 << 20


@dataclass(slots=True)
class Talk:
    """A system message, and questions and answers in turn.

    ``dropped`` counts the oldest questions that are no longer sent, because the context was full.
    """

    system: str | None = None
    turns: list[Message] = field(default_factory=list)
    dropped: int = 0

    def messages(self, question: str) -> list[Message]:
        """The messages to send for a question."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.turns[2 * self.dropped :], {"role": "user", "content": question}]

    def add(self, question: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def drop(self) -> int:
        """Drops the older half of the sent turns, at least one. Returns the number of dropped questions.

        Dropping half keeps the prefix of the next prompts equal for a while, so the prefix cache has it.
        """
        sent = len(self.turns) // 2 - self.dropped
        more = (sent + 1) // 2
        self.dropped += more
        return more

    def undo(self) -> str | None:
        """Removes the last question and its answer. Returns the question, or None."""
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
    def last_answer(self) -> str | None:
        return self.turns[-1]["content"] if self.turns else None

    def save(self, path: Path, model: str, settings: Mapping[str, Any]) -> None:
        """Writes Markdown to a file named .md, otherwise JSON that ``load`` reads.

        Raises UsageError if the file exists and is not a chat, ResourceError if it cannot be written.
        """
        if path.exists() and not _is_ours(path):
            raise UsageError(f"{path} exists and is not a saved chat.", hint="Choose another name.")
        messages = [*([] if self.system is None else [{"role": "system", "content": self.system}]), *self.turns]
        if path.suffix == ".md":
            text = f"<!-- {MARK}: {model} -->\n\n"
            text += "\n\n".join(f"**{message['role'].capitalize()}**\n\n{message['content']}" for message in messages)
        else:
            document = {"kind": MARK, "model": model, "settings": settings, "messages": messages}
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
                f"{path} is not a saved chat: user and assistant must alternate, and the last message be an answer."
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


def _is_ours(path: Path) -> bool:
    try:
        with path.open(encoding="utf-8") as file:
            return MARK in file.read(200) or path.stat().st_size == 0
    except (OSError, UnicodeDecodeError):
        return False
