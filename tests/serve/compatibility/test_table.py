"""The compatibility page says what the readers do, and its probes try what they say they try."""

from __future__ import annotations

from typing import Any, Literal, TypedDict

import pytest

pytest.importorskip("openai")
pytest.importorskip("anthropic")

from tests.serve.compatibility.endpoints import ENDPOINTS, Endpoint
from tests.serve.compatibility.probes import probes_of
from tests.serve.compatibility.table import PAGE, Readers, client_fields, page, rows


@pytest.fixture(scope="module")
def readers() -> Readers:
    return Readers()


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it anew: python -m tests.serve.compatibility"


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
