"""The compatibility page agrees with the readers, and its probes try the values that they name."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import pytest

pytest.importorskip("openai")
pytest.importorskip("anthropic")

from tests.server.compatibility.endpoints import ENDPOINTS, Endpoint
from tests.server.compatibility.probes import probes_of
from tests.server.compatibility.table import PAGE, Readers, client_fields, page, rows, section


@pytest.fixture(scope="module")
def readers() -> Readers:
    return Readers()


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m tests.server.compatibility"


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_every_refusal_names_its_field(readers: Readers, endpoint: Endpoint) -> None:
    for row in rows(readers, endpoint):
        for outcome in row.outcomes:
            if outcome.code is not None:
                assert (outcome.param or "").startswith(row.name), (row.name, outcome)


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_no_field_is_unknown(readers: Readers, endpoint: Endpoint) -> None:
    """A field that a new client brings has to be decided on, not met with "is not a known field"."""
    missing = client_fields(endpoint).keys() - readers.known(endpoint)
    assert not missing


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_a_supported_field_is_never_called_refused(readers: Readers, endpoint: Endpoint) -> None:
    """If all probes exceeded a limit, the page would call a supported field refused."""
    for row in rows(readers, endpoint):
        if row.verdict == "refused":
            assert all(outcome.unsupported for outcome in row.outcomes), row


DRAWN: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9}
OPENAI: dict[str, Any] = {**DRAWN, "stop": ["\n", "END"], "max_tokens": 100, "seed": 1, "n": 2, "presence_penalty": 0.5}
OLLAMA: dict[str, Any] = {
    "options": {"temperature": 0.2, "top_p": 0.95, "num_predict": 100, "num_ctx": 2048, "stop": ["END"], "seed": 1},
    "format": "json",
    "keep_alive": -1,
    "think": False,
}
ORDINARY: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {**OPENAI, "max_completion_tokens": 100, "response_format": {"type": "json_object"}},
    "/v1/completions": {**OPENAI, "echo": True, "logprobs": 5},
    "/v1/responses": {**DRAWN, "max_output_tokens": 100, "instructions": "be brief", "metadata": {"a": "b"}},
    "/v1/embeddings": {"encoding_format": "base64", "user": "me"},
    "/v1/messages": {**DRAWN, "stop_sequences": ["\n", "END"], "max_tokens": 100, "top_k": 40, "system": "be brief"},
    "/api/chat": {**OLLAMA, "messages": [{"role": "user", "content": "hi"}], "stream": False},
    "/api/generate": {**OLLAMA, "system": "be brief", "raw": True},
    "/api/embed": {"truncate": True, "keep_alive": "5m"},
}
"""Ordinary values of fields, which do not depend on the limits from which probes are made."""


@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.path)
def test_an_ordinary_value_of_a_supported_field_is_accepted(readers: Readers, endpoint: Endpoint) -> None:
    for name, value in ORDINARY[endpoint.path].items():
        assert readers.accepts(endpoint, name, value), name
        assert f"| `{name}` | refused |" not in section(readers, endpoint)


class Inner(TypedDict, total=False):
    word: Literal["a", "b"]
    flag: bool


def test_probes_come_from_types() -> None:
    hint: Any = Literal["x", "y"] | list[int] | Inner | None
    found = {probe.label: probe.value for probe in probes_of(hint)}
    assert found == {
        "`x`": "x",
        "`y`": "y",
        "[number]": [1],
        "word: `a`": {"word": "a"},
        "word: `b`": {"word": "b"},
        "flag: true": {"flag": True},
        "flag: false": {"flag": False},
    }
