"""``/v1/completions`` of OpenAI: a text that goes on, without roles."""

from __future__ import annotations

from typing import Any

from twofold.bench.endpoints.openai import OpenAIEndpoint
from twofold.bench.load.base import PromptMessage


class CompletionsEndpoint(OpenAIEndpoint):
    """The texts of all messages make one prompt, with nothing between them."""

    name = "completions"
    path = "/v1/completions"

    def prompt(self, messages: tuple[PromptMessage, ...]) -> dict[str, Any]:
        return {"prompt": "".join(message.text for message in messages)}
