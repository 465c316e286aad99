"""``/v1/chat/completions`` of OpenAI and of all who speak like it."""

from __future__ import annotations

from typing import Any

from twofold.bench.endpoints.openai import OpenAIEndpoint
from twofold.bench.load.base import PromptMessage


class ChatEndpoint(OpenAIEndpoint):
    name = "chat"
    path = "/v1/chat/completions"

    def prompt(self, messages: tuple[PromptMessage, ...]) -> dict[str, Any]:
        return {"messages": [{"role": message.role, "content": message.text} for message in messages]}
