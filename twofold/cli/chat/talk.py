"""What was said in a chat: turns that can be taken back, dropped, saved and loaded."""

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
    """A system message and the turns after it: a question, its answer, and so on.

    ``dropped`` counts the oldest questions that are no longer sent, because the context was full.
    """

    system: str | None = None
    turns: list[Message] = field(default_factory=list)
    dropped: int = 0

    def messages(self, question: str) -> list[Message]:
        """What is sent for a question."""
        system = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*system, *self.turns[2 * self.dropped :], {"role": "user", "content": question}]

    def add(self, question: str, answer: str) -> None:
        self.turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]

    def drop(self) -> int:
        """Leaves out the older half of the turns that are sent, at least one; how many questions that were.

        Half, so that the prompts that follow begin alike for a while, and are found in the prefix cache.
        """
        sent = len(self.turns) // 2 - self.dropped
        more = (sent + 1) // 2
        self.dropped += more
        return more

    def undo(self) -> str | None:
        """Takes the last question and its answer back; the question."""
        if not self.turns:
            return None
        question = self.turns[-2]["content"]
        del self.turns[-2:]
        self.dropped = min(self.dropped, len(self.turns) // 2)
        return question

    def clear(self) -> None:
        """Forgets the turns; the system message stays."""
        self.turns.clear()
        self.dropped = 0

    @property
    def last_answer(self) -> str | None:
        return self.turns[-1]["content"] if self.turns else None

    def save(self, path: Path, model: str, settings: Mapping[str, Any]) -> None:
        """Writes the talk: as Markdown to a file named .md, else as JSON that ``load`` reads.

        Raises UsageError for a file that is something else, ResourceError where it cannot be written.
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
        """Replaces the talk by a saved one, or by any object with ``messages``; its settings.

        Raises UsageError where there is none.
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
