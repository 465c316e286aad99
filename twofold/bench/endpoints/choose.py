"""The endpoints by their names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

from twofold.bench.base import Endpoint
from twofold.bench.endpoints.messages import MessagesEndpoint
from twofold.bench.endpoints.openai import ChatEndpoint, CompletionsEndpoint
from twofold.bench.endpoints.options import EndpointOptions, Prompts
from twofold.core.errors import ParameterError, closest_match, describe_name

ENDPOINTS: Final[Mapping[str, Callable[[EndpointOptions, Prompts], Endpoint]]] = MappingProxyType(
    {"chat": ChatEndpoint, "completions": CompletionsEndpoint, "messages": MessagesEndpoint}
)


def endpoint_of(name: str, options: EndpointOptions, prompts: Prompts) -> Endpoint:
    """The endpoint called ``name``. ParameterError for another name, and for options that it has no words for."""
    if name not in ENDPOINTS:
        close = closest_match(name, ENDPOINTS)
        hint = f"Did you mean {close}?" if close else f"There are {', '.join(ENDPOINTS)}."
        raise ParameterError(f"There is no endpoint {describe_name(name)}.", param="endpoint", hint=hint)
    return ENDPOINTS[name](options, prompts)
