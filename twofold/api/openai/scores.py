"""/v1/rerank and /v1/score: how alike texts are, by the cosine of their vectors.

Scores lie from -1 to 1: the model reads each text alone, its last hidden states are pooled into a vector of length 1,
as for /v1/embeddings, and a score is the dot product of two of them. That is what a bi-encoder does; a cross-encoder,
which reads both texts at once, would need a model trained for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Any, Final, Literal, Self

from twofold.api.base import Job, ModelFacts, ReplyHead
from twofold.api.fields import FieldError, Fields, impossible
from twofold.api.openai.bodies import open_body, read_pooling
from twofold.api.texts import tokenized
from twofold.api.vectors import PoolingFields, PoolingRequest
from twofold.core.params import MAX_TOKEN_ID
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import GivenPrompt

MAX_DOCUMENTS: Final = 1000


class SimilarityRequest(PoolingRequest):
    """A request that compares texts; ``texts`` has each of them once."""

    __slots__ = ()
    texts: tuple[str, ...]

    def prepare(self, model: ModelFacts) -> Sequence[Job]:
        return self.jobs(model, (tokenized(GivenPrompt(text=text), model, answer=0) for text in self.texts))

    def scores(self, pairs: Iterable[tuple[str, str]], outputs: Sequence[RequestOutput]) -> list[float]:
        """The cosine of the vectors of each pair of texts; vectors have length 1."""
        vectors = {text: output.embedding or () for text, output in zip(self.texts, outputs, strict=True)}
        products = (sum(map(mul, vectors[one], vectors[other])) for one, other in pairs)
        return [max(-1.0, min(1.0, product)) for product in products]


@dataclass(frozen=True, slots=True)
class RerankRequest(SimilarityRequest):
    """Documents to put in order by how alike they are to a query: Jina's and Cohere's body, as vLLM takes it."""

    common: PoolingFields
    texts: tuple[str, ...]
    query: str
    documents: tuple[str, ...]
    top: int
    returns: bool

    @classmethod
    def read(cls, body: object) -> Self:
        """Reads a body. Raises ParameterError for an impossible, unknown or unsupported field."""
        fields = open_body(body, {})
        query, documents = _text(fields, "query"), _documents(fields)
        top = fields.whole("top_n", 0, MAX_TOKEN_ID)
        request = cls(
            common=read_pooling(fields),
            texts=_distinct((query, *documents)),
            query=query,
            documents=documents,
            top=top or len(documents),
            returns=fields.flag("return_documents", True),
        )
        fields.close()
        return request

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> dict[str, Any]:  # noqa: ARG002
        scores = self.scores([(self.query, document) for document in self.documents], outputs)
        order = sorted(range(len(scores)), key=lambda index: -scores[index])[: self.top]
        results = []
        for index in order:
            document = {"document": {"text": self.documents[index]}} if self.returns else {}
            results.append({"index": index, "relevance_score": scores[index], **document})
        return {"id": f"rerank-{head.id}", "model": head.model, "usage": _usage(outputs), "results": results}


@dataclass(frozen=True, slots=True)
class ScoreRequest(SimilarityRequest):
    """Pairs of texts to score: one text against several, or as many as many, as vLLM takes them."""

    common: PoolingFields
    texts: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = field(repr=False)

    @classmethod
    def read(cls, body: object) -> Self:
        """Reads a body. Raises ParameterError for an impossible, unknown or unsupported field."""
        fields = open_body(body, {})
        pairs = _pairs(_side(fields, "text_1", "queries"), _side(fields, "text_2", "documents"))
        request = cls(read_pooling(fields), _distinct(text for pair in pairs for text in pair), pairs)
        fields.close()
        return request

    def reply(self, head: ReplyHead, outputs: Sequence[RequestOutput], model: ModelFacts) -> dict[str, Any]:  # noqa: ARG002
        data = [
            {"index": index, "object": "score", "score": score}
            for index, score in enumerate(self.scores(self.pairs, outputs))
        ]
        return {
            "id": f"score-{head.id}",
            "object": "list",
            "created": head.created,
            "model": head.model,
            "data": data,
            "usage": _usage(outputs),
        }


def _distinct(texts: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _usage(outputs: Sequence[RequestOutput]) -> dict[str, int]:
    spent = sum(len(output.prompt_token_ids) for output in outputs)
    return {"prompt_tokens": spent, "total_tokens": spent}


def _text(fields: Fields, name: str) -> str:
    value = fields.require(name)
    if not isinstance(value, str) or not value:
        raise impossible(fields.name(name), value, "a text that is not empty")
    return value


def _documents(fields: Fields) -> tuple[str, ...]:
    """Texts, or objects with a text, as Cohere and Jina have them."""
    given = fields.require("documents")
    if not isinstance(given, list) or not 0 < len(given) <= MAX_DOCUMENTS:
        raise impossible("documents", given, f"a list of 1 to {MAX_DOCUMENTS} documents")
    return tuple(_document(document, f"documents[{index}]") for index, document in enumerate(given))


def _document(given: object, where: str) -> str:
    if isinstance(given, str) and given:
        return given
    if not isinstance(given, dict):
        raise impossible(where, given, "a text that is not empty, or an object with one")
    fields = Fields(given, where)
    text = _text(fields, "text")
    fields.close()
    return text


def _side(fields: Fields, name: Literal["text_1", "text_2"], other: str) -> list[str]:
    """One side of the pairs, under vLLM's older name for it or its newer one."""
    older, newer = fields.take(name), fields.take(other)
    if older is not None and newer is not None:
        raise FieldError(f"{name} and {other} are two names of one field.", param=other, hint="Remove one of them.")
    chosen, given = (other, newer) if newer is not None else (name, older)
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not 0 < len(texts) <= MAX_DOCUMENTS:
        raise impossible(chosen, given, f"a text or a list of 1 to {MAX_DOCUMENTS} texts")
    if not all(isinstance(text, str) and text for text in texts):
        raise impossible(chosen, given, "texts that are not empty")
    return texts


def _pairs(ones: list[str], others: list[str]) -> tuple[tuple[str, str], ...]:
    if len(ones) == 1:
        ones = ones * len(others)
    if len(ones) != len(others):
        raise FieldError(
            f"text_1 holds {len(ones)} texts and text_2 {len(others)}; text_1 must hold one, or as many.",
            param="text_1",
        )
    return tuple(zip(ones, others, strict=True))
