"""What the server and the batch runner know of any dialect: requests that were read, and replies in its words.

Nothing here waits, reads or writes. Bodies come as plain data and leave as plain data, or as the bytes of
server-sent events; whoever has a socket or a file carries them.

    request = read(body)                   raises ParameterError for what is impossible, unknown or unsupported
    jobs    = request.prepare(model)       what to run; each job is one prompt
    reply   = request.reply(head, outputs, model)                       the whole at once, or
    stream  = request.streamer(head, model); stream.open(); stream.take(…) …; stream.close(outputs)
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Final, Literal, Protocol, TypeAlias, get_args

from msgspec import UNSET, Meta, UnsetType

from twofold.api.body import Explanation, ReplyObject
from twofold.core.errors import TwofoldError
from twofold.core.request import EngineRequest
from twofold.core.sampling_defaults import NONE, SamplingDefaults
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.parsers.format import AnswerFormat
from twofold.text.tokenizers.tokenizer import Tokenizer

EVENT_STREAM: Final = "text/event-stream; charset=utf-8"

ServiceTier = Literal["default", "flex", "priority", "batch"]
"""Which class of service a request gets. Prices and latency targets hang on it, never an answer."""
TierName: TypeAlias = Annotated[str, Meta(extra_json_schema={"enum": list(get_args(ServiceTier))})]
AskedTier = Literal["auto", "default", "flex", "priority"]
"""What a caller may ask for; auto is the default tier where the caller's key has it."""


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What a dialect has to know of the model that answers. ``context`` counts a prompt with its answer, and
    ``sampling`` holds for requests that say nothing of it."""

    tokenizer: Tokenizer
    format: AnswerFormat
    context: int
    hidden_size: int
    sampling: SamplingDefaults = NONE

    def unbounded(self) -> ModelFacts:
        """For prompts that are only counted: they may be longer than the context."""
        return replace(self, context=sys.maxsize)


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What a response says about itself.

    id            without the prefix that the dialect puts before it
    created       seconds since 1970
    model         the name that was asked for
    service_tier  the one that was given; None where nobody has tiers, as in a file of requests
    prompt_tokens of each prompt, for what is written before they have run
    waited_s      seconds from the request's arrival until its prompts were tokenised and its model loaded
    """

    id: str
    created: int
    model: str
    service_tier: str | None = None
    prompt_tokens: tuple[int, ...] = ()
    waited_s: float = 0.0


class Streamer(Protocol):
    """Tells a reply as it comes. Every method gives bytes of the dialect's ``stream_type``, possibly none."""

    keep_alive: bytes
    """An event that means nothing, for connections that are silent for long."""

    def open(self) -> bytes:
        """What stands before the first token."""
        ...

    def take(self, job: int, delta: OutputDelta) -> bytes:
        """What a step added to the answers of job ``job``."""
        ...

    def close(self, outputs: Sequence[RequestOutput], extra: Explanation | UnsetType = UNSET) -> bytes:
        """What stands after the last token. ``outputs`` has one for each job; ``extra`` goes under ``twofold``."""
        ...

    def fail(self, error: TwofoldError, request_id: str) -> bytes:
        """Ends a reply that cannot go on. It may be the first thing that is told after ``open``, or the last."""
        ...


class GeneratedReply(Protocol):
    """A ``ReplyObject`` that a model's output fills; ``twofold`` is the request's record, or UNSET."""

    __struct_fields__: ClassVar[tuple[str, ...]]
    twofold: Any


class DialectRequest(Protocol):
    """A request that was read.

    model    name of the requested model; None for the default one
    stream   whether the reply is streamed
    tier     requested class of service
    explain  whether the reply carries the request's record, under ``twofold``
    """

    @property
    def model(self) -> str | None: ...

    @property
    def stream(self) -> bool: ...

    @property
    def tier(self) -> AskedTier: ...

    @property
    def explain(self) -> bool: ...

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        """What to run. It may take a while: templates are rendered and texts tokenised.

        Raises TemplateError where the chat template refuses the messages, ContextLengthError for a prompt that is too
        long, ParameterError for what this model cannot do, such as thinking.
        """
        ...

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> GeneratedReply:
        """The body of the response. ``outputs`` has one for each job, in their order."""
        ...

    def streamer(self, head: ReplyHead, model: ModelFacts) -> Streamer:
        """Tells the response as it comes, where ``stream`` was asked for."""
        ...


class Dialect(Protocol):
    """How a dialect tells errors.

    stream_type   the content type of its streams
    any_type      bodies are read as JSON whatever their content type says
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
