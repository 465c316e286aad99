"""Bodies of /v1/embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.openai.bodies import Count, Prompts, VectorRequest, given_prompts
from twofold.api.openai.replies import EmbeddingReply, embedding_reply
from twofold.core.request import EngineRequest, PoolingParams
from twofold.engine.outputs import RequestOutput


class EmbeddingRequest(VectorRequest, kw_only=True):
    """Texts to embed."""

    input: Prompts
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[Count, Meta(description="Must be the length of the model's vectors.")] | None = None

    @property
    def params(self) -> PoolingParams:
        return PoolingParams(self.pooling, self.dimensions)

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        return self.jobs(model, given_prompts(self.input))

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> EmbeddingReply:  # noqa: ARG002
        return embedding_reply(head, outputs, base64=self.encoding_format == "base64")
