"""Bodies of Ollama's API: /api/chat, /api/generate, /api/embed, and its older form /api/embeddings.

Options set when Ollama loads a model (threads, batch, GPU layers) are settings of the server here: they are ignored
with a warning, because they change no completion. Options that would change one and are not implemented are
refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

from msgspec import Meta, field, structs

from twofold.api.base import AskedTier, ModelFacts, ReplyHead
from twofold.api.body import (
    IGNORED,
    LIFTED,
    DraftingFields,
    Explainable,
    ModelName,
    NonEmptyText,
    OwnFields,
    RequestObject,
    only,
)
from twofold.api.completion import read_completion
from twofold.api.compression import ChatFields, ConversationScoring, asked_scoring, drafting_options
from twofold.api.fields import FieldError, unsupported
from twofold.api.ollama.replies import (
    LineStreamer,
    OllamaChatReply,
    OllamaEmbeddingReply,
    OllamaEmbedReply,
    OllamaGenerateReply,
    OllamaPart,
    OllamaReplyType,
    counts_and_times,
    last_part,
    tool_calls,
)
from twofold.api.openai.bodies import (
    MAX_PROMPTS,
    Images,
    JsonSchema,
    MinP,
    Penalty,
    Repetition,
    Stops,
    Temperature,
    TokenId,
    TopK,
    TopLogprobs,
    TopP,
)
from twofold.api.openai.chat import EFFORTS, MAX_INDEX, ChatTools
from twofold.api.openai.logprobs import chat_logprobs
from twofold.api.prompts import (
    DEFAULT_THINKING,
    Conversation,
    PoolingRequest,
    Thinking,
    function_call,
    infilled,
    tokenized,
    unbilled,
)
from twofold.core.params import MAX_SEED, MAX_TOKEN_ID, SamplingParams, StructuredOutputsParams
from twofold.core.request import EngineRequest, PoolingParams
from twofold.engine.compress import CompressionReport
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import Message
from twofold.text.parsers.base import PlainParser, SectionParser
from twofold.text.prompt_limit import PromptLimit
from twofold.text.templates.messages import MAX_MESSAGES

SAME_NAME: Final = ("temperature", "top_k", "top_p", "min_p", "presence_penalty", "frequency_penalty", "stop")
"""Options that ``SamplingParams`` knows by the same name."""
PENALTIES: Final = {"repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0}
"""Options that penalise repetition, with the value that changes nothing."""
MAX_DURATION_CHARS: Final = 32
_UNITS: Final = r"(?:ns|us|µs|ms|s|m|h)"
DURATION: Final = rf"^[+-]?(?:0|(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+){_UNITS})+)$"
"""A duration as Go writes it: 5m, 1h30m, -1s."""
_UNIT: Final = re.compile(rf"([0-9]+\.?[0-9]*|\.[0-9]+)({_UNITS})")
_SECONDS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}

DURATIONS: Final = {"wanted": 'a number of seconds, or a duration such as "5m"'}
KeepAlive: TypeAlias = Annotated[
    float | Annotated[str, Meta(min_length=1, max_length=MAX_DURATION_CHARS, pattern=DURATION, extra=DURATIONS)],
    Meta(extra=DURATIONS),
]
ServerSetting: TypeAlias = Annotated[
    Any, Meta(description="A setting of the server here; it changes no completion."), IGNORED
]


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
        int, Meta(ge=-1, le=MAX_TOKEN_ID, description="With a penalty, only -1 (the whole context).")
    ] = -1
    stop: Stops | None = None
    seed: Annotated[int, Meta(ge=-1, le=MAX_SEED, description="-1 for a random one.")] = -1
    num_predict: (
        Annotated[
            int,
            Meta(
                ge=-2,
                le=MAX_TOKEN_ID,
                description="Maximum output tokens; 0 or less: all that fit. Default: the server's, else -1.",
            ),
        ]
        | None
    ) = None
    num_ctx: Annotated[
        int, Meta(ge=0, le=MAX_TOKEN_ID, description="Maximum tokens of prompt and output; 0 for the model's context.")
    ] = 0
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
        if self.repeat_last_n != -1 and any(
            getattr(self, name) not in (None, neutral) for name, neutral in PENALTIES.items()
        ):
            hint = "Remove it, or set it to -1: penalties see the whole context."
            raise unsupported("options.repeat_last_n", hint)

    def sampling_keywords(self) -> dict[str, Any]:
        """Keywords of ``SamplingParams`` for the options that were given."""
        given: dict[str, Any] = {name: getattr(self, name) for name in SAME_NAME}
        given |= {"repetition_penalty": self.repeat_penalty, "seed": None if self.seed == -1 else self.seed}
        return {name: value for name, value in given.items() if value is not None}


class OllamaBody(RequestObject, Explainable, dict=True):
    """The fields of all requests."""

    model: ModelName
    options: OllamaOptions = field(default_factory=OllamaOptions)
    keep_alive: KeepAlive | None = None
    twofold: OwnFields | None = None

    @property
    def tier(self) -> AskedTier:
        return "auto"

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
    """A ``DialectRequest`` for one completion. Options may be at the top level, where old clients put ``stop``."""

    reply_type: ClassVar[OllamaReplyType]

    options: Annotated[OllamaOptions, LIFTED] = field(default_factory=OllamaOptions)
    stream: bool = True
    format: Literal["", "json"] | JsonSchema | None = None
    think: bool | Literal["low", "medium", "high", "max"] | None = None
    logprobs: bool = False
    top_logprobs: TopLogprobs | None = None
    truncate: Literal[False] = False
    shift: Literal[False] = False
    twofold: DraftingFields | None = None
    debug_render_only: Literal[False] = field(default=False, name="_debug_render_only")

    def __post_init__(self) -> None:
        if self.top_logprobs and not self.logprobs:
            raise FieldError("top_logprobs needs logprobs.", param="top_logprobs", hint='Set "logprobs": true.')

    def parser(self, model: ModelFacts) -> SectionParser:  # noqa: ARG002 - a chat needs the model's format
        """Divides the completion into content, thinking and tool calls. A plain prompt has content only."""
        return PlainParser()

    @cached_property
    def params(self) -> SamplingParams:
        outputs = None
        if self.format == "json":
            outputs = StructuredOutputsParams(json_object=True)
        elif isinstance(self.format, dict):
            outputs = StructuredOutputsParams(json=self.format)
        return SamplingParams(
            **self.options.sampling_keywords(),
            max_tokens=max(0, self.options.num_predict or 0) or None,
            logprobs=(self.top_logprobs or 0) if self.logprobs else None,
            structured_outputs=outputs,
        )

    @property
    def thinking(self) -> Thinking:
        if self.think is None:
            return DEFAULT_THINKING
        if isinstance(self.think, bool):
            return Thinking("on", needed_by="think") if self.think else Thinking("off")
        return replace(EFFORTS[self.think], needed_by="think")

    def filled(self, model: ModelFacts) -> SamplingParams:
        """The parameters, with the server's defaults for those that are not given."""
        limited = ["max_tokens"] if self.options.num_predict is not None else []
        return model.sampling.fill(self.params, [*self.options.sampling_keywords(), *limited])

    def within(self, job: EngineRequest) -> EngineRequest:
        """The job with at most the output tokens that num_ctx leaves. Raises ContextLengthError if it leaves none."""
        window = self.options.num_ctx
        if not window or not isinstance(job.params, SamplingParams):
            return job
        PromptLimit(window, remedy="raise options.num_ctx").check(len(job.token_ids))
        room = window - len(job.token_ids)
        limit = job.params.max_tokens
        return replace(job, params=replace(job.params, max_tokens=room if limit is None else min(limit, room)))

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> OllamaPart:
        if not outputs:
            return last_part(self.reply_type.part(head), head, None, unloads=self.keep_alive_s == 0)
        (output,) = outputs
        completion = output.outputs[0]
        reader = read_completion(self.parser(model), completion.text)
        part = self.reply_type.part(head, reader.content, reader.reasoning, tool_calls(head, reader.calls))
        if completion.logprobs is not None:
            top = self.params.logprobs or 0
            part.logprobs = chat_logprobs(completion.token_ids, completion.logprobs, model.tokenizer, top)
        return last_part(part, head, output)

    def streamer(self, head: ReplyHead, model: ModelFacts) -> LineStreamer:
        top, unloads = self.params.logprobs, self.keep_alive_s == 0
        return LineStreamer(head, model, self.parser(model), self.reply_type, top_logprobs=top, unloads=unloads)


TEXTS: Final = {"thinking": "reasoning_content", "name": "name", "tool_name": "name", "tool_call_id": "tool_call_id"}
"""Names of fields in the form that chat templates read."""


class OllamaCalledFunction(RequestObject):
    """A function with its arguments."""

    name: NonEmptyText
    arguments: dict[str, Any] | None = None
    index: Annotated[int, Meta(ge=0, le=MAX_INDEX)] | None = None


class OllamaCall(RequestObject):
    """A call that the assistant made."""

    function: OllamaCalledFunction
    id: str | None = None
    type: Literal["function"] = "function"

    def message(self, number: int) -> Message:
        return function_call(self.id or f"call_{number}", self.function.name, self.function.arguments or {})


class OllamaMessage(RequestObject):
    """One message of a chat."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str = ""
    thinking: str | None = None
    images: Images | None = None
    tool_calls: list[OllamaCall] | None = None
    tool_name: str | None = None
    name: Annotated[str, Meta(description="The tool's name in messages of older clients.")] | None = None
    tool_call_id: str | None = None

    def unbilled(self) -> OllamaMessage | None:
        """The message without a billing header, which is no part of a system prompt; None if nothing else is in it."""
        content = unbilled(self.content) if self.role == "system" else self.content
        return structs.replace(self, content=content) if content or not self.content else None

    def message(self) -> Message:
        """The message in the form that chat templates read."""
        message: dict[str, Any] = {"role": self.role, "content": self.content}
        message |= {ours: value for theirs, ours in TEXTS.items() if (value := getattr(self, theirs))}
        if self.tool_calls:
            message["tool_calls"] = [call.message(number) for number, call in enumerate(self.tool_calls)]
        return message


class OllamaChatRequest(OllamaRequest):
    """A chat. A last message of the assistant is continued; without messages a request only loads the model."""

    reply_type = OllamaChatReply

    messages: Annotated[list[OllamaMessage], Meta(max_length=MAX_MESSAGES)] | None = None
    tools: ChatTools | None = None
    twofold: ChatFields | None = None

    def parser(self, model: ModelFacts) -> SectionParser:
        return self.conversation.parser(model)

    @cached_property
    def conversation(self) -> Conversation:
        """The chat to complete."""
        messages = [kept.message() for message in self.messages or () if (kept := message.unbilled()) is not None]
        last = messages[-1] if messages else {"role": "none"}
        return Conversation(
            messages=messages,
            tools=tuple(tool.message() for tool in self.tools or ()),
            thinking=self.thinking,
            continues=bool(last["role"] == "assistant" and last["content"] and "tool_calls" not in last),
        )

    def scoring(self) -> ConversationScoring | None:
        return asked_scoring(self.twofold, self.conversation, self._accept, self.tier)

    def _accept(self, conversation: Conversation, report: CompressionReport) -> None:  # noqa: ARG002 - it is recorded
        """Takes the conversation with its compressed texts."""
        self.conversation = conversation

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        if not self.messages:
            return []
        return [self.within(self.conversation.prepare(model, self.filled(model), drafting_options(self.twofold)))]


OWN_TEMPLATE: Final = "The model's own chat template is used; with raw the prompt is sent as it is."


class OllamaGenerateRequest(OllamaRequest):
    """A prompt; an empty one only loads the model.

    It goes through the chat template as the user's message, unless ``raw`` is set or the model has no template. With a
    ``suffix`` the model fills in the text between both.
    """

    reply_type = OllamaGenerateReply

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    raw: bool = False
    template: Annotated[Any, only("", hint=OWN_TEMPLATE)] = None
    context: Annotated[Any, only([], hint="Send the conversation to /api/chat.")] = None
    images: Images | None = None
    width: Literal[0] = 0
    height: Literal[0] = 0
    steps: Literal[0] = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.system and (self.raw or self.suffix):
            beside = "raw" if self.raw else "suffix"
            raise FieldError(
                f"system cannot be used with {beside}.", param="system", hint="Put its text into the prompt."
            )

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        if not self.prompt and not self.suffix:
            return []
        params, options = self.filled(model), drafting_options(self.twofold)
        conversation = self.conversation(model)
        if conversation is not None:
            return [self.within(conversation.prepare(model, params, options))]
        if self.thinking.mode == "on":
            raise FieldError("think needs a prompt that goes through a chat template.", param="think")
        if self.system:
            raise FieldError("system needs a model with a chat template; this one has none.", param="system")
        if self.suffix:
            return [self.within(infilled(self.prompt, self.suffix, model, params, options))]
        return [self.within(tokenized(self.prompt, model, params, options))]

    def parser(self, model: ModelFacts) -> SectionParser:
        conversation = self.conversation(model)
        return super().parser(model) if conversation is None else conversation.parser(model)

    def conversation(self, model: ModelFacts) -> Conversation | None:
        """The chat to complete; None if the prompt is continued without a chat template."""
        if self.raw or self.suffix or not model.tokenizer.has_chat_template:
            return None
        text = unbilled(self.system)
        system: list[Message] = [{"role": "system", "content": text}] if text else []
        return Conversation([*system, {"role": "user", "content": self.prompt}], thinking=self.thinking)


class OllamaVectorBody(OllamaBody, PoolingRequest):
    """The fields of both endpoints."""

    def prompts(self, texts: Iterable[str], model: ModelFacts, *, truncate: bool) -> Iterator[tuple[int, ...]]:
        """The token ids of each text. A text longer than the model's context or num_ctx is cut if ``truncate`` is set,
        else raises ContextLengthError."""
        room = min(model.context, self.options.num_ctx or model.context)
        for text in texts:
            ids = tokenized(text, model.unbounded(), self.params, self.request_options).token_ids
            if not truncate:
                PromptLimit(room, 0, "input", remedy="set truncate").check(len(ids))
            yield ids[:room]


class OllamaEmbedRequest(OllamaVectorBody, kw_only=True):
    """The body of /api/embed."""

    input: str | Annotated[list[str], Meta(max_length=MAX_PROMPTS)]
    truncate: Annotated[bool, Meta(description="Cuts texts that are longer than the model's context.")] = True
    dimensions: TokenId | None = None

    @property
    def params(self) -> PoolingParams:
        return PoolingParams(dimensions=self.dimensions or None)

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        texts = [self.input] * bool(self.input) if isinstance(self.input, str) else self.input
        return self.jobs(model, self.prompts(texts, model, truncate=self.truncate))

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> OllamaEmbedReply:  # noqa: ARG002
        counts = counts_and_times(head, outputs)
        return OllamaEmbedReply(
            model=head.model,
            embeddings=[output.embedding or () for output in outputs],
            total_duration=counts["total_duration"],
            load_duration=counts["load_duration"],
            prompt_eval_count=counts["prompt_eval_count"],
        )


class OllamaEmbeddingRequest(OllamaVectorBody):
    """The body of /api/embeddings, whose reply is one vector."""

    prompt: str = ""

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        return self.jobs(model, self.prompts([self.prompt] if self.prompt else [], model, truncate=True))

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> OllamaEmbeddingReply:  # noqa: ARG002
        return OllamaEmbeddingReply((outputs[0].embedding or ()) if outputs else ())
