"""Reranking and scoring, compared with the embeddings of the same texts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.clients.conftest import TINY
from tests.server.live import LiveServer

QUERY, DOCUMENTS = "the river", ["a sea", "the river", "in the and of"]


def cosines(server: LiveServer) -> list[float]:
    body = {"model": TINY, "input": [QUERY, *DOCUMENTS]}
    query, *others = [one["embedding"] for one in server.post("/v1/embeddings", body).json()["data"]]
    return [sum(a * b for a, b in zip(query, other, strict=True)) for other in others]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank"])
def test_documents_are_ordered_by_their_cosine(server: LiveServer, path: str) -> None:
    expected = cosines(server)
    reply = server.post(path, {"model": TINY, "query": QUERY, "documents": DOCUMENTS}).json()
    found = {result["index"]: result["relevance_score"] for result in reply["results"]}
    assert found == {index: pytest.approx(score, abs=1e-6) for index, score in enumerate(expected)}
    assert [result["index"] for result in reply["results"]] == sorted(found, key=lambda index: -found[index])
    assert reply["results"][0]["document"] == {"text": "the river"}
    assert reply["results"][0]["relevance_score"] == pytest.approx(1, abs=1e-6)
    assert reply["usage"]["prompt_tokens"] > 0


def test_the_best_few_without_their_texts(server: LiveServer) -> None:
    body = {"model": TINY, "query": QUERY, "documents": [{"text": text} for text in DOCUMENTS], "top_n": 1}
    assert len(server.post("/rerank", body).json()["results"]) == 1
    (only,) = server.post("/rerank", {**body, "return_documents": False}).json()["results"]
    assert set(only) == {"index", "relevance_score"}


@pytest.mark.parametrize(
    "sides",
    [
        {"text_1": QUERY, "text_2": DOCUMENTS},
        {"text_1": [QUERY] * 3, "text_2": DOCUMENTS},
        {"queries": [QUERY], "documents": DOCUMENTS},
    ],
)
def test_pairs_are_scored_in_their_order(server: LiveServer, sides: dict[str, Any]) -> None:
    expected = cosines(server)
    for path in ("/v1/score", "/score"):
        reply = server.post(path, {"model": TINY, **sides}).json()
        assert [each["score"] for each in reply["data"]] == [pytest.approx(score, abs=1e-6) for score in expected]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/rerank", {"query": "", "documents": ["a"]}, "query"),
        ("/rerank", {"query": "a", "documents": []}, "documents"),
        ("/rerank", {"query": "a", "documents": ["a"] * 1001}, "documents"),
        ("/rerank", {"query": "a", "documents": [{"image": "a"}]}, "documents[0].text"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ("/score", {"text_1": "a"}, "text_2"),
        ("/score", {"text_1": "a", "queries": "a", "text_2": "b"}, "queries"),
    ],
)
def test_impossible_comparisons_are_refused(server: LiveServer, path: str, body: dict[str, Any], param: str) -> None:
    refused = server.post(path, {"model": TINY, **body})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, param)
