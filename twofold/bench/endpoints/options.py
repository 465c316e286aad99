"""What a user chooses of the requests of a benchmark, whatever their dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Literal, TypeAlias

from twofold.bench.load.base import Ask, PromptMessage
from twofold.core.errors import ParameterError

Prompts: TypeAlias = Callable[[Ask], tuple[PromptMessage, ...]]
"""Makes all messages of a request, those of the turns before included."""

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class EndpointOptions:
    """What all requests of a run say.

    api_key      is sent as a bearer token, as the SDKs of OpenAI and Anthropic do; never shown
    stream       whether answers come as events, with the usage at the end
    ignore_eos   whether answers go on to their full length; an extension of vLLM, Twofold, SGLang and llama.cpp
    usage_each   whether OpenAI's streams shall have the tokens so far in every event (continuous_usage_stats)
    token_ids    whether events shall say which tokens they hold; an extension of vLLM and Twofold
    temperature  None leaves it to the server
    length       how the most tokens of an answer are spelled: OpenAI's own models want max_completion_tokens
    headers      sent as well, and instead of those of the same name
    extra        fields of the body; they win over all others but those of a single request
    """

    model: str
    api_key: str | None = field(default=None, repr=False)
    stream: bool = True
    ignore_eos: bool = False
    token_ids: bool = False
    usage_each: bool = False
    temperature: float | None = 0.0
    length: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    headers: Mapping[str, str] = field(default_factory=lambda: NOTHING, repr=False)
    extra: Mapping[str, Any] = field(default_factory=lambda: NOTHING, repr=False)

    def all_headers(self, own: Mapping[str, str] = NOTHING) -> Mapping[str, str]:
        """Headers of every request, in lower case; ``own`` are those of a dialect.

        Raises ParameterError for a header that would not be one line of HTTP.
        """
        key = {} if self.api_key is None else {"authorization": f"Bearer {self.api_key}"}
        given = {name.lower(): value for name, value in self.headers.items()}
        told = {"content-type": "application/json", **own, **key, **given}
        for name, value in told.items():
            _check_header(name, value)
        return MappingProxyType(told)

    def fixed_fields(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """Fields that all bodies have in common. ``own`` are those of a dialect."""
        told: dict[str, Any] = {"model": self.model, **own}
        if self.temperature is not None:
            told["temperature"] = self.temperature
        if self.stream:
            told["stream"] = True
        return told


def _check_header(name: str, value: str) -> None:
    """The value of a header may be a secret, so no error shows it."""
    if not name or not all(letter.isalnum() or letter in "-_" for letter in name) or not name.isascii():
        raise ParameterError(f"{name!r:.60} is not the name of a header.", param="header", hint="Write NAME: VALUE.")
    if not (value.isascii() and value.isprintable()):
        which = "The API key" if name == "authorization" else f"The header {name}"
        hint = "Check for a line end or a non-ASCII character."
        raise ParameterError(f"{which} contains characters that HTTP cannot send.", param="header", hint=hint)
