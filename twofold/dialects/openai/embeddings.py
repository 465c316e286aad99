"""/v1/embeddings: texts whose vectors are wanted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Self, cast, get_args

from twofold.core.params import MAX_TOKEN_ID
from twofold.core.request import RequestOptions
from twofold.core.step import Pooling
from twofold.dialects.base import AskedTier, Job, ModelFacts, ReplyHead, Streamer
from twofold.dialects.extras import read_explain
from twofold.dialects.fields import Fields
from twofold.dialects.openai.bodies import open_body, read_model, read_options, read_texts, read_tier
from twofold.dialects.openai.replies import embedding_list
from twofold.dialects.pooling import PoolingParams
from twofold.dialects.texts import tokenized
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import GivenPrompt

Encoding = Literal["float", "base64"]


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """Texts to read. ``pooling``, which OpenAI has not, is mean or last."""

    model: str | None
    given: tuple[GivenPrompt, ...]
    encoding: Encoding
    params: PoolingParams
    options: RequestOptions
    tier: AskedTier
    explain: bool

    @classmethod
    def read(cls, body: object) -> Self:
        """Reads a body. Raises ParameterError for an impossible, unknown or unsupported field."""
        fields = open_body(body, {})
        request = cls(
            model=read_model(fields),
            given=read_texts(fields, "input"),
            encoding=cast(Encoding, _choice(fields, "encoding_format", "float", get_args(Encoding))),
            params=PoolingParams(
                cast(Pooling, _choice(fields, "pooling", "mean", get_args(Pooling))),
                fields.whole("dimensions", 1, MAX_TOKEN_ID),
            ),
            options=read_options(fields),
            tier=read_tier(fields),
            explain=read_explain(fields),
        )
        fields.close()
        return request

    @property
    def stream(self) -> bool:
        return False

    def prepare(self, model: ModelFacts) -> Sequence[Job]:
        self.params.check(model.hidden_size)
        return [Job(tokenized(given, model, answer=0), self.params, self.options) for given in self.given]

    def reply(
        self,
        head: ReplyHead,
        outputs: Sequence[RequestOutput],
        model: ModelFacts,  # noqa: ARG002 - vectors have no text
    ) -> dict[str, Any]:
        return embedding_list(head, outputs, base64=self.encoding == "base64")

    def streamer(self, head: ReplyHead, model: ModelFacts) -> Streamer:  # noqa: ARG002 - see ``stream``
        raise AssertionError("embeddings cannot be streamed")


def _choice(fields: Fields, name: str, default: str, known: tuple[str, ...]) -> str:
    return default if fields.take(name) is None else fields.choice(name, known)
