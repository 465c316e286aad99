"""The model of ``run`` and ``chat``, in this process or behind a server."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

from twofold.cli.console import Write
from twofold.cli.options import SamplingOptions
from twofold.core.params import StructuredOutputsParams
from twofold.core.record import Repetition
from twofold.core.sampling_defaults import SamplingDefaults
from twofold.core.units import count

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

    ``output_tokens`` and ``prompt_tokens`` are None if a server does not report them, and ``repeats`` if it does not
    report a repetition.
    """

    text: str
    finish: str | None
    prompt_tokens: int | None
    output_tokens: int | None
    repeats: Repetition | None = None

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


def end_notes(completion: ChatCompletion, max_tokens: int, context: int | None, more: str) -> Iterator[str]:
    """Why a completion did not end by itself, and whether it repeats itself; ``more`` says how to raise the token
    limit."""
    if completion.interrupted:
        yield "Stopped by Ctrl-C."
    elif completion.finish == "deadline":
        yield "Stopped: the time limit of the request was reached."
    elif completion.finish == "length":
        if completion.output_tokens is None or completion.output_tokens >= max_tokens:
            yield f"Stopped at {max_tokens:,} tokens; {more}."
        else:
            size = "" if context is None else f" of {context:,} tokens"
            yield f"Stopped: the context{size} is full."
    if completion.repeats is not None:
        tokens, times = completion.repeats
        ends = "; --stop-loops ends that" if completion.finish == "length" else ""
        yield f"The answer repeats itself: {count(tokens, 'token')}, {times} times{ends}."
