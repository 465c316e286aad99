"""/api/embed, and its older form /api/embeddings: vectors of texts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

from msgspec import Meta

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.ollama.common import OllamaBody
from twofold.api.ollama.replies import OllamaEmbeddingReply, OllamaEmbedReply, figures
from twofold.api.openai.bodies import MAX_PROMPTS, TokenId
from twofold.api.texts import PoolingRequest, tokenized
from twofold.core.errors import ContextLengthError
from twofold.core.request import EngineRequest, PoolingParams
from twofold.engine.outputs import RequestOutput


class OllamaVectorBody(OllamaBody, PoolingRequest):
    """The fields of both endpoints."""

    def prompts(self, texts: Iterable[str], model: ModelFacts, *, truncate: bool) -> Iterator[tuple[int, ...]]:
        """The texts as tokens. ``truncate`` cuts what is longer than the model's context or num_ctx; without it that is
        a ContextLengthError."""
        room = min(model.context, self.options.num_ctx or model.context)
        for text in texts:
            ids = tokenized(text, model.unbounded(), self.params, self.request_options).token_ids
            if len(ids) > room and not truncate:
                raise ContextLengthError(
                    f"The text has {len(ids)} tokens; it does not fit the context of {room}.",
                    hint="Shorten it, or set truncate.",
                )
            yield ids[:room]


class OllamaEmbedRequest(OllamaVectorBody, kw_only=True):
    """The body of /api/embed."""

    input: str | Annotated[list[str], Meta(max_length=MAX_PROMPTS)]
    truncate: Annotated[bool, Meta(description="Cuts texts that are longer than the model's context.")] = True
    dimensions: TokenId | None = None

    @property
    def params(self) -> PoolingParams:
        return PoolingParams(dimensions=self.dimensions or None)

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        texts = [self.input] if isinstance(self.input, str) else self.input
        return self.jobs(model, self.prompts(texts, model, truncate=self.truncate))

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> OllamaEmbedReply:  # noqa: ARG002
        counts = figures(head, outputs)
        return OllamaEmbedReply(
            model=head.model,
            embeddings=[output.embedding or () for output in outputs],
            total_duration=counts["total_duration"],
            load_duration=counts["load_duration"],
            prompt_eval_count=counts["prompt_eval_count"],
        )


class OllamaEmbeddingRequest(OllamaVectorBody):
    """The body of /api/embeddings, whose reply is one vector."""

    prompt: str = ""

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        return self.jobs(model, self.prompts([self.prompt] if self.prompt else [], model, truncate=True))

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> OllamaEmbeddingReply:  # noqa: ARG002
        return OllamaEmbeddingReply((outputs[0].embedding or ()) if outputs else ())
