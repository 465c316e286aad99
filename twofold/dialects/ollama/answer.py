"""What /api/chat and /api/generate share: a request for one answer, or for nothing but to load the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

from twofold.dialects.answers import read_answer
from twofold.dialects.base import AskedTier, ModelFacts, ReplyHead
from twofold.dialects.extras import read_explain
from twofold.dialects.fields import Fields
from twofold.dialects.ollama.fields import (
    Sampling,
    read_form,
    read_keep_alive,
    read_logprobs,
    read_model,
    read_sampling,
    refuse_others,
)
from twofold.dialects.ollama.replies import Shape, begun, ended, tool_calls
from twofold.dialects.ollama.stream import LineStreamer
from twofold.dialects.openai.logprobs import chat_logprobs
from twofold.engine.outputs import RequestOutput
from twofold.text.sections.base import SectionParser


@dataclass(frozen=True, slots=True)
class Asked:
    """The fields of both. ``keep_alive_s`` is None where the server's own time holds."""

    model: str
    stream: bool
    explain: bool
    keep_alive_s: float | None
    sampling: Sampling

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


class OneAnswer:
    """What ``DialectRequest`` says of a request whose ``asked`` fields say it. ``parser`` divides the answer, ``shape``
    puts its parts."""

    __slots__ = ()
    asked: Asked
    shape: Shape

    @property
    def model(self) -> str:
        return self.asked.model

    @property
    def stream(self) -> bool:
        return self.asked.stream

    @property
    def tier(self) -> AskedTier:
        return "auto"

    @property
    def explain(self) -> bool:
        return self.asked.explain

    @property
    def keep_alive_s(self) -> float | None:
        return self.asked.keep_alive_s

    def parser(self, model: ModelFacts) -> SectionParser:
        raise NotImplementedError

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> dict[str, Any]:
        if not outputs:
            return {**begun(head), **self.shape("", "", ()), **ended(head, None, unloads=self.keep_alive_s == 0)}
        (output,) = outputs
        answer = output.outputs[0]
        reader = read_answer(self.parser(model), answer.text)
        told = self.shape(reader.content, reader.reasoning, tool_calls(head, reader.calls))
        if answer.logprobs is not None:
            top = self.asked.sampling.params.logprobs or 0
            told["logprobs"] = chat_logprobs(answer.token_ids, answer.logprobs, model.tokenizer, top)["content"]
        return {**begun(head), **told, **ended(head, output)}

    def streamer(self, head: ReplyHead, model: ModelFacts) -> LineStreamer:
        top = self.asked.sampling.params.logprobs
        unloads = self.keep_alive_s == 0
        return LineStreamer(head, model, self.parser(model), self.shape, top_logprobs=top, unloads=unloads)
