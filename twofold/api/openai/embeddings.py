"""/v1/embeddings: texts whose vectors are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, get_args

from twofold.api.base import Job, ModelFacts, ReplyHead
from twofold.api.openai.bodies import open_body, read_pooling, read_texts
from twofold.api.openai.replies import embedding_list
from twofold.api.texts import tokenized
from twofold.api.vectors import PoolingFields, PoolingRequest
from twofold.core.params import MAX_TOKEN_ID
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import GivenPrompt

Encoding = Literal["float", "base64"]


@dataclass(frozen=True, slots=True)
class EmbeddingRequest(PoolingRequest):
    """Texts to read."""

    common: PoolingFields
    given: tuple[GivenPrompt, ...]
    encoding: Encoding

    @classmethod
    def read(cls, body: object) -> Self:
        """Reads a body. Raises ParameterError for an impossible, unknown or unsupported field."""
        fields = open_body(body, {})
        known, name = get_args(Encoding), "encoding_format"
        request = cls(
            common=read_pooling(fields, fields.whole("dimensions", 1, MAX_TOKEN_ID)),
            given=read_texts(fields, "input"),
            encoding=cast(Encoding, "float" if fields.take(name) is None else fields.choice(name, known)),
        )
        fields.close()
        return request

    def prepare(self, model: ModelFacts) -> Sequence[Job]:
        return self.jobs(model, (tokenized(given, model, answer=0) for given in self.given))

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> dict[str, Any]:  # noqa: ARG002
        return embedding_list(head, outputs, base64=self.encoding == "base64")
