"""What the bodies of OpenAI's endpoints have in common: the fields that all take.

Names and defaults are OpenAI's; what vLLM adds (top_k, priority, cache_salt, structured_outputs, …) has vLLM's names.
A field that Twofold cannot honour is refused, never passed over; only labels, which concern no answer, are taken and
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self, cast, get_args

from twofold.api.base import AskedTier
from twofold.api.extras import read_explain
from twofold.api.fields import FieldError, Fields, impossible, is_whole
from twofold.api.pooling import PoolingParams
from twofold.api.vectors import PoolingFields
from twofold.core.errors import ParameterError, named
from twofold.core.request import RequestOptions
from twofold.core.step import Pooling
from twofold.engine.prompts import GivenPrompt

MAX_PROMPTS: Final = 2048
MAX_MODEL_CHARS: Final = 512

LABELS: Final = ("user", "safety_identifier", "prompt_cache_key")
"""Texts by which OpenAI's customers sort their requests; ``metadata`` is an object of such."""

Limits = Mapping[str, tuple[object, ...]]
"""Fields of OpenAI's with the only values that can be honoured here."""

TIERS: Final[Mapping[str, AskedTier]] = {
    "auto": "auto",
    "default": "default",
    "flex": "flex",
    "priority": "priority",
    "fast": "priority",
}
"""What OpenAI calls our tiers."""


@dataclass(frozen=True, slots=True)
class Common:
    """The fields that say nothing about the answer itself. ``include_usage`` adds the tokens spent to a stream."""

    model: str | None
    stream: bool
    include_usage: bool
    tier: AskedTier
    explain: bool
    return_token_ids: bool
    options: RequestOptions

    @classmethod
    def read(cls, fields: Fields) -> Self:
        stream = fields.flag("stream")
        return cls(
            model=read_model(fields),
            stream=stream,
            include_usage=_includes_usage(fields, stream),
            tier=read_tier(fields),
            explain=read_explain(fields),
            return_token_ids=fields.flag("return_token_ids"),
            options=read_options(fields),
        )


def open_body(body: object, limits: Limits) -> Fields:
    """The body's fields, those looked at that say nothing about what is wanted."""
    fields = Fields(body)
    for name in LABELS:
        fields.text(name)
    metadata = fields.take("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise impossible("metadata", metadata, "an object")
    for name, possible in limits.items():
        fields.only(name, *possible)
    return fields


def read_model(fields: Fields) -> str | None:
    model = fields.text("model")
    if model is not None and not 0 < len(model) <= MAX_MODEL_CHARS:
        raise impossible("model", model, f"a name of 1 to {MAX_MODEL_CHARS} characters")
    return model


def read_tier(fields: Fields) -> AskedTier:
    asked = fields.take("service_tier")
    if asked is None:
        return "auto"
    if not isinstance(asked, str) or asked not in TIERS:
        raise FieldError(
            f"service_tier {named(asked)} is not offered.",
            param="service_tier",
            code="unsupported_value",
            hint=f"Possible: {', '.join(TIERS)}.",
        )
    return TIERS[asked]


def read_options(fields: Fields) -> RequestOptions:
    """vLLM's fields about a request beside others: ``priority``, where lower goes first, and ``cache_salt``."""
    names = ("priority", "cache_salt")
    return RequestOptions(**{name: value for name in names if (value := fields.take(name)) is not None})


def read_pooling(fields: Fields, dimensions: int | None = None) -> PoolingFields:
    """``pooling``, which OpenAI does not have, is mean (default) or last."""
    pooling = "mean" if fields.take("pooling") is None else fields.choice("pooling", get_args(Pooling))
    return PoolingFields(
        model=read_model(fields),
        params=PoolingParams(cast(Pooling, pooling), dimensions),
        options=read_options(fields),
        tier=read_tier(fields),
        explain=read_explain(fields),
    )


def read_texts(fields: Fields, name: str) -> tuple[GivenPrompt, ...]:
    """The forms that OpenAI knows of the field ``name``: a text, token ids, or a list of either."""
    given = fields.require(name)
    if isinstance(given, str):
        return (GivenPrompt(text=given),)
    if not isinstance(given, list) or not given:
        raise _no_text(name, given)
    if all(map(is_whole, given)):
        return (GivenPrompt(token_ids=tuple(given)),)
    if len(given) > MAX_PROMPTS:
        raise FieldError(f"{name} holds {len(given)} texts; the maximum is {MAX_PROMPTS}.", param=name)
    return tuple(_one_text(name, one) for one in given)


def _includes_usage(fields: Fields, stream: bool) -> bool:
    options = fields.inner("stream_options")
    if options is None:
        return False
    if not stream:
        raise ParameterError(
            "stream_options needs stream.", param="stream_options", hint='Set "stream": true, or leave it out.'
        )
    include = options.flag("include_usage")
    options.only("include_obfuscation", False)
    options.only("continuous_usage_stats", False)
    options.close()
    return include


def _one_text(name: str, given: object) -> GivenPrompt:
    if isinstance(given, str):
        return GivenPrompt(text=given)
    if not isinstance(given, list) or not given or not all(map(is_whole, given)):
        raise _no_text(name, given)
    return GivenPrompt(token_ids=tuple(given))


def _no_text(name: str, given: object) -> FieldError:
    return impossible(name, given, "text, a list of texts, token ids or a list of lists of token ids")
