"""What a tokenizer does around its words: special tokens, BOS and EOS, bytes, and metadata that is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.vocabulary import tokenizer_of
from tests.text.vocabularies import Metadata, bytelevel_metadata, plain_ids, sentencepiece_metadata
from twofold.core.errors import FormatError, ParameterError, UnsupportedModelError
from twofold.core.tensors import ModelSource
from twofold.text.tokenizers.bytelevel import RULES, pre_tokenizer, word_rule
from twofold.text.tokenizers.metadata import PREFIX, read_vocabulary
from twofold.text.tokenizers.tokenizer import Tokenizer


def made(**changes: object) -> Tokenizer:
    return tokenizer_of(bytelevel_metadata() | {PREFIX + key: value for key, value in changes.items()})


END = 256
"""Id of the control token in ``bytelevel_metadata``: it follows the bytes."""


class TestSpecialTokens:
    def test_control_token_in_trusted_and_untrusted_text(self) -> None:
        tokenizer = made()
        assert plain_ids(tokenizer, "a<|end|>") == [*plain_ids(tokenizer, "a"), END]
        assert len(tokenizer.encode("<|end|>", add_special_tokens=False, parse_special=False)) == len("<|end|>")

    def test_longest_wins(self) -> None:
        tokenizer = tokenizer_of(bytelevel_metadata(control=["<a>", "<a><b>", "<b>"]))
        assert plain_ids(tokenizer, "<a><b><a><a>") == [257, 256, 256]

    def test_a_control_token_that_is_a_word_never_comes_from_text(self) -> None:
        merges = [("E", "O"), ("EO", "T")]
        metadata = bytelevel_metadata(merges, pre="llama-bpe")
        types = metadata[PREFIX + "token_type"]
        assert isinstance(types, list)
        types[257] = 3
        tokenizer = tokenizer_of(metadata)
        assert tokenizer.encode("EOT", parse_special=False) == [256, *plain_ids(tokenizer, "T")]

    def test_skipped_when_decoding(self) -> None:
        tokenizer = made()
        ids = plain_ids(tokenizer, "a<|end|>b")
        assert tokenizer.decode(ids) == "ab"
        assert tokenizer.decode(ids, skip_special_tokens=False) == "a<|end|>b"

    def test_user_defined_tokens_are_text(self) -> None:
        tokenizer = tokenizer_of(bytelevel_metadata(defined=["<tool>", "é→"]))
        ids = tokenizer.encode("x<tool>é→", parse_special=False)
        assert ids[1:] == [257, 258]
        assert tokenizer.decode(ids) == "x<tool>é→"

    def test_phi3_control_tokens_take_following_space(self) -> None:
        metadata = sentencepiece_metadata(["a", "▁"], control=["<|user|>"], space_prefix=False)
        phi3 = tokenizer_of(metadata | {"general.architecture": "phi3"})
        other = tokenizer_of(metadata)
        assert phi3.decode(plain_ids(phi3, "<|user|> \n a <s> a")) == "a  a"
        assert other.decode(plain_ids(other, "<|user|> a")) == " a"


class TestBeginAndEnd:
    def test_as_the_file_says(self) -> None:
        tokenizer = made(bos_token_id=0, add_bos_token=True, add_eos_token=True)
        assert tokenizer.encode("") == [0, END]
        assert tokenizer.encode("", add_special_tokens=False) == []

    @pytest.mark.parametrize(("pre", "adds"), [("gpt2", False), ("llama-bpe", True), ("tekken", True)])
    def test_default_of_the_family(self, pre: str, adds: bool) -> None:
        assert made(pre=pre, bos_token_id=0).add_bos is adds

    def test_sentencepiece_starts_with_bos(self) -> None:
        assert tokenizer_of(sentencepiece_metadata(["a"])).encode("") == [1]

    def test_ends_of_generation(self) -> None:
        metadata = bytelevel_metadata(control=["<|x|>", "<|im_end|>", "<|eot_id|>", "<|y|>"])
        tokenizer = tokenizer_of(metadata | {PREFIX + "eom_token_id": 259})
        assert tokenizer.eos_ids == {256, 257, 258, 259}

    def test_end_of_a_harmony_message_is_not_the_end(self) -> None:
        tokenizer = tokenizer_of(bytelevel_metadata(control=["<|return|>", "<|call|>", "<|end|>"]))
        assert tokenizer.eos_ids == {256, 257}


class TestBytes:
    @settings(max_examples=60, deadline=None)
    @given(st.text(max_size=40))
    def test_bytes_of_the_ids_are_the_text(self, text: str) -> None:
        tokenizer = made()
        assert b"".join(map(tokenizer.token_bytes, plain_ids(tokenizer, text))) == text.encode()

    def test_every_byte_of_both_kinds(self) -> None:
        plain = made()
        assert sorted(plain.token_bytes(token) for token in range(256)) == [bytes([byte]) for byte in range(256)]
        piece = tokenizer_of(sentencepiece_metadata(["▁a"]))
        assert [piece.token_bytes(3 + byte) for byte in range(256)] == [bytes([byte]) for byte in range(256)]
        assert piece.token_bytes(piece.vocab_size - 1) == b" a"

    @pytest.mark.parametrize("token", [-1, 257])
    def test_id_outside(self, token: int) -> None:
        with pytest.raises(ParameterError, match=r"outside of the vocabulary of 257"):
            made().token_bytes(token)

    def test_lone_surrogate(self) -> None:
        with pytest.raises(ParameterError, match="surrogate"):
            made().encode("a\ud800")


class TestWords:
    @pytest.mark.parametrize("pre", sorted(RULES))
    def test_every_rule_keeps_every_byte(self, pre: str) -> None:
        tokenizer = made(pre=pre)
        text = "Hello  wörld, it's 12345!\r\n\n\t你好 (x+y) <|x|> 👩‍🚀 ΑΒΓ İstanbul  "
        assert tokenizer.decode(plain_ids(tokenizer, text)) == text

    @pytest.mark.parametrize(
        ("pre", "text", "words"),
        [
            ("gpt2", "it's 123  x", ["it", "'s", "Ġ123", "Ġ", "Ġx"]),
            ("smollm", "it's 123", ["it", "'s", "Ġ", "1", "2", "3"]),
            ("llama-bpe", "IT'S 12345(x\n\n", ["IT", "'S", "Ġ", "123", "45", "(x", "ĊĊ"]),
            ("qwen2", "12 x.\n\ny", ["1", "2", "Ġx", ".ĊĊ", "y"]),
            ("tekken", "helloWorld 12", ["hello", "World", "Ġ", "1", "2"]),
            ("gpt-4o", "helloWorld's 1234", ["hello", "World's", "Ġ", "123", "4"]),
            ("deepseek-coder", "a\n\nb12", ["a", "Ċ", "Ċ", "b", "1", "2"]),
            ("deepseek-v3", "a1234 b.c", ["a", "123", "4", "Ġb", ".c"]),
            ("default", "a1234, b", ["a", "123", "4", ",", "Ġb"]),
        ],
    )
    def test_cuts(self, pre: str, text: str, words: list[str]) -> None:
        found = pre_tokenizer(word_rule(pre)).pre_tokenize_str(text)
        assert [word for word, _ in found] == words

    def test_unknown_rule_names_the_nearest(self) -> None:
        with pytest.raises(UnsupportedModelError, match="'qwen3' is not known; the nearest known name is 'qwen2'"):
            made(pre="qwen3")


def without(key: str) -> Metadata:
    metadata = bytelevel_metadata()
    del metadata[PREFIX + key]
    return metadata


class TestUnusualMetadata:
    @pytest.mark.parametrize("key", ["bos", "eos", "eot", "eom", "unknown", "padding"])
    @pytest.mark.parametrize("none", [-1, 2**32 - 1, np.uint32(2**32 - 1)])
    def test_ids_that_mean_no_token(self, key: str, none: object) -> None:
        metadata = bytelevel_metadata() | {f"{PREFIX}{key}_token_id": none}
        assert getattr(read_vocabulary(ModelSource("gguf", metadata)), f"{key}_id") is None
        tokenizer_of(metadata)

    def test_equal_texts(self) -> None:
        """A text becomes the last of their ids; each id stands for its text."""
        metadata = bytelevel_metadata([("a", "b")], control=["<|end|>", "<|end|>"])
        given: Any = metadata
        tokens, types = [*given[PREFIX + "tokens"], "ab"], [*given[PREFIX + "token_type"], 1]
        tokenizer = tokenizer_of(metadata | {PREFIX + "tokens": tokens, PREFIX + "token_type": types})
        last = len(tokens) - 1
        assert plain_ids(tokenizer, "ab<|end|>") == [last, last - 1]
        assert tokenizer.decode([tokens.index("ab"), last, last - 2], skip_special_tokens=False) == "abab<|end|>"
        assert {last - 1, last - 2} <= tokenizer.special_ids & tokenizer.eos_ids

    @pytest.mark.parametrize("cached", [True, False])
    def test_equal_pieces(self, tmp_path: Path, cached: bool) -> None:
        pieces = ["a", "b", "ab", "ab", "c", "abc"]
        tokenizer = tokenizer_of(sentencepiece_metadata(pieces), cache_dir=tmp_path if cached else None)
        single = tokenizer_of(sentencepiece_metadata([*dict.fromkeys(pieces)]))
        for text in ("ab", "abc", "abab", "cab"):
            assert [tokenizer.token_text(token) for token in plain_ids(tokenizer, text)] == [
                single.token_text(token) for token in plain_ids(single, text)
            ]

    def test_a_missing_rule_for_words_is_warned_of(self, caplog: pytest.LogCaptureFixture) -> None:
        metadata = without("pre")
        assert plain_ids(tokenizer_of(metadata), "a1")
        assert f"{PREFIX}pre" in caplog.text
        caplog.clear()
        made()
        tokenizer_of(sentencepiece_metadata(["a"]))
        assert not caplog.text


class TestBadMetadata:
    @pytest.mark.parametrize("key", ["model", "tokens", "merges"])
    def test_missing(self, key: str) -> None:
        with pytest.raises(FormatError, match=f"{PREFIX}{key}' is missing"):
            tokenizer_of(without(key))

    @pytest.mark.parametrize(
        ("key", "value", "fault"),
        [
            ("tokens", [], "is empty"),
            ("tokens", "abc", "not an array"),
            ("tokens", ["a", 1], "type int"),
            ("tokens", [b"\xff"], "UTF-8"),
            ("token_type", [1, 2], "2 entries for 257"),
            ("token_type", [9] * 257, "not token types"),
            ("token_type", ["x"] * 257, "not token types"),
            ("token_type", [[1], [2, 3]] * 128 + [[1]], "not an array of numbers"),
            ("merges", ["ab"], "'ab' at 0"),
            ("merges", ["a b c"], "joins no two tokens"),
            ("merges", ["a b"], "joins no two tokens"),
            ("merges", [" "], "joins no two tokens"),
            ("merges", 5, "not an array"),
            ("bos_token_id", 257, "is 257, but there are 257"),
            ("bos_token_id", -2, "is -2"),
            ("eos_token_id", "x", "not an integer"),
            ("eos_token_id", True, "not an integer"),
            ("add_bos_token", 1, "not a boolean"),
            ("add_bos_token", True, "bos_token_id' is missing"),
            ("model", 7, "type int"),
            ("pre", b"\xff", "UTF-8"),
        ],
    )
    def test_impossible(self, key: str, value: object, fault: str) -> None:
        with pytest.raises(FormatError, match=fault) as caught:
            made(**{key: value})
        assert f"{PREFIX}{key}" in str(caught.value)

    @pytest.mark.parametrize(
        ("key", "value", "fault"),
        [
            ("scores", [0.0], "1 entries"),
            ("scores", None, "is missing"),
            ("scores", [float("nan")] * 261, "not numbers"),
            ("tokens", ["x"] + [f"t{index}" for index in range(260)], "names no byte"),
        ],
    )
    def test_impossible_for_sentencepiece(self, key: str, value: object, fault: str) -> None:
        metadata = sentencepiece_metadata(["a"]) | {PREFIX + key: value}
        with pytest.raises(FormatError, match=fault):
            tokenizer_of(metadata)

    def test_kind_that_is_not_implemented(self) -> None:
        with pytest.raises(UnsupportedModelError, match="'bert' is not implemented"):
            made(model="bert")

    @pytest.mark.parametrize(("key", "value"), [("new_thing", 1), ("add_sep_token", True), ("suppress_tokens", [3])])
    def test_key_that_would_change_the_result(self, key: str, value: object) -> None:
        with pytest.raises(UnsupportedModelError, match=key):
            made(**{key: value})

    @pytest.mark.parametrize(
        ("key", "value"), [("mask_token_id", 3), ("add_sep_token", False), ("precompiled_charsmap", [])]
    )
    def test_harmless_key(self, key: str, value: object) -> None:
        assert made(**{key: value}).vocab_size == 257

    def test_empty_tokens_are_placeholders(self) -> None:
        metadata = bytelevel_metadata(control=["", "xx"])
        assert tokenizer_of(metadata).token_text(256) == "[EMPTY_256]"

    def test_arrays_of_numpy(self) -> None:
        metadata = bytelevel_metadata()
        metadata[PREFIX + "token_type"] = np.array(metadata[PREFIX + "token_type"], np.int32)
        assert tokenizer_of(metadata).special_ids == {END}
