"""Fields of all API protocols: a model's name, and Twofold's own under one key: ``"twofold": {"explain": true}``."""

from __future__ import annotations

from typing import Annotated, Final, TypeAlias

from msgspec import Meta

from twofold.api.body import COMPONENTS, RequestObject

MAX_MODEL_CHARS: Final = 512

ModelName: TypeAlias = Annotated[
    str,
    Meta(min_length=1, max_length=MAX_MODEL_CHARS, extra_json_schema={"$ref": f"{COMPONENTS}ModelName"}),
]


class OwnFields(RequestObject):
    """Twofold's own fields."""

    explain: Annotated[bool, Meta(description="The reply carries the request's record.")] = False
