"""Reads the body of POST /v1/batches."""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

from msgspec import Meta

from twofold.api.body import RequestObject
from twofold.server.files.form import FileLifetime

WINDOW_SECONDS: Final = 86400
MAX_PAIRS: Final = 16
MAX_KEY_CHARS: Final = 64
MAX_VALUE_CHARS: Final = 512
MAX_ID_CHARS: Final = 256


BatchEndpoint: TypeAlias = Literal["/v1/chat/completions", "/v1/completions", "/v1/embeddings"]


class BatchOrder(RequestObject):
    """The body of POST /v1/batches. ``metadata`` are pairs of the caller's, which are returned as they are."""

    input_file_id: Annotated[str, Meta(max_length=MAX_ID_CHARS)]
    endpoint: BatchEndpoint
    completion_window: Literal["24h"]
    metadata: (
        Annotated[
            dict[Annotated[str, Meta(max_length=MAX_KEY_CHARS)], Annotated[str, Meta(max_length=MAX_VALUE_CHARS)]],
            Meta(max_length=MAX_PAIRS),
        ]
        | None
    ) = None
    output_expires_after: FileLifetime | None = None
