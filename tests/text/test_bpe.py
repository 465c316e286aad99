"""Both kinds of BPE against the plainest implementation, on random vocabularies."""

from __future__ import annotations

import time
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.vocabulary import tokenizer_of
from tests.text.vocabularies import (
    Metadata,
    bytelevel_metadata,
    naive_ranked,
    naive_scored,
    plain_ids,
    sentencepiece_metadata,
)
from twofold.text.tokenizers import bytelevel
from twofold.text.tokenizers import merges as merge_rules
from twofold.text.tokenizers.merges import cached_merges, derive_merges
from twofold.text.tokenizers.metadata import TokenType, read_gguf_vocabulary

LETTERS = "abc"


def sealed(body: bytes) -> bytes:
    """A cache file with a valid digest, whatever is in it."""
    return sha256(body).digest() + body


WORDS = st.text(LETTERS, min_size=1, max_size=6)


@st.composite
def merge_lists(draw: st.DrawFn) -> list[tuple[str, str]]:
    """Merges whose parts are letters or earlier results."""
    known = list(LETTERS)
    merges: list[tuple[str, str]] = []
    for _ in range(draw(st.integers(0, 12))):
        pair = (draw(st.sampled_from(known)), draw(st.sampled_from(known)))
        if pair not in merges:
            merges.append(pair)
            known.append("".join(pair))
    return merges


@settings(max_examples=100, deadline=None)
@given(merge_lists(), st.text(LETTERS, max_size=30))
def test_byte_level_merges_by_rank(merges: list[tuple[str, str]], word: str) -> None:
    tokenizer = tokenizer_of(bytelevel_metadata(merges))
    assert [tokenizer.token_text(token) for token in plain_ids(tokenizer, word)] == naive_ranked(word, merges)


@settings(max_examples=300, deadline=None)
@given(st.lists(WORDS, unique=True, max_size=25), st.text(LETTERS, max_size=30))
@example(["aa", "aaa"], "aaaaa")
@example(["aaa", "aa"], "aaaa")
@example(["bcb", "ab", "cb", "abcb"], "abcb")
def test_sentencepiece_merges_by_score(words: list[str], text: str) -> None:
    pieces = list(dict.fromkeys([*words, *LETTERS]))
    tokenizer = tokenizer_of(sentencepiece_metadata(pieces))
    assert [tokenizer.token_text(token) for token in plain_ids(tokenizer, text)] == naive_scored(text, pieces)


def test_only_the_last_merge_of_a_piece_is_kept() -> None:
    pieces = ["ab", "bc", "abc", "a", "b", "c"]
    assert derive_merges(pieces).tolist() == [[3, 4], [4, 5], [0, 5]]


def test_pieces_that_rank_before_their_parts() -> None:
    """Going back through the merges of such a piece by rank alone went in circles."""
    pieces = "ccaccc acc ccbaa b ca acacb abbba bba abbc aaba aba cba cb c baba aac ab aa ccbc bab cccbba a ccb cabcac"
    assert len(derive_merges(pieces.split())) > 0


@pytest.mark.parametrize("order", [1, -1], ids=["shortest first", "longest first"])
def test_rules_take_time_by_the_size_of_the_vocabulary(order: int) -> None:
    """Pieces that can be cut everywhere: sixteen times the characters must not take the square of that."""

    def seconds(longest: int) -> float:
        pieces = ["a" * length for length in range(1, longest)][::order]
        start = time.process_time()
        assert len(derive_merges(pieces)) >= longest - 2
        return time.process_time() - start

    assert seconds(600) < 16 * 6 * seconds(150) + 1


def test_no_pieces_no_merges() -> None:
    assert derive_merges([]).shape == (0, 2)


def test_pieces_beyond_the_basic_plane() -> None:
    pieces = ["😀😃", "😀", "😃", "é", "🇩🇪", "🇩", "🇪"]
    tokenizer = tokenizer_of(sentencepiece_metadata(pieces))
    texts = [tokenizer.token_text(token) for token in plain_ids(tokenizer, "😀😃🇩🇪é")]
    assert texts == ["😀😃", "🇩🇪", "é"]


@pytest.fixture
def spoken() -> Metadata:
    return sentencepiece_metadata(["▁he", "▁h", "llo", "he", "ll", "▁", "h", "e", "l", "o"], space_prefix=True)


def test_space_prefix(spoken: Metadata) -> None:
    tokenizer = tokenizer_of(spoken)
    assert [tokenizer.token_text(token) for token in plain_ids(tokenizer, "hello hello")] == [
        "▁he",
        "llo",
        "▁he",
        "llo",
    ]
    assert tokenizer.decode(plain_ids(tokenizer, "hello hello")) == "hello hello"
    assert tokenizer.decode(plain_ids(tokenizer, "hello"), continuation=True) == " hello"


def test_unknown_characters_become_bytes(spoken: Metadata) -> None:
    tokenizer = tokenizer_of(spoken)
    assert [tokenizer.token_text(token) for token in plain_ids(tokenizer, "é")] == ["▁", "<0xC3>", "<0xA9>"]
    assert tokenizer.decode(plain_ids(tokenizer, "é")) == "é"


def test_unknown_token_where_there_are_no_bytes() -> None:
    tokenizer = tokenizer_of(sentencepiece_metadata(["a"], bytes_too=False))
    assert plain_ids(tokenizer, "aéa") == [4, 0, 4]


def test_text_that_names_a_byte_is_text(spoken: Metadata) -> None:
    tokenizer = tokenizer_of(spoken)
    text = "<0x0A>"
    ids = plain_ids(tokenizer, text)
    assert len(ids) == 1 + len(text)
    assert tokenizer.decode(ids) == text


def test_user_defined_runs_stay_whole_in_any_text() -> None:
    metadata = sentencepiece_metadata(["▁a", "▁", "a"], defined=["▁▁", "\n\n"])
    tokenizer = tokenizer_of(metadata)
    for parse in (True, False):
        ids = tokenizer.encode("  a\n\n a", add_special_tokens=False, parse_special=parse)
        assert [tokenizer.token_text(token) for token in ids] == ["▁▁", "a", "\n\n", "▁a"]
        assert tokenizer.decode(ids) == "  a\n\n a"


class TestMergeCache:
    pieces = ("abc", "ab", "bc", "a", "b", "c")

    def test_second_start_reads_what_the_first_left(self, tmp_path: Path) -> None:
        first = cached_merges(self.pieces, tmp_path / "made")
        (file,) = (tmp_path / "made").iterdir()
        stamp = file.stat().st_mtime_ns
        assert np.array_equal(cached_merges(self.pieces, tmp_path / "made"), first)
        assert file.stat().st_mtime_ns == stamp

    @pytest.mark.parametrize("damage", [b"", b"x" * 40, b"\0" * 33, sealed(b"1234"), sealed(b"\xff" * 8)])
    def test_damaged_file_is_made_anew(self, tmp_path: Path, damage: bytes) -> None:
        first = cached_merges(self.pieces, tmp_path)
        (file,) = tmp_path.iterdir()
        good = file.read_bytes()
        file.write_bytes(damage)
        assert np.array_equal(cached_merges(self.pieces, tmp_path), first)
        assert file.read_bytes() == good

    def test_other_pieces_have_another_file(self, tmp_path: Path) -> None:
        cached_merges(["ab", "a", "b"], tmp_path)
        cached_merges(["a", "ba", "b"], tmp_path)
        assert len(list(tmp_path.iterdir())) == 2

    def test_no_folder_to_write_is_no_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        assert np.array_equal(cached_merges(self.pieces, tmp_path / "file"), derive_merges(self.pieces))


def test_merges_of_control_tokens_take_work_in_proportion_to_the_merges() -> None:
    """One control token among the merges must not make a new set for each of them: that took 50 times the processor
    time of the twin without it."""
    seconds = []
    characters = list(bytelevel.character_bytes())
    pairs = [(left, right) for left in characters for right in characters][:5000]
    texts = [*characters, *(left + right for left, right in pairs)]
    for last in (TokenType.NORMAL, TokenType.CONTROL):
        vocabulary = read_gguf_vocabulary(
            {
                "tokenizer.ggml.model": "gpt2",
                "tokenizer.ggml.pre": "gpt-2",
                "tokenizer.ggml.tokens": texts,
                "tokenizer.ggml.token_type": [int(TokenType.NORMAL)] * (len(texts) - 1) + [int(last)],
                "tokenizer.ggml.merges": [" ".join(pair) for pair in pairs],
            }
        )
        began = time.thread_time()
        encoder = bytelevel.build_encoder(vocabulary)
        seconds.append(time.thread_time() - began)
        assert (encoder.token_to_id(texts[-1]) is None) == (last is TokenType.CONTROL)
    assert seconds[1] < 10 * seconds[0]


def test_the_search_for_last_merges_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces of one letter can be cut everywhere, so a long one has as many cuts as letters."""
    searched: list[int] = []
    stays = merge_rules._History._stays

    def counted(history: Any, left: int, right: int, limit: int) -> bool:
        searched.append(limit)
        return stays(history, left, right, limit)

    monkeypatch.setattr(merge_rules._History, "_stays", counted)
    monkeypatch.setattr(merge_rules, "MAX_CUTS", 16)
    pieces = ["a" * length for length in range(1, 101)]
    rules = derive_merges(pieces)
    assert len(searched) <= 16 * 16 / 2
    assert rules.tolist()[:2] == [[0, 0], [1, 0]]
