"""Models by name."""

from __future__ import annotations

import pytest

from twofold.core.errors import ModelNotFoundError
from twofold.planner.price import catalog
from twofold.planner.price.catalog import Catalog, known_catalog, min_cached, parse_table, read_table

CATALOG = read_table()


def test_the_known_catalog_has_the_makers_own_models() -> None:
    assert known_catalog().find("claude-sonnet-4-6").name == "anthropic/claude-sonnet-4-6"


def test_without_genai_prices_the_table_inside_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda _name: None)
    assert known_catalog.__wrapped__().source == CATALOG.source


@pytest.mark.parametrize(
    "name",
    [
        "claude-sonnet-4-6",
        "anthropic/claude-sonnet-4-6",
        "Claude Sonnet 4.6",
        " claude_sonnet_4_6 ",
        "claude-sonnet-4-6-20260217",
        "claude-sonnet-4-6-latest",
        "claude-sonnet-4-6-2026-02-17",
    ],
)
def test_a_name_is_read_in_any_form(name: str) -> None:
    assert CATALOG.find(name).name == "anthropic/claude-sonnet-4-6"


def test_a_date_may_be_left_out() -> None:
    assert CATALOG.find("claude-3-5-haiku").id == "claude-3-5-haiku-latest"


def test_makers_come_first_and_a_provider_decides() -> None:
    lists = '"m" = [{ input = 1 }]\n'
    found = parse_table(f'source = "x"\nchecked = 2026-11-21\n[zed]\n{lists}[openai]\n{lists}[amp]\n{lists}')
    assert found.find("m").provider == "openai"
    assert found.find("zed/m").provider == "zed"


@pytest.mark.parametrize(
    ("name", "close"),
    [("claud-sonet-4-6", "anthropic/claude-sonnet-4-6"), ("gpt5", "openai/gpt-5"), ("openai/gpt-5o", "openai/gpt-5")],
)
def test_an_unknown_name_gets_the_nearest(name: str, close: str) -> None:
    with pytest.raises(ModelNotFoundError, match=f"No price is known for '{name}'") as caught:
        CATALOG.find(name)
    assert caught.value.hint is not None
    assert f"Did you mean {close!r}?" in caught.value.hint
    assert "pip install genai-prices" in caught.value.hint


def test_a_name_like_none_gets_no_guess() -> None:
    with pytest.raises(ModelNotFoundError) as caught:
        CATALOG.find("zzzzzzzzzzzz")
    assert "Did you mean" not in (caught.value.hint or "")


def test_what_a_provider_calls_it_is_asked_last() -> None:
    found = Catalog(CATALOG.models, "x", None, guess=lambda name: "openai/gpt-5" if name == "pet" else None)
    assert found.find("pet").id == "gpt-5"


def test_shortest_prefixes_that_are_kept() -> None:
    names = ("claude-sonnet-4-6", "claude-sonnet-4-5", "claude-opus-4-6", "claude-opus-5-5", "claude-haiku-4-5")
    assert [min_cached(f"anthropic/{name}") for name in names] == [2048, 1024, 4096, 512, 4096]
    assert min_cached("openai/gpt-5") == min_cached("google/gemini-2.5-flash") == 1024
    assert min_cached("google/gemini-2.5-pro") == 4096
    assert min_cached("elsewhere/m") == 0
