"""The model of ``run`` and ``chat``, in this process or behind a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from twofold.cli.console import Write
from twofold.cli.options import SamplingOptions
from twofold.core.params import StructuredOutputsParams
from twofold.core.sampling_defaults import SamplingDefaults

Message: TypeAlias = Mapping[str, str]
"""``role`` and ``content``."""
Prompt: TypeAlias = Sequence[Message] | str
"""A conversation, or a raw prompt."""


@dataclass(frozen=True, slots=True)
class PromptRequest:
    """A prompt and its sampling parameters. ``room`` is the number of tokens that must be free for the completion."""

    prompt: Prompt
    sampling: SamplingOptions
    structure: StructuredOutputsParams | None = None
    room: int = 1


@dataclass(frozen=True, slots=True)
class ChatCompletion:
    """A completion. ``finish`` is OpenAI's finish reason, or None after Ctrl-C.

    ``output_tokens`` and ``prompt_tokens`` are None if a server does not report them.
    """

    text: str
    finish: str | None
    prompt_tokens: int | None
    output_tokens: int | None

    @property
    def interrupted(self) -> bool:
        return self.finish is None


class ChatModel(Protocol):
    """A model that completes one prompt at a time.

    context       max tokens of a prompt with its completion; None if a server does not report it
    has_template  whether it accepts conversations
    defaults      default sampling parameters; empty if a server does not report them
    """

    @property
    def name(self) -> str: ...
    @property
    def context(self) -> int | None: ...
    @property
    def has_template(self) -> bool: ...
    @property
    def defaults(self) -> SamplingDefaults: ...

    def complete(self, request: PromptRequest, write: Write) -> ChatCompletion:
        """Streams a completion into ``write``, until the first Ctrl-C.

        Raises ContextLengthError if the prompt leaves fewer than ``room`` tokens of the context, and the errors that
        end a completion.
        """

    def statistics(self) -> str:
        """Statistics of the last completion in one line; empty before the first completion."""

    def explain(self) -> list[str]:
        """Lines that show where the time of the last completion went."""

    def loading(self) -> str:
        """The model and its load time in one line."""

    def as_json(self) -> dict[str, Any]:
        """The last completion as JSON."""

    def models(self) -> list[str]:
        """Names that ``use`` accepts."""

    def use(self, name: str) -> None:
        """Changes the model. After an error (ModelError, NotFoundError and others) the current one stays."""


def cut_note(completion: ChatCompletion, max_tokens: int, context: int | None, more: str) -> str | None:
    """The note for a completion that did not end by itself, or None; ``more`` says how to raise the token limit."""
    if completion.interrupted:
        return "Stopped by Ctrl-C."
    if completion.finish == "deadline":
        return "Stopped: the time limit of the request was reached."
    if completion.finish != "length":
        return None
    if completion.output_tokens is None or completion.output_tokens >= max_tokens:
        return f"Stopped at {max_tokens:,} tokens; {more}."
    size = "" if context is None else f" of {context:,} tokens"
    return f"Stopped: the context{size} is full."
