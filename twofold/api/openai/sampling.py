"""The fields of chats and completions that say how an answer is drawn, as keywords of ``SamplingParams``."""

from __future__ import annotations

from dataclasses import fields
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, structs

from twofold.api.body import RequestObject
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import LabelledRequest
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
from twofold.core.sampling_defaults import NAMES

MIN_SEED: Final = -(1 << 63)

TokenId: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_TOKEN_ID)]
TopLogprobs: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_LOGPROBS)]
Temperature: TypeAlias = Annotated[float, Meta(ge=0)]
TopP: TypeAlias = Annotated[float, Meta(gt=0, le=1)]
TopK: TypeAlias = Annotated[int, Meta(ge=-1, le=MAX_TOKEN_ID)]
MinP: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
Repetition: TypeAlias = Annotated[float, Meta(gt=0)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Stop: TypeAlias = Annotated[str, Meta(min_length=1, max_length=MAX_STOP_CHARS)]
Stops: TypeAlias = Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)]
FullText: TypeAlias = Annotated[str, Meta(min_length=1)]
JsonSchema: TypeAlias = Annotated[dict[str, Any], Meta(extra={"wanted": "a JSON schema"})]

CONVERTED: Final = frozenset({"seed", "logit_bias", "structured_outputs"})
"""Fields that ``SamplingParams`` knows by the same name, but in another form."""


class StreamOptions(RequestObject):
    """What a stream holds beside the answer. ``continuous_usage_stats`` is vLLM's, and needs ``include_usage``."""

    include_usage: bool = False
    include_obfuscation: Literal[False] = False
    continuous_usage_stats: bool = False


class PlainFormat(RequestObject):
    """Any text, or any JSON object."""

    type: Literal["text", "json_object"]


class DescribedSchema(RequestObject):
    """A schema with its labels. ``strict`` may be off: the answer keeps to the schema all the same."""

    name: str | None = None
    description: str | None = None
    strict: bool = False
    schema: JsonSchema | None = None


class SchemaFormat(RequestObject):
    """JSON of a schema."""

    type: Literal["json_schema"]
    json_schema: DescribedSchema


class StructuredOutputs(RequestObject):
    """vLLM's field for the format of an answer: exactly one of these."""

    json: JsonSchema | str | None = None
    json_object: bool = False
    regex: FullText | None = None
    choice: Annotated[list[FullText], Meta(min_length=1, max_length=MAX_CHOICES)] | None = None
    grammar: FullText | None = None


class SampledRequest(LabelledRequest):
    """The fields of chats and completions that say how an answer is sampled and streamed."""

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
    response_format: PlainFormat | SchemaFormat | None = None
    structured_outputs: StructuredOutputs | None = None

    def __post_init__(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise ParameterError(
                "stream_options needs stream.", param="stream_options", hint='Set "stream": true, or leave it out.'
            )

    @property
    def include_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def continuous_usage(self) -> bool:
        return self.include_usage and self.stream_options is not None and self.stream_options.continuous_usage_stats

    @property
    def asked(self) -> frozenset[str]:
        """Sampling parameters with defaults of the server's that the body gave itself."""
        return frozenset(name for name in NAMES if getattr(self, name) is not None)

    def sampling_keywords(self) -> dict[str, Any]:
        """Keywords of ``SamplingParams`` that both endpoints have. OpenAI's seeds are signed; one below 0 stands for
        the unsigned number of the same bits."""
        same = [each.name for each in fields(SamplingParams) if each.name not in CONVERTED]
        names = [name for name in same if name in SampledRequest.__struct_fields__]
        keywords: dict[str, Any] = {name: value for name in names if (value := getattr(self, name)) is not None}
        return keywords | {
            "seed": None if self.seed is None else self.seed & MAX_SEED,
            "logit_bias": {int(token): bias for token, bias in (self.logit_bias or {}).items()},
            "structured_outputs": self._form(),
        }

    def _form(self) -> StructuredOutputsParams | None:
        """The form of the answer, as OpenAI's response_format says it or as vLLM's structured_outputs."""
        form = None
        match self.response_format:
            case PlainFormat(type="json_object"):
                form = StructuredOutputsParams(json_object=True)
            case SchemaFormat(json_schema=described):
                whole = described.schema is None
                form = StructuredOutputsParams(json=described.schema, json_object=whole)
        if self.structured_outputs is None:
            return form
        if form is not None:
            raise FieldError(
                "response_format and structured_outputs both set the output format.",
                param="structured_outputs",
                hint="Remove one of them.",
            )
        return StructuredOutputsParams(**structs.asdict(self.structured_outputs))
