"""What ``run`` and ``chat`` ask of a model, whether it runs in this process or in a server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from twofold.cli.options import SamplingOptions
from twofold.core.params import StructuredOutputsParams
from twofold.core.sampling_defaults import SamplingDefaults

Message: TypeAlias = Mapping[str, str]
"""``role`` and ``content``."""
Prompt: TypeAlias = Sequence[Message] | str
"""A conversation, or a text that is completed as it stands."""
Write: TypeAlias = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A prompt, and how it is answered. ``room`` is the least number of tokens that an answer must have left."""

    prompt: Prompt
    sampling: SamplingOptions
    form: StructuredOutputsParams | None = None
    room: int = 1


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """A whole answer. ``finish`` is OpenAI's finish reason, None where Ctrl-C cut the answer short.

    ``output_tokens`` and ``prompt_tokens`` are None where a server does not report them.
    """

    text: str
    finish: str | None
    prompt_tokens: int | None
    output_tokens: int | None

    @property
    def interrupted(self) -> bool:
        return self.finish is None


class ChatModel(Protocol):
    """A model that answers one prompt after the other.

    name          what it is called
    context       most tokens of a prompt with its answer; None where a server does not report it
    has_template  whether it takes conversations
    defaults      sampling parameters where a flag says nothing; empty where a server does not report them
    """

    @property
    def name(self) -> str: ...
    @property
    def context(self) -> int | None: ...
    @property
    def has_template(self) -> bool: ...
    @property
    def defaults(self) -> SamplingDefaults: ...

    def answer(self, request: PromptRequest, write: Write) -> ChatCompletion:
        """Streams one answer into ``write``; the first Ctrl-C ends it.

        Raises ContextLengthError where the prompt leaves fewer than ``room`` tokens of the context, and the error that
        ended the answer early.
        """

    def statistics(self) -> str:
        """One line about the last answer; empty where nothing is known."""

    def explain(self) -> list[str]:
        """Where the time of the last answer went, in lines."""

    def loading(self) -> str:
        """What was loaded, and how long that took."""

    def as_json(self) -> dict[str, Any]:
        """The last answer for programs."""

    def models(self) -> list[str]:
        """Names that ``use`` takes."""

    def use(self, name: str) -> None:
        """Changes to another model. Raises ModelError, NotFoundError or what loading raises; this one then stays."""


def cut_note(answer: ChatCompletion, max_tokens: int, context: int | None, more: str) -> str | None:
    """Says that an answer ended at a limit; ``more`` names what raises the limit of tokens."""
    if answer.finish == "deadline":
        return "Stopped: the time limit of the request was reached."
    if answer.finish != "length":
        return None
    if answer.output_tokens is None or answer.output_tokens >= max_tokens:
        return f"Stopped at {max_tokens:,} tokens; {more}."
    size = "" if context is None else f" of {context:,} tokens"
    return f"Stopped: the context{size} is full."
