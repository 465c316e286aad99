"""Endpoints of batch lines, and the checks of a line's body."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Final

from twofold.api.base import DialectRequest
from twofold.api.batch.lines import LineCall
from twofold.api.fields import FieldError, check_depth, unsupported
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.embeddings import EmbeddingRequest

ENDPOINTS: Final[Mapping[str, Callable[[object], DialectRequest]]] = {
    "/v1/chat/completions": ChatRequest.read,
    "/v1/completions": CompletionRequest.read,
    "/v1/embeddings": EmbeddingRequest.read,
}
"""Readers of bodies, by the url of the line."""
MAX_DEPTH: Final = 64
"""Nesting depth of a body, as over HTTP."""


def read_body(call: LineCall) -> DialectRequest:
    """The request of a line. Raises FieldError, also for a stream and for a service tier of its own."""
    check_body(call.body)
    request = ENDPOINTS[call.endpoint](call.body)
    if request.stream:
        raise unsupported("stream", "Remove it: batch lines are not streamed.")
    if request.tier not in ("auto", "default"):
        raise unsupported("service_tier", "Remove it: all lines have the batch tier.")
    return request


def check_body(body: object) -> None:
    """Raises FieldError for a body that no request over HTTP could have: nested too deeply, or with lone surrogates."""
    check_depth(body, MAX_DEPTH)
    try:
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise FieldError(
            "The body holds a lone surrogate, which is not Unicode text.", param="body", hint="Send it as UTF-8."
        ) from error
