"""/api/generate: bodies read; an empty prompt only loads the model.

A prompt goes through the chat template as the user's message, unless ``raw`` is set or the model has no template. With
a ``suffix`` the model fills in the text between both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Final

from twofold.api.base import ModelFacts
from twofold.api.body import only
from twofold.api.conversation import Conversation
from twofold.api.fields import FieldError
from twofold.api.ollama.common import OllamaRequest
from twofold.api.ollama.replies import MakePart, generate_part
from twofold.api.texts import infilled, tokenized
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.prompts import Message
from twofold.text.parsers.base import SectionParser

OWN_TEMPLATE: Final = "The model's own chat template is used; with raw the prompt is sent as it is."


class OllamaGenerateRequest(OllamaRequest):
    """A prompt of a chat, or a text to continue if it is ``raw``."""

    prompt: str = ""
    suffix: str = ""
    system: str = ""
    raw: bool = False
    template: Annotated[Any, only("", hint=OWN_TEMPLATE)] = None
    context: Annotated[Any, only([], hint="Send the conversation to /api/chat.")] = None
    images: Annotated[Any, only([])] = None
    width: None = None
    height: None = None
    steps: None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.system and (self.raw or self.suffix):
            beside = "raw" if self.raw else "suffix"
            raise FieldError(
                f"system cannot be used with {beside}.", param="system", hint="Put its text into the prompt."
            )

    @property
    def make_part(self) -> MakePart:
        return generate_part

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        if not self.prompt and not self.suffix:
            return []
        params = self.filled(model)
        conversation = self._conversation(model)
        if conversation is not None:
            return [self.within(conversation.prepare(model, params, RequestOptions()))]
        if self.thinking.mode == "on":
            raise FieldError("think needs a prompt that goes through a chat template.", param="think")
        if self.system:
            raise FieldError("system needs a model with a chat template; this one has none.", param="system")
        if self.suffix:
            return [self.within(infilled(self.prompt, self.suffix, model, params, RequestOptions()))]
        return [self.within(tokenized(self.prompt, model, params, RequestOptions()))]

    def parser(self, model: ModelFacts) -> SectionParser:
        conversation = self._conversation(model)
        return super().parser(model) if conversation is None else conversation.parser(model)

    def _conversation(self, model: ModelFacts) -> Conversation | None:
        """The chat with the prompt as its user message; None if the prompt is continued as it is."""
        if self.raw or self.suffix or not model.tokenizer.has_chat_template:
            return None
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return Conversation([*system, {"role": "user", "content": self.prompt}], thinking=self.thinking)
