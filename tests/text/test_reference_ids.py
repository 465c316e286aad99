"""Ids of real vocabularies against llama.cpp's, on a varied corpus, and against texts tokenised elsewhere."""

from __future__ import annotations

import json
import os
import unicodedata
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.vocabulary import tokenizer_of
from tests.text.vocabularies import plain_ids
from twofold.formats.gguf import GGUFFile
from twofold.text.tokenizers.tokenizer import Tokenizer

REFERENCE = Path(__file__).parent / "data" / "reference_ids.json"


@cache
def load(path: Path) -> Tokenizer:
    with GGUFFile.open(path) as file:
        return tokenizer_of(dict(file.metadata.items()))


@pytest.fixture(scope="module")
def smollm2(default_model: Path) -> Tokenizer:
    return load(default_model)


def other(name: str) -> Tokenizer:
    folder = os.environ.get("TWOFOLD_TEST_MODELS")
    if not folder or not (Path(folder) / f"{name}.gguf").exists():
        pytest.skip(f"TWOFOLD_TEST_MODELS names no folder with {name}.gguf, whose vocabulary is too large to commit")
    return load(Path(folder) / f"{name}.gguf")


def check(tokenizer: Tokenizer, name: str, *, nfc: bool) -> None:
    """Equal ids for every text; where the family normalises and llama.cpp does not, for every normalised text."""
    reference: dict[str, Any] = json.loads(REFERENCE.read_text())
    plain = reference["plain"][name]
    compared = 0
    for index, (text, ids) in enumerate(zip(reference["texts"], reference["ids"][name], strict=True)):
        if nfc and not unicodedata.is_normalized("NFC", text):
            continue
        compared += 1
        assert plain_ids(tokenizer, text) == ids, text
        unparsed = tokenizer.encode(text, add_special_tokens=False, parse_special=False)
        assert unparsed == plain.get(str(index), ids), text
        if "▁" not in text:
            assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert compared >= 240


@pytest.mark.model
def test_smollm2(smollm2: Tokenizer) -> None:
    check(smollm2, "smollm2", nfc=False)


@pytest.mark.model
def test_gemma3() -> None:
    check(other("gemma3"), "gemma3", nfc=False)


@pytest.mark.model
def test_qwen() -> None:
    check(other("qwen"), "qwen", nfc=True)


@pytest.mark.model
def test_qwen_normalises_as_its_own_tokenizer_does() -> None:
    tokenizer = other("qwen")
    assert plain_ids(tokenizer, "e\u0301") == plain_ids(tokenizer, "é")


@pytest.mark.model
def test_every_control_token_is_one_id_or_plain_text(smollm2: Tokenizer) -> None:
    for token in smollm2.special_ids:
        text = smollm2.token_text(token)
        assert plain_ids(smollm2, f"a{text}b")[1:-1] == [token]
        literal = smollm2.encode(text, add_special_tokens=False, parse_special=False)
        assert token not in literal
        assert smollm2.decode(literal) == text


ENGLISH = st.text(st.characters(max_codepoint=0x24F, exclude_categories=("Cc", "Cs")), max_size=80)


@pytest.mark.model
@settings(max_examples=100, deadline=None)
@given(text=ENGLISH)
def test_decoding_gives_the_text_back(default_model: Path, text: str) -> None:
    tokenizer = load(default_model)
    assert tokenizer.decode(plain_ids(tokenizer, text), skip_special_tokens=False) == text


@pytest.mark.model
def test_special_ids_of_the_default_model(smollm2: Tokenizer) -> None:
    assert (smollm2.bos_id, smollm2.eos_id) == (1, 2)
    assert smollm2.eos_ids == {0, 2}
    assert not smollm2.add_bos
    assert smollm2.vocab_size == 49152


def check_rows(tokenizer: Tokenizer, path: Path) -> None:
    """Ids made by transformers from English and code: their text encodes to the same ids."""
    with np.load(path) as data:
        rows: list[list[int]] = data["token_ids"].tolist()
    for row in rows:
        ids = [token for token in row if token not in tokenizer.special_ids]
        assert len(ids) >= 511
        assert plain_ids(tokenizer, tokenizer.decode(row)) == ids


@pytest.mark.data
@pytest.mark.model
def test_smollm2_rows_encode_to_themselves(smollm2: Tokenizer, test_data: Path) -> None:
    check_rows(smollm2, test_data / "reference" / "smollm2-135m-q4_1.npz")


@pytest.mark.data
@pytest.mark.model
def test_gemma3_rows_encode_to_themselves(test_data: Path) -> None:
    check_rows(other("gemma3"), test_data / "reference" / "gemma3-270m-q4_k_m.npz")
