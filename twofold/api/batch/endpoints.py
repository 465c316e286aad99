"""What lines of a batch may ask for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from twofold.api.base import DialectRequest
from twofold.api.fields import unsupported
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.embeddings import EmbeddingRequest

ENDPOINTS: Final[Mapping[str, Callable[[object], DialectRequest]]] = {
    "/v1/chat/completions": ChatRequest.read,
    "/v1/completions": CompletionRequest.read,
    "/v1/embeddings": EmbeddingRequest.read,
}
"""What reads the body of a line, by the line's url."""


def check_batched(request: DialectRequest) -> None:
    """Raises FieldError for what no line of a batch can have: a stream, and a tier of its own."""
    if request.stream:
        raise unsupported("stream", "Remove it: batch lines are not streamed.")
    if request.tier not in ("auto", "default"):
        raise unsupported("service_tier", "Remove it: all lines have the batch tier.")
