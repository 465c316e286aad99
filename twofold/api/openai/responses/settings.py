"""Fields of the Responses API about the answer: how the model thinks, what form the text has, what is included."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self

from twofold.api.conversation import AS_BEFORE, Thinking
from twofold.api.fields import FieldError, Fields, impossible
from twofold.api.openai.chat import EFFORTS
from twofold.api.openai.messages import CACHE_TTLS, DEFAULT_TTL
from twofold.api.openai.responses.items import optional_choice
from twofold.api.openai.sampling import json_schema_form
from twofold.core.errors import named
from twofold.core.params import MAX_LOGPROBS, StructuredOutputsParams
from twofold.core.request import TimeToLive

LOGPROBS: Final = "message.output_text.logprobs"
SEALED_REASONING: Final = "reasoning.encrypted_content"
INCLUDABLE: Final = (LOGPROBS, SEALED_REASONING)

MAX_LABELS: Final = 16
MAX_LABEL_NAME: Final = 64
MAX_LABEL: Final = 512


@dataclass(frozen=True, slots=True)
class ReasoningSettings:
    """How the model thinks. ``effort`` is as it was asked for.

    A ``summary`` "auto" is the most detailed that a model can give; here the thinking itself is told, and no summary.
    """

    thinking: Thinking
    effort: str | None

    @classmethod
    def read(cls, fields: Fields) -> Self:
        inner = fields.inner("reasoning") or Fields({}, "reasoning")
        effort = optional_choice(inner, "effort", tuple(EFFORTS))
        thinking = AS_BEFORE if effort is None else _thinking(effort)
        for name in ("summary", "generate_summary"):
            inner.only(name, "auto")
        inner.only("context", "auto")
        inner.only("mode", "standard")
        inner.close()
        return cls(thinking, effort)


def _thinking(effort: str) -> Thinking:
    chosen = EFFORTS[effort]
    return chosen if chosen.needed_by is None else replace(chosen, needed_by="reasoning.effort")


@dataclass(frozen=True, slots=True)
class TextForm:
    """What form the answer's text has. ``told`` is the form as the reply tells it."""

    form: StructuredOutputsParams | None
    told: Mapping[str, Any]

    @classmethod
    def read(cls, fields: Fields) -> Self:
        text = fields.inner("text") or Fields({}, "text")
        text.only("verbosity", "medium")
        described = text.inner("format") or Fields({"type": "text"}, "text.format")
        text.close()
        kind = described.choice("type", ("text", "json_object", "json_schema"))
        if kind == "json_schema":
            return cls(*_schema(described))
        described.close()
        return cls(StructuredOutputsParams(json_object=True) if kind == "json_object" else None, {"type": kind})


def _schema(described: Fields) -> tuple[StructuredOutputsParams, Mapping[str, Any]]:
    name, schema = described.require("name"), described.require("schema")
    told = {
        "type": "json_schema",
        "name": name,
        "description": described.text("description"),
        "schema": schema,
        "strict": described.flag("strict"),
    }
    return json_schema_form(described), told


def read_include(fields: Fields) -> frozenset[str]:
    """What the reply shall hold beside what it always does."""
    given = fields.take("include") or []
    if not isinstance(given, list):
        raise impossible("include", given, "a list of texts")
    return included(given)


def included(given: list[Any]) -> frozenset[str]:
    """The names of what shall be included. Raises FieldError for one that cannot be."""
    for name in given:
        if name not in INCLUDABLE:
            raise FieldError(
                f"include {named(name)} is not supported.",
                param="include",
                code="unsupported_value",
                hint=f"Possible: {', '.join(INCLUDABLE)}.",
            )
    return frozenset(given)


def read_logprobs(fields: Fields, include: frozenset[str]) -> int | None:
    """How many of the most likely tokens are told at each place; None for no log-probabilities at all."""
    most = fields.whole("top_logprobs", 0, MAX_LOGPROBS)
    if most and LOGPROBS not in include:
        raise FieldError(
            "top_logprobs needs log-probabilities.", param="top_logprobs", hint=f'Set "include": ["{LOGPROBS}"].'
        )
    return (most or 0) if LOGPROBS in include else None


def read_metadata(fields: Fields) -> dict[str, str] | None:
    """At most 16 labels of the caller's own, which are kept and told again."""
    labels = fields.take("metadata")
    if labels is None:
        return None
    if not isinstance(labels, dict) or len(labels) > MAX_LABELS or not all(map(_is_label, labels.items())):
        wanted = f"at most {MAX_LABELS} texts of {MAX_LABEL} characters with names of {MAX_LABEL_NAME}"
        raise impossible("metadata", labels, wanted)
    return labels


def _is_label(label: tuple[object, object]) -> bool:
    name, value = label
    return isinstance(name, str) and len(name) <= MAX_LABEL_NAME and isinstance(value, str) and len(value) <= MAX_LABEL


@dataclass(frozen=True, slots=True)
class CacheOptions:
    """How long the beginnings that ``prompt_cache_breakpoint`` marks stay cached, and whether the whole prompt does.

    Without ``prompt_cache_options`` the prefix cache keeps the prompt as long as there is room.
    """

    ttl: TimeToLive = DEFAULT_TTL
    whole: bool = False

    @classmethod
    def read(cls, fields: Fields) -> Self:
        fields.only("prompt_cache_retention", "in_memory")
        options = fields.inner("prompt_cache_options")
        if options is None:
            return cls()
        options.only("prewarm", False)
        options.only("comparison_response_id")
        ttl = optional_choice(options, "ttl", tuple(CACHE_TTLS))
        mode = optional_choice(options, "mode", ("implicit", "explicit"))
        options.close()
        return cls(CACHE_TTLS[ttl] if ttl else DEFAULT_TTL, mode != "explicit")
