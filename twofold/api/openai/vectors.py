"""/v1/embeddings, and /v1/rerank and /v1/score: the similarity of texts, by the cosine of their vectors.

Scores lie from -1 to 1: the model reads each text alone, its last hidden states are pooled into a vector of length 1,
and a score is the dot product of two of them. That is what a bi-encoder does; a cross-encoder, which reads both texts
at once, would need a model trained for it.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from operator import mul
from struct import pack
from typing import Annotated, Final, Literal, TypeAlias

from msgspec import UNSET, Meta, UnsetType

from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.body import Explanation, NonEmptyText, NonNegativeInt, ReplyObject, RequestObject, missing
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import Count, Prompts, TokenId, VectorRequest, given_prompts
from twofold.api.openai.replies import PromptUsage, prompt_usage
from twofold.core.request import EngineRequest, PoolingParams
from twofold.engine.outputs import RequestOutput

MAX_DOCUMENTS: Final = 1000

Texts: TypeAlias = NonEmptyText | Annotated[list[NonEmptyText], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
Cosine: TypeAlias = Annotated[float, Meta(ge=-1, le=1)]


class EmbeddingVector(ReplyObject, kw_only=True):
    """The vector of a text: numbers, or in base64 the bytes of little-endian 32-bit floats."""

    object: Literal["embedding"] = "embedding"
    index: NonNegativeInt
    embedding: Sequence[float] | str


class EmbeddingReply(ReplyObject, kw_only=True):
    """The vectors of all texts."""

    object: Literal["list"] = "list"
    data: Annotated[list[EmbeddingVector], Meta(min_length=1)]
    model: str
    usage: PromptUsage
    twofold: Explanation | UnsetType = UNSET


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
        vectors: list[EmbeddingVector] = []
        for output in outputs:
            assert output.embedding is not None, "a text that was read has a vector"
            vector: Sequence[float] | str = output.embedding
            if self.encoding_format == "base64":
                vector = b64encode(pack(f"<{len(vector)}f", *output.embedding)).decode()
            vectors.append(EmbeddingVector(index=len(vectors), embedding=vector))
        return EmbeddingReply(data=vectors, model=head.model, usage=prompt_usage(outputs))


class RankedDocument(RequestObject):
    """A document as Cohere and Jina have it."""

    text: NonEmptyText


class RerankedDocument(ReplyObject):
    """The text of a document."""

    text: str


class RerankResult(ReplyObject, kw_only=True):
    """A document by its index in the request, and its cosine to the query."""

    index: NonNegativeInt
    relevance_score: Cosine
    document: RerankedDocument | UnsetType = UNSET


class RerankReply(ReplyObject, kw_only=True):
    """Documents, most similar first."""

    id: str
    model: str
    usage: PromptUsage
    results: Annotated[list[RerankResult], Meta(min_length=1)]
    twofold: Explanation | UnsetType = UNSET


class PairScore(ReplyObject, kw_only=True):
    """The cosine of a pair of texts."""

    index: NonNegativeInt
    object: Literal["score"] = "score"
    score: Cosine


class ScoreReply(ReplyObject, kw_only=True):
    """The scores of all pairs."""

    id: str
    object: Literal["list"] = "list"
    created: NonNegativeInt
    model: str
    data: Annotated[list[PairScore], Meta(min_length=1)]
    usage: PromptUsage
    twofold: Explanation | UnsetType = UNSET


class RerankRequest(VectorRequest, kw_only=True):
    """Documents to sort by their similarity to a query: Jina's and Cohere's body, as vLLM takes it."""

    query: NonEmptyText
    documents: Annotated[list[NonEmptyText | RankedDocument], Meta(min_length=1, max_length=MAX_DOCUMENTS)]
    top_n: Annotated[TokenId, Meta(description="How many results to return; 0 for all.")] = 0
    return_documents: bool = True

    @property
    def texts(self) -> list[str]:
        return [document if isinstance(document, str) else document.text for document in self.documents]

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        return self.jobs(model, _distinct([(self.query, text) for text in self.texts]))

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> RerankReply:  # noqa: ARG002
        texts = self.texts
        scores = _scores([(self.query, text) for text in texts], outputs)
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: self.top_n or len(scores)]
        results = [
            RerankResult(
                index=index,
                relevance_score=scores[index],
                document=RerankedDocument(texts[index]) if self.return_documents else UNSET,
            )
            for index in order
        ]
        return RerankReply(id=f"rerank-{head.id}", model=head.model, usage=prompt_usage(outputs), results=results)


class ScoreRequest(VectorRequest, kw_only=True):
    """Pairs of texts to score: one text with each of several, or two lists of one length. Each side has vLLM's older
    name and its newer one."""

    text_1: Texts | None = None
    queries: Texts | None = None
    text_2: Texts | None = None
    documents: Texts | None = None

    def __post_init__(self) -> None:
        ones, others = self._side("text_1", "queries"), self._side("text_2", "documents")
        if len(ones) not in (1, len(others)):
            raise FieldError(
                f"text_1 holds {len(ones)} texts and text_2 {len(others)}; text_1 must hold one, or as many as text_2.",
                param="text_1",
            )

    @property
    def pairs(self) -> list[tuple[str, str]]:
        ones, others = self._side("text_1", "queries"), self._side("text_2", "documents")
        return list(zip(ones * len(others) if len(ones) == 1 else ones, others, strict=True))

    def prepare(self, model: ModelFacts) -> Sequence[EngineRequest]:
        return self.jobs(model, _distinct(self.pairs))

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> ScoreReply:  # noqa: ARG002
        return ScoreReply(
            id=f"score-{head.id}",
            created=head.created,
            model=head.model,
            data=[PairScore(index=index, score=score) for index, score in enumerate(_scores(self.pairs, outputs))],
            usage=prompt_usage(outputs),
        )

    def _side(self, older: str, newer: str) -> list[str]:
        """One side of the pairs, under either name. Raises FieldError if both names or neither are given."""
        given: list[Texts] = [texts for name in (older, newer) if (texts := getattr(self, name)) is not None]
        if len(given) > 1:
            message = f"{older} and {newer} are two names of one field."
            raise FieldError(message, param=newer, hint="Remove one of them.")
        if not given:
            raise missing((None, older))
        return [given[0]] if isinstance(given[0], str) else given[0]


def _distinct(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """The texts of the pairs, each once."""
    return list(dict.fromkeys(text for pair in pairs for text in pair))


def _scores(pairs: Sequence[tuple[str, str]], outputs: Sequence[RequestOutput]) -> list[float]:
    """The cosine of the vectors of each pair of texts; vectors have length 1."""
    vectors = {text: output.embedding or () for text, output in zip(_distinct(pairs), outputs, strict=True)}
    products = (sum(map(mul, vectors[one], vectors[other])) for one, other in pairs)
    return [max(-1.0, min(1.0, product)) for product in products]
