"""Fields that bodies of several OpenAI endpoints have: how a request is handled, and how it is sampled and streamed.

Names and defaults are OpenAI's; what vLLM adds (top_k, priority, cache_salt, structured_outputs, …) has vLLM's names.
``api/fields.py`` has the rule for fields that have no effect, and for those that are refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, structs

from twofold.api.base import AskedTier, ModelFacts
from twofold.api.body import IGNORED, OFFERED, Explainable, ModelName, NonEmptyText, OwnFields, RequestObject, only
from twofold.api.fields import FieldError
from twofold.api.prompts import PoolingRequest
from twofold.core.errors import ParameterError
from twofold.core.params import (
    MAX_BIASED_TOKENS,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_N,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MAX_TOKEN_ID,
    SamplingParams,
    StructuredOutputsParams,
)
from twofold.core.request import MAX_NAME_CHARS, MAX_PRIORITY, PoolingParams, RequestOptions, TextOrTokens
from twofold.core.sampling_defaults import NAMES
from twofold.core.step import Pooling
from twofold.text.prompt_limit import PromptLimit

MAX_PROMPTS: Final = 2048
TIERS: Final[Mapping[str, AskedTier]] = {
    "auto": "auto",
    "default": "default",
    "flex": "flex",
    "priority": "priority",
    "fast": "priority",
}
"""Our tiers by OpenAI's names."""

Tier: TypeAlias = Annotated[Literal["auto", "default", "flex", "priority", "fast"], OFFERED]
TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
TokenIds: TypeAlias = Annotated[list[TokenId], Meta(min_length=1)]
Prompts: TypeAlias = Annotated[
    str | TokenIds | Annotated[list[str | TokenIds], Meta(min_length=1, max_length=MAX_PROMPTS)],
    Meta(extra={"wanted": "text, a list of texts, token ids or a list of lists of token ids"}),
]
Label: TypeAlias = Annotated[str, Meta(description="A label of the caller; it changes no completion."), IGNORED]
Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=64)], Annotated[str, Meta(max_length=512)]],
    Meta(max_length=16, extra={"wanted": "at most 16 texts of 512 characters with names of 64"}),
]
Priority: TypeAlias = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="A lower number goes first.")]
CacheSalt: TypeAlias = Annotated[
    str, Meta(max_length=MAX_NAME_CHARS, description="Only prompts of the same salt share cached prefixes.")
]


Speculation: TypeAlias = Annotated[
    bool, Meta(description="Whether tokens may be drafted ahead. It changes no completion.")
]


class HandlingFields(Explainable):
    """Fields that say how a request is handled: its tier, its priority, and who shares its cached prefixes."""

    __slots__ = ()
    service_tier: Tier
    priority: Priority
    cache_salt: CacheSalt

    @property
    def tier(self) -> AskedTier:
        return TIERS[self.service_tier]

    @property
    def request_options(self) -> RequestOptions:
        return RequestOptions(priority=self.priority, cache_salt=self.cache_salt)


class GeneratingFields(HandlingFields):
    """The same for requests whose completions are sampled."""

    __slots__ = ()
    speculation: Speculation

    @property
    def request_options(self) -> RequestOptions:
        return replace(super().request_options, speculation=self.speculation)


class OpenAIRequest(RequestObject, HandlingFields):
    """The fields that all bodies have in common. ``priority`` and ``cache_salt`` are vLLM's."""

    model: ModelName | None = None
    service_tier: Tier = "auto"
    priority: Priority = 0
    cache_salt: CacheSalt = ""
    twofold: OwnFields | None = None


class LabelledRequest(OpenAIRequest):
    """A request with the labels by which OpenAI's customers sort their requests."""

    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    metadata: Annotated[Metadata, IGNORED] | None = None


class VectorRequest(LabelledRequest, PoolingRequest):
    """Texts whose vectors are wanted. ``pooling`` is vLLM's."""

    pooling: Pooling = "mean"

    @property
    def params(self) -> PoolingParams:
        return PoolingParams(self.pooling)


def given_prompts(given: Prompts) -> tuple[TextOrTokens, ...]:
    """Each prompt of the field."""
    if isinstance(given, str):
        return (given,)
    if isinstance(given[0], int):
        return (tuple(given),)
    return tuple(one if isinstance(one, str) else tuple(one) for one in given)


MIN_SEED: Final = -(1 << 63)

Count: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_TOKEN_ID)]
TopLogprobs: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Temperature: TypeAlias = Annotated[float, Meta(ge=0)]
TopP: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
TopK: TypeAlias = Annotated[int, Meta(ge=-1, le=MAX_TOKEN_ID)]
MinP: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Repetition: TypeAlias = Annotated[float, Meta(gt=0)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Stop: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
Stops: TypeAlias = Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)]
Images: TypeAlias = Annotated[Any, only([], hint="Send text: models here read no pictures.")]
JsonSchema: TypeAlias = Annotated[dict[str, Any], Meta(extra={"wanted": "a JSON schema"})]

CONVERTED: Final = frozenset({"seed", "logit_bias", "structured_outputs"})
"""Fields that ``SamplingParams`` knows by the same name, but in another type."""


class CacheControl(RequestObject):
    """Anthropic's mark: the prompt up to the end of the object that has it stays cached."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] = "5m"


class StreamOptions(RequestObject):
    """Additions to a stream. ``continuous_usage_stats`` is vLLM's, and needs ``include_usage``."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False
    continuous_usage_stats: bool = False


class PlainFormat(RequestObject):
    """Any text, or any JSON object."""

    type: Literal["text", "json_object"]


class ChatTextFormat(RequestObject):
    """Any text."""

    type: Literal["text"]


class ChatObjectFormat(RequestObject):
    """Any JSON object, or one that follows ``schema``, as in llama.cpp, Together and Fireworks."""

    type: Literal["json_object"]
    schema: JsonSchema | None = None


class DescribedSchema(RequestObject):
    """A schema with its labels. The completion follows the schema even if ``strict`` is false."""

    name: str | None = None
    description: str | None = None
    strict: bool = False
    schema: JsonSchema | None = None


class SchemaFormat(RequestObject):
    """JSON that follows a schema."""

    type: Literal["json_schema"]
    json_schema: DescribedSchema


class StructuredOutputs(RequestObject):
    """vLLM's field for the format of a completion: exactly one of these."""

    json: JsonSchema | str | None = None
    json_object: bool = False
    regex: NonEmptyText | None = None
    choice: Annotated[list[NonEmptyText], Meta(min_length=1, max_length=MAX_CHOICES)] | None = None
    grammar: NonEmptyText | None = None


class PredictedPart(RequestObject):
    """A part of the predicted text."""

    type: Annotated[Literal["text"], OFFERED]
    text: str


class PredictedContent(RequestObject):
    """The text that the caller expects, such as the file before an edit. It changes no completion: it makes one faster
    where it is right."""

    type: Annotated[Literal["content"], OFFERED]
    content: str | list[PredictedPart]

    @property
    def text(self) -> str:
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class SampledRequest(LabelledRequest, GeneratingFields):
    """The fields of chats and completions that set how a completion is sampled and streamed."""

    speculation: Speculation = True
    prediction: PredictedContent | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    n: Annotated[int, Meta(ge=1, le=MAX_N)] | None = None
    temperature: Temperature | None = None
    top_p: TopP | None = None
    top_k: TopK | None = None
    min_p: MinP | None = None
    repetition_penalty: Repetition | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    stop: Stops | None = None
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=MAX_STOP_TOKENS)] | None = None
    min_tokens: TokenId | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    include_stop_str_in_output: bool | None = None
    seed: Annotated[int, Meta(ge=MIN_SEED, le=MAX_SEED)] | None = None
    logit_bias: (
        Annotated[
            dict[Annotated[str, Meta(pattern="^[0-9]{1,9}$")], Annotated[float, Meta(ge=-100, le=100)]],
            Meta(max_length=MAX_BIASED_TOKENS, extra={"wanted": "an object from token ids to numbers"}),
        ]
        | None
    ) = None
    response_format: ChatTextFormat | ChatObjectFormat | SchemaFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise ParameterError(
                "stream_options needs stream.", param="stream_options", hint='Set "stream": true, or leave it out.'
            )
        if self.prediction is not None and not self.speculation:
            raise FieldError(
                "A prediction needs speculation, which is false.", param="prediction", hint="Remove one of them."
            )

    def predicted(self, model: ModelFacts) -> RequestOptions:
        """The request's options with the tokens of its prediction. Raises ContextLengthError for too long a text."""
        if self.prediction is None:
            return self.request_options
        tokenizer = model.tokenizer.within(PromptLimit(model.context, 0, "prediction"))
        ids = tokenizer.encode(self.prediction.text, add_special_tokens=False, parse_special=False)
        return replace(self.request_options, prediction=tuple(ids))

    @property
    def given_parameters(self) -> frozenset[str]:
        """Names of the sampling parameters in the body that replace defaults of the server."""
        limited = {getattr(self, name, None) for name in ("max_tokens", "max_completion_tokens")} != {None}
        return frozenset(["max_tokens"] * limited + [name for name in NAMES if getattr(self, name) is not None])

    def sampling_keywords(self) -> dict[str, Any]:
        """Returns the keywords of ``SamplingParams`` that both endpoints have. OpenAI allows negative seeds; their
        bits are read as an unsigned number."""
        same = [each.name for each in fields(SamplingParams) if each.name not in CONVERTED]
        names = [name for name in same if name in SampledRequest.__struct_fields__]
        keywords: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        return keywords | {
            "seed": None if self.seed is None else self.seed & MAX_SEED,
            "logit_bias": {int(token): bias for token, bias in (self.logit_bias or {}).items()},
            "structured_outputs": self._format(),
        }

    def _format(self) -> StructuredOutputsParams | None:
        """The format of the completion, from OpenAI's response_format or vLLM's structured_outputs."""
        outputs = None
        match self.response_format:
            case ChatObjectFormat(schema=schema):
                outputs = StructuredOutputsParams(json=schema, json_object=schema is None)
            case SchemaFormat(json_schema=described):
                whole = described.schema is None
                outputs = StructuredOutputsParams(json=described.schema, json_object=whole)
        if self.structured_outputs is None:
            return outputs
        if outputs is not None:
            raise FieldError(
                "response_format and structured_outputs both set the output format.",
                param="structured_outputs",
                hint="Remove one of them.",
            )
        return StructuredOutputsParams(**structs.asdict(self.structured_outputs))
