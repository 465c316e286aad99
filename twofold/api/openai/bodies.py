"""What the bodies of OpenAI's endpoints have in common: the fields that all take.

Names and defaults are OpenAI's; what vLLM adds (top_k, priority, cache_salt, structured_outputs, …) has vLLM's names.
A field that Twofold cannot honour is refused, never passed over; only labels, which concern no answer, are taken and
dropped.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from msgspec import Meta

from twofold.api.base import AskedTier
from twofold.api.body import OFFERED, RequestObject
from twofold.api.extras import ModelName, OwnFields
from twofold.api.vectors import PoolingRequest
from twofold.core.params import MAX_TOKEN_ID
from twofold.core.request import MAX_NAME_CHARS, MAX_PRIORITY, PoolingParams, RequestOptions, TextOrTokens
from twofold.core.step import Pooling

MAX_PROMPTS: Final = 2048
TIERS: Final[Mapping[str, AskedTier]] = {
    "auto": "auto",
    "default": "default",
    "flex": "flex",
    "priority": "priority",
    "fast": "priority",
}
"""What OpenAI calls our tiers."""


Tier: TypeAlias = Annotated[Literal["auto", "default", "flex", "priority", "fast"], OFFERED]
TokenIds: TypeAlias = Annotated[list[Annotated[int, Meta(ge=0, le=MAX_TOKEN_ID)]], Meta(min_length=1)]
Prompts: TypeAlias = Annotated[
    str | TokenIds | Annotated[list[str | TokenIds], Meta(min_length=1, max_length=MAX_PROMPTS)],
    Meta(extra={"wanted": "text, a list of texts, token ids or a list of lists of token ids"}),
]
Label: TypeAlias = Annotated[str, Meta(description="Sorts requests; it changes no answer.")]


Priority: TypeAlias = Annotated[int, Meta(ge=-MAX_PRIORITY, le=MAX_PRIORITY, description="A lower number goes first.")]
CacheSalt: TypeAlias = Annotated[
    str, Meta(max_length=MAX_NAME_CHARS, description="Only prompts of the same salt share cached prefixes.")
]


class HandlingFields:
    """How a request is treated, by its fields."""

    __slots__ = ()
    service_tier: Tier
    priority: Priority
    cache_salt: CacheSalt
    twofold: OwnFields | None

    @property
    def tier(self) -> AskedTier:
        return TIERS[self.service_tier]

    @property
    def explain(self) -> bool:
        return self.twofold is not None and self.twofold.explain

    @property
    def request_options(self) -> RequestOptions:
        return RequestOptions(priority=self.priority, cache_salt=self.cache_salt)


class OpenAIRequest(RequestObject, HandlingFields):
    """The fields that all bodies have in common. ``priority`` and ``cache_salt`` are vLLM's."""

    model: ModelName | None = None
    service_tier: Tier = "auto"
    priority: Priority = 0
    cache_salt: CacheSalt = ""
    twofold: OwnFields | None = None


class LabelledRequest(OpenAIRequest):
    """With the labels by which OpenAI's customers sort their requests."""

    user: Label | None = None
    safety_identifier: Label | None = None
    prompt_cache_key: Label | None = None
    metadata: dict[str, Any] | None = None


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
