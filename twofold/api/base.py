"""Interfaces of API protocols for the server and the batch runner: requests and their replies.

There is no I/O here. Bodies are read from plain data, and replies are plain data or bytes of events.

    request = read(body)                   raises ParameterError for impossible, unknown and unsupported fields
    jobs    = request.prepare(model)       what to run; each job is one prompt
    reply   = request.reply(head, outputs, model)                       the whole at once, or
    stream  = request.streamer(head, model); stream.open(); stream.take(…) …; stream.close(outputs)
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, TypeAlias, get_args, runtime_checkable

from msgspec import UNSET, Meta, UnsetType

from twofold.api.body import Explanation, ReplyObject
from twofold.core.errors import TwofoldError
from twofold.core.forecast import RequestProgress
from twofold.core.request import EngineRequest
from twofold.core.sampling_defaults import NONE, SamplingDefaults
from twofold.engine.compress import ReadingTime
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.format import CompletionFormat
from twofold.text.tokenizers.tokenizer import Tokenizer

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"

ServiceTier = Literal["default", "flex", "priority", "batch"]
"""Classes of service. Prices and latency targets depend on them; completions do not."""
TierName: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(ServiceTier))})]
AskedTier = Literal["auto", "default", "flex", "priority"]
"""Tiers that a caller may ask for; auto is the default tier if the caller's key has it."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """Facts of a model that API protocols need. ``context`` is the maximum tokens of a prompt and its completion
    together; ``sampling`` has the server's defaults of sampling parameters; ``reading_time`` predicts how long its
    prompts take now; ``fingerprint`` names what determines its outputs besides requests."""

    tokenizer: Tokenizer
    format: CompletionFormat
    context: int
    hidden_size: int
    sampling: SamplingDefaults = NONE
    reading_time: Callable[[], ReadingTime] = ReadingTime.unknown
    fingerprint: str | None = None

    def unbounded(self) -> ModelFacts:
        """The same facts without a context limit, for prompts that are only counted."""
        return replace(self, context=sys.maxsize)


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What is known of a reply before its first token.

    id            without the prefix of the API protocol
    created       seconds since 1970
    model         name of the model, as the reply gives it
    service_tier  None without tiers, as in a batch file
    prompts       tokens of each prompt, for events that are sent before the prompts have run
    waited_s      seconds from the request's arrival until its prompts were tokenised and its model was loaded
    """

    id: str
    created: int
    model: str
    service_tier: str | None = None
    prompts: Sequence[Sequence[int]] = ()
    waited_s: float = 0.0

    @property
    def prompt_tokens(self) -> tuple[int, ...]:
        """The number of tokens of each prompt."""
        return tuple(map(len, self.prompts))


class Streamer(Protocol):
    """Writes the events of a streamed reply. Every method returns bytes of the protocol's ``stream_type``, or b""."""

    @property
    def keep_alive(self) -> bytes:
        """An event that clients ignore. It is sent when a stream is silent for long."""
        ...

    def open(self) -> bytes:
        """The events before the first token."""
        ...

    def take(self, job: int, delta: OutputDelta) -> bytes:
        """The events of a delta of job ``job``."""
        ...

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        """The events after the last token. ``outputs`` has one per job; ``extra`` is sent under ``twofold``."""
        ...

    def fail(self, error: TwofoldError, request_id: str) -> bytes:
        """The events that end a reply with an error, at any time after ``open``."""
        ...


@runtime_checkable
class ShowsProgress(Protocol):
    """A streamer that can show how far a request is before its first token."""

    def progress(self, progress: RequestProgress) -> bytes:
        """The event of this progress; b"" if nothing has changed."""
        ...


class GeneratedReply(Protocol):
    """A ``ReplyObject`` that a model's output fills; ``twofold`` is the request's record, or UNSET."""

    __struct_fields__: ClassVar[tuple[str, ...]]
    twofold: Any


class DialectRequest(Protocol):
    """A request whose body was read and checked.

    model    name of the requested model; None for the default one
    stream   whether the reply is streamed
    tier     requested class of service
    explain  whether the reply has the request's record under ``twofold``
    compared models of other providers at whose prices the record gives the request's cost
    """

    @property
    def model(self) -> str | None: ...

    @property
    def stream(self) -> bool: ...

    @property
    def tier(self) -> AskedTier: ...

    @property
    def explain(self) -> bool: ...

    @property
    def compared(self) -> Sequence[str]: ...

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        """The requests to the engine, one per prompt. This may take long: templates are rendered and texts tokenised.

        Raises TemplateError if the chat template refuses the messages, ContextLengthError for a prompt that is too
        long, ParameterError for a feature that this model lacks, such as thinking.
        """
        ...

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> GeneratedReply:
        """The body of the response. ``outputs`` has one per job, in their order."""
        ...

    def streamer(self, head: ReplyHead, model: ModelFacts) -> Streamer:
        """The writer of the reply's events, if ``stream`` is set."""
        ...


class Dialect(Protocol):
    """The errors and content types of an API protocol.

    stream_type   the content type of its streams
    any_type      bodies are read as JSON whatever their content type is
    """

    @property
    def name(self) -> Literal["openai", "anthropic", "ollama"]: ...

    @property
    def stream_type(self) -> str: ...

    @property
    def any_type(self) -> bool: ...

    def status(self, error: TwofoldError) -> int:
        """The HTTP status of an error."""
        ...

    def error(self, error: TwofoldError, request_id: str) -> ReplyObject:
        """The body of an error."""
        ...
