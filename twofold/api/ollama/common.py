"""What Ollama's requests have in common: the model, ``options``, ``keep_alive``, and the format of a completion.

Options set when Ollama loads a model (threads, batch, GPU layers) are settings of the server here: they are accepted
and change nothing, because they change no completion. Options that would change one and are not implemented are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, field

from twofold.api.answers import read_answer
from twofold.api.base import AskedTier, ModelFacts, ReplyHead
from twofold.api.body import ModelName, OwnFields, RequestObject
from twofold.api.conversation import AS_BEFORE, Thinking
from twofold.api.fields import FieldError, unsupported
from twofold.api.ollama.replies import MakePart, OllamaPart, begun, ended, tool_calls
from twofold.api.ollama.stream import LineStreamer
from twofold.api.openai.bodies import (
    Count,
    JsonSchema,
    MinP,
    Penalty,
    Repetition,
    Stops,
    Temperature,
    TopK,
    TopLogprobs,
    TopP,
)
from twofold.api.openai.chat import EFFORTS
from twofold.api.openai.logprobs import chat_logprobs
from twofold.core.errors import ContextLengthError
from twofold.core.params import MAX_SEED, MAX_TOKEN_ID, SamplingParams, StructuredOutputsParams
from twofold.core.request import EngineRequest
from twofold.core.sampling_defaults import NAMES
from twofold.engine.outputs import RequestOutput
from twofold.text.parsers.base import PlainParser, SectionParser

SAME_NAME: Final = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "stop")
"""Options that ``SamplingParams`` knows by the same name."""
PENALTIES: Final = ("repeat_penalty", "presence_penalty", "frequency_penalty")
MAX_DURATION_CHARS: Final = 32
_UNITS: Final = r"(?:ns|us|µs|ms|s|m|h)"
DURATION: Final = rf"^[+-]?(?:0|(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+){_UNITS})+)$"
"""A duration as Go writes it: 5m, 1h30m, -1s."""
_UNIT: Final = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)({_UNITS})")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

KeepAlive: TypeAlias = Annotated[
    float | Annotated[str, Meta(min_length=1, max_length=MAX_DURATION_CHARS, pattern=DURATION)],
    Meta(extra={"wanted": 'a number of seconds, or a duration such as "5m"'}),
]
ServerSetting: TypeAlias = Annotated[Any, Meta(description="A setting of the server here; it changes no completion.")]


class OllamaOptions(RequestObject):
    """How a completion is sampled, and settings of Ollama's that have no effect or only one possible value here."""

    temperature: Temperature | None = None
    top_k: TopK | None = None
    top_p: TopP | None = None
    min_p: MinP | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repeat_penalty: Repetition | None = None
    repeat_last_n: Annotated[
        int, Meta(ge=-1, le=MAX_TOKEN_ID, description="With a penalty only -1, the whole context.")
    ] = -1
    stop: Stops | None = None
    seed: Annotated[int, Meta(ge=-1, le=MAX_SEED, description="-1 for a random one.")] = -1
    num_predict: Annotated[
        int, Meta(ge=-2, le=MAX_TOKEN_ID, description="Most output tokens; 0 or less for all that fit.")
    ] = -1
    num_ctx: Annotated[Count, Meta(description="Most tokens of prompt and output.")] | None = None
    numa: ServerSetting = None
    num_batch: ServerSetting = None
    num_gpu: ServerSetting = None
    main_gpu: ServerSetting = None
    low_vram: ServerSetting = None
    f16_kv: ServerSetting = None
    use_mmap: ServerSetting = None
    use_mlock: ServerSetting = None
    num_thread: ServerSetting = None
    num_keep: ServerSetting = None
    draft_num_predict: ServerSetting = None
    mirostat_tau: ServerSetting = None
    mirostat_eta: ServerSetting = None
    mirostat: Literal[0] = 0
    tfs_z: Literal[1] = 1
    typical_p: Literal[1] = 1
    penalize_newline: Literal[True] = True
    logits_all: Literal[False] = False
    vocab_only: Literal[False] = False
    embedding_only: Literal[False] = False

    def __post_init__(self) -> None:
        if self.repeat_last_n != -1 and any(getattr(self, name) is not None for name in PENALTIES):
            hint = "Remove it, or set it to -1: penalties see the whole context."
            raise unsupported("options.repeat_last_n", hint)

    def sampling_keywords(self) -> dict[str, Any]:
        """Keywords of ``SamplingParams`` that were given."""
        given: dict[str, Any] = {name: getattr(self, name) for name in SAME_NAME}
        given |= {"repetition_penalty": self.repeat_penalty, "seed": None if self.seed == -1 else self.seed}
        return {name: value for name, value in given.items() if value is not None}


class OllamaBody(RequestObject, dict=True):
    """The fields of all requests."""

    model: ModelName
    options: OllamaOptions = field(default_factory=OllamaOptions)
    keep_alive: KeepAlive | None = None
    twofold: OwnFields | None = None

    @property
    def tier(self) -> AskedTier:
        return "auto"

    @property
    def explain(self) -> bool:
        return self.twofold is not None and self.twofold.explain

    @property
    def keep_alive_s(self) -> float | None:
        """Seconds for which the model stays loaded after the request; below 0 for as long as there is memory, None for
        the server's default."""
        given = self.keep_alive
        if given is None or isinstance(given, float | int):
            return given
        seconds = sum(float(count) * _SECONDS[unit] for count, unit in _UNIT.findall(given))
        return -seconds if given.startswith("-") else seconds


class OllamaRequest(OllamaBody):
    """A ``DialectRequest`` for one completion; ``make_part`` makes the reply of its content."""

    stream: bool = True
    format: Literal["", "json"] | JsonSchema | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None
    truncate: Literal[False] = False
    shift: Literal[False] = False
    debug_render_only: Literal[False] = field(default=False, name="_debug_render_only")

    def __post_init__(self) -> None:
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs needs logprobs.", param="top_logprobs", hint='Set "logprobs": true.')

    @property
    def make_part(self) -> MakePart:
        raise AssertionError("each endpoint has its own")

    def parser(self, model: ModelFacts) -> SectionParser:  # noqa: ARG002 - a plain completion
        """Divides the completion into content, thinking and tool calls."""
        return PlainParser()

    @cached_property
    def params(self) -> SamplingParams:
        form = None
        if self.format == "json":
            form = StructuredOutputsParams(json_object=True)
        elif isinstance(self.format, dict):
            form = StructuredOutputsParams(json=self.format)
        return SamplingParams(
            **self.options.sampling_keywords(),
            max_tokens=self.options.num_predict if self.options.num_predict > 0 else None,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            structured_outputs=form,
        )

    @property
    def thinking(self) -> Thinking:
        if self.think is None:
            return AS_BEFORE
        if isinstance(self.think, bool):
            return Thinking("on", needed_by="think") if self.think else Thinking("off")
        return replace(EFFORTS[self.think], needed_by="think")

    def filled(self, model: ModelFacts) -> SamplingParams:
        """The parameters, with the server's defaults for those that are not given."""
        return model.sampling.fill(self.params, [name for name in NAMES if name in self.options.sampling_keywords()])

    def within(self, job: EngineRequest) -> EngineRequest:
        """The job with no more output tokens than num_ctx leaves. Raises ContextLengthError."""
        window = self.options.num_ctx
        if window is None or not isinstance(job.params, SamplingParams):
            return job
        prompt = len(job.token_ids)
        room = window - prompt
        if room < 1:
            raise ContextLengthError(
                f"The prompt has {prompt} tokens; with one output token it does not fit num_ctx {window}.",
                hint="Shorten the prompt, or raise options.num_ctx.",
            )
        limit = job.params.max_tokens
        return replace(job, params=replace(job.params, max_tokens=room if limit is None else min(limit, room)))

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> OllamaPart:
        if not outputs:
            part = self.make_part(*begun(head), "", "", ())
            return ended(part, head, None, unloads=self.keep_alive_s == 0)
        (output,) = outputs
        answer = output.outputs[0]
        reader = read_answer(self.parser(model), answer.text)
        part = self.make_part(*begun(head), reader.content, reader.reasoning, tool_calls(head, reader.calls))
        if answer.logprobs is not None:
            top = self.params.logprobs or 0
            part.logprobs = chat_logprobs(answer.token_ids, answer.logprobs, model.tokenizer, top)
        return ended(part, head, output)

    def streamer(self, head: ReplyHead, model: ModelFacts) -> LineStreamer:
        top, unloads = self.params.logprobs, self.keep_alive_s == 0
        return LineStreamer(head, model, self.parser(model), self.make_part, top_logprobs=top, unloads=unloads)
