"""/api/generate: bodies read; an empty prompt only loads the model.

A prompt goes through the chat template as the user's message, unless ``raw`` is set or the model has no template. With
a ``suffix`` the model fills in what stands between both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from twofold.api.base import Job, ModelFacts
from twofold.api.conversation import Conversation, Thinking
from twofold.api.fields import FieldError, Fields, unsupported
from twofold.api.ollama.common import OllamaFields, OllamaRequest
from twofold.api.ollama.fields import read_think
from twofold.api.ollama.replies import as_response
from twofold.api.texts import infilled, tokenized
from twofold.core.request import RequestOptions
from twofold.engine.prompts import GivenPrompt, Message
from twofold.text.parsers.base import SectionParser
from twofold.text.parsers.pieces import PlainParser

IMAGES: Final = ("width", "height", "steps")
"""Of pictures that a model shall draw."""


@dataclass(frozen=True, slots=True)
class GenerateRequest(OllamaRequest):
    """A prompt to answer, or to go on with where it is ``raw``."""

    common: OllamaFields
    prompt: str
    suffix: str
    system: str
    raw: bool
    thinking: Thinking

    shape = staticmethod(as_response)

    @classmethod
    def read(cls, body: object) -> Self:
        """Reads a body. Raises ParameterError for an impossible, unknown or unsupported field."""
        fields = Fields(body)
        _refuse_unsupported(fields)
        request = cls(
            common=OllamaFields.read(fields),
            prompt=fields.text("prompt") or "",
            suffix=fields.text("suffix") or "",
            system=fields.text("system") or "",
            raw=fields.flag("raw"),
            thinking=read_think(fields),
        )
        fields.close()
        if request.system and (request.raw or request.suffix):
            beside = "raw" if request.raw else "suffix"
            raise FieldError(
                f"system cannot be used with {beside}.", param="system", hint="Put its text into the prompt."
            )
        return request

    def prepare(self, model: ModelFacts) -> Sequence[Job]:
        if not self.prompt and not self.suffix:
            return []
        sampling = self.common.sampling
        params = sampling.filled(model)
        conversation = self._conversation(model)
        if conversation is not None:
            return [sampling.within(conversation.prepare(model, params, RequestOptions()))]
        if self.thinking.mode == "on":
            raise FieldError("think needs a prompt that goes through a chat template.", param="think")
        if self.system:
            raise FieldError("system needs a model with a chat template; this one has none.", param="system")
        if self.suffix:
            return [sampling.within(infilled(self.prompt, self.suffix, model, params, RequestOptions()))]
        prompt = tokenized(GivenPrompt(text=self.prompt), model)
        return [sampling.within(Job(prompt, params, RequestOptions()))]

    def parser(self, model: ModelFacts) -> SectionParser:
        conversation = self._conversation(model)
        return PlainParser() if conversation is None else conversation.parser(model)

    def _conversation(self, model: ModelFacts) -> Conversation | None:
        """The chat that the prompt is put into; None where it is completed as it stands."""
        if self.raw or self.suffix or not model.tokenizer.has_chat_template:
            return None
        system: list[Message] = [{"role": "system", "content": self.system}] if self.system else []
        return Conversation([*system, {"role": "user", "content": self.prompt}], thinking=self.thinking)


def _refuse_unsupported(fields: Fields) -> None:
    if fields.take("template") not in (None, ""):
        raise unsupported("template", "The model's own chat template is used; with raw the prompt stands as it is.")
    if fields.take("context") not in (None, []):
        raise unsupported("context", "Send the conversation to /api/chat.")
    fields.only("images", [])
    for name in IMAGES:
        fields.only(name)
