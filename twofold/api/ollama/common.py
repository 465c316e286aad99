"""What /api/chat and /api/generate share: a request for one completion, or only to load the model."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from twofold.api.answers import read_answer
from twofold.api.base import AskedTier, HasCommon, ModelFacts, ReplyHead
from twofold.api.extras import read_explain
from twofold.api.fields import Fields
from twofold.api.ollama.fields import (
    Sampling,
    read_form,
    read_keep_alive,
    read_logprobs,
    read_model,
    read_sampling,
    refuse_others,
)
from twofold.api.ollama.replies import Shape, begun, ended, tool_calls
from twofold.api.ollama.stream import LineStreamer
from twofold.api.openai.logprobs import chat_logprobs
from twofold.engine.outputs import RequestOutput
from twofold.text.parsers.base import SectionParser


@dataclass(frozen=True, slots=True)
class OllamaFields:
    """``CommonFields`` of both endpoints, and sampling. ``keep_alive_s`` is None for the server's default."""

    model: str
    stream: bool
    explain: bool
    keep_alive_s: float | None
    sampling: Sampling

    @property
    def tier(self) -> AskedTier:
        return "auto"

    @classmethod
    def read(cls, fields: Fields) -> Self:
        refuse_others(fields)
        return cls(
            model=read_model(fields),
            stream=fields.flag("stream", True),
            explain=read_explain(fields),
            keep_alive_s=read_keep_alive(fields),
            sampling=read_sampling(fields, read_form(fields), read_logprobs(fields)),
        )


class OllamaRequest(HasCommon, ABC):
    """A ``DialectRequest`` for one completion; ``shape`` puts its content into the reply."""

    __slots__ = ()
    common: OllamaFields
    shape: Shape

    @property
    def keep_alive_s(self) -> float | None:
        return self.common.keep_alive_s

    @abstractmethod
    def parser(self, model: ModelFacts) -> SectionParser:
        """Divides the completion into content, thinking and tool calls."""

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> dict[str, Any]:
        if not outputs:
            return {**begun(head), **self.shape("", "", ()), **ended(head, None, unloads=self.keep_alive_s == 0)}
        (output,) = outputs
        answer = output.outputs[0]
        reader = read_answer(self.parser(model), answer.text)
        told = self.shape(reader.content, reader.reasoning, tool_calls(head, reader.calls))
        if answer.logprobs is not None:
            top = self.common.sampling.params.logprobs or 0
            told["logprobs"] = chat_logprobs(answer.token_ids, answer.logprobs, model.tokenizer, top)["content"]
        return {**begun(head), **told, **ended(head, output)}

    def streamer(self, head: ReplyHead, model: ModelFacts) -> LineStreamer:
        top = self.common.sampling.params.logprobs
        unloads = self.keep_alive_s == 0
        return LineStreamer(head, model, self.parser(model), self.shape, top_logprobs=top, unloads=unloads)
