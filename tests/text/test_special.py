"""Control tokens in text: found as the plainest search finds them, with work that grows with the text alone."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twofold.text.tokenizers import special
from twofold.text.tokenizers.special import Segment, SpecialTokens


def plainly(ids: Mapping[str, int], text: str) -> list[Segment]:
    """The longest token at each place from left to right, by trying all."""
    segments, place, done = [], 0, 0
    while place < len(text):
        token = max((token for token in ids if text.startswith(token, place)), key=len, default=None)
        if token is None:
            place += 1
            continue
        segments += [Segment(text[done:place])] if place > done else []
        segments.append(Segment(token, ids[token]))
        place = done = place + len(token)
    return segments + ([Segment(text[done:])] if done < len(text) else [])


ALIKE = st.text("ab<", min_size=1, max_size=6)
TOKENS = st.one_of(
    st.lists(ALIKE, max_size=12), st.lists(st.text("abcdefghijklmnopqrst^]-<|", min_size=1, max_size=3), max_size=30)
).map(lambda texts: {text: number for number, text in enumerate(dict.fromkeys(texts))})


@given(TOKENS, st.text("ab<", max_size=60) | st.text("abcdefghijklmnopqrst^]-<|", max_size=60))
def test_tokens_are_found_as_by_trying_all(ids: dict[str, int], text: str) -> None:
    tokens = SpecialTokens(ids)
    assert list(tokens.split(text)) == plainly(ids, text)


@given(
    TOKENS, st.text("ab<", max_size=60) | st.text("abcdefghijklmnopqrst^]-<|", max_size=60), st.text("ab<", max_size=6)
)
def test_broken_text_makes_no_token_with_what_follows(ids: dict[str, int], text: str, after: str) -> None:
    ids = {token: number for token, number in ids.items() if len(token) > 1}
    tokens = SpecialTokens(ids)
    safe = tokens.broken(text, "#")
    assert safe.replace("#", "") == text
    assert (safe == text) == (
        not any(token in text for token in ids)
        and not any(token.startswith(text[start:]) for token in ids for start in range(len(text)))
    )
    assert all(
        start >= len(safe) for token in ids for start in range(len(safe)) if (safe + after).startswith(token, start)
    )


def test_names_are_broken_at_punctuation() -> None:
    tokens = SpecialTokens({"<|end|>": 0, "</s>": 1})
    assert tokens.broken("get_it-now.v2", "#", is_name=True) == "get_it-now.v2"
    assert tokens.broken("|end|", "#", is_name=True) == "|#end|#"
    assert tokens.broken("/s", "#", is_name=True) == "/#s"


@pytest.mark.parametrize("size", range(1, 9))
def test_windows_have_no_seams(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(special, "WINDOW", size)
    ids = {"<a>": 0, "<a><b>": 1, "b": 2}
    text = "x<a><a><b>yyb<<a>zzzzzzz<a"
    assert list(SpecialTokens(ids).split(text)) == plainly(ids, text)


class _Counted(dict[tuple[int, str], int]):
    """The edges of an automaton; counts how often one is looked up."""

    looked_up = 0

    def get(self, key: tuple[int, str], default: int | None = None) -> int | None:  # type: ignore[override]
        self.looked_up += 1
        return super().get(key, default)


@pytest.mark.parametrize(
    "ids",
    [
        {"a" * length + "b": length for length in range(1, 1001)},
        {"a" * length: length for length in range(2, 1001)},
        {"a" + chr(0x4E00 + number): number for number in range(1000)} | {"aaaaaaaab": 1001},
    ],
)
def test_work_does_not_grow_with_the_tokens(ids: dict[str, int]) -> None:
    """Of a thousand lengths each was tried at each place."""
    tokens, text = SpecialTokens(ids), "a" * 20_000
    counted = tokens._automaton._next = _Counted(tokens._automaton._next)
    found = sum(segment.token is not None for segment in tokens.split(text))
    assert found == (20 if 1000 in ids.values() and "aa" in ids else 0)
    assert counted.looked_up <= 2 * len(text) + 2
    assert tokens._first.pattern.count("|") < special.MAX_FIRSTS
