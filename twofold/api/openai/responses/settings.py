"""Fields of the Responses API about the answer: how the model thinks, what form the text has, what is included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta, structs

from twofold.api.body import OFFERED, RequestObject
from twofold.api.conversation import AS_BEFORE, Thinking
from twofold.api.openai.bodies import JsonSchema, PlainFormat
from twofold.api.openai.chat import EFFORTS, Effort, PromptCacheOptions
from twofold.core.params import StructuredOutputsParams

LOGPROBS: Final = "message.output_text.logprobs"
SEALED_REASONING: Final = "reasoning.encrypted_content"

MAX_LABELS: Final = 16
MAX_LABEL_NAME: Final = 64
MAX_LABEL: Final = 512

Includable: TypeAlias = Annotated[Literal["message.output_text.logprobs", "reasoning.encrypted_content"], OFFERED]
Metadata: TypeAlias = Annotated[
    dict[Annotated[str, Meta(max_length=MAX_LABEL_NAME)], Annotated[str, Meta(max_length=MAX_LABEL)]],
    Meta(
        max_length=MAX_LABELS,
        extra={"wanted": f"at most {MAX_LABELS} texts of {MAX_LABEL} characters with names of {MAX_LABEL_NAME}"},
    ),
]


class ReasoningSettings(RequestObject):
    """How the model thinks. A summary "auto" is the most detailed that a model can give; here the thinking itself is
    in the reply, and no summary."""

    effort: Effort | None = None
    summary: Literal["auto"] | None = None
    generate_summary: Literal["auto"] | None = None
    context: Literal["auto"] | None = None
    mode: Literal["standard"] | None = None

    @property
    def thinking(self) -> Thinking:
        chosen = AS_BEFORE if self.effort is None else EFFORTS[self.effort]
        return chosen if chosen.needed_by is None else replace(chosen, needed_by="reasoning.effort")


class ResponseSchemaFormat(RequestObject, kw_only=True):
    """JSON of a schema. ``strict`` may be off: the answer keeps to the schema all the same."""

    type: Literal["json_schema"]
    name: str
    description: str | None = None
    schema: JsonSchema
    strict: bool = False


class TextSettings(RequestObject):
    """What form the answer's text has."""

    format: PlainFormat | ResponseSchemaFormat | None = None
    verbosity: Literal["medium"] | None = None

    @property
    def form(self) -> StructuredOutputsParams | None:
        if isinstance(self.format, ResponseSchemaFormat):
            return StructuredOutputsParams(json=self.format.schema)
        whole = self.format is not None and self.format.type == "json_object"
        return StructuredOutputsParams(json_object=True) if whole else None

    @property
    def told(self) -> Mapping[str, Any]:
        """The format as the reply has it."""
        return {"type": "text"} if self.format is None else structs.asdict(self.format)


class ResponseCacheOptions(PromptCacheOptions):
    """With fields that only the Responses API has."""

    prewarm: Literal[False] = False
    comparison_response_id: None = None
