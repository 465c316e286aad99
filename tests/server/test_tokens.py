"""Bodies of /tokenize: what the tokenizer adds to a text and to a rendered chat."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from twofold.api.base import ModelFacts
from twofold.server.http.tokens import read_tokenize
from twofold.text.parsers.format import CompletionFormat

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "add_generation_prompt": True}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.fixture(scope="module")
def facts() -> ModelFacts:
    """A tokenizer that puts BOS before texts, which its template leaves out."""
    metadata = {**tokenizer_metadata(300), "tokenizer.ggml.add_bos_token": True, "tokenizer.chat_template": TEMPLATE}
    tokenizer = tokenizer_of(metadata)
    return ModelFacts(tokenizer, CompletionFormat.of(tokenizer), context=4096, hidden_size=8)


def ids(facts: ModelFacts, **body: Any) -> list[int]:
    return read_tokenize(body).ids(facts)


def test_special_tokens_are_added_to_texts_unless_refused_and_to_chats_if_wanted(facts: ModelFacts) -> None:
    bare = ids(facts, prompt="hi", add_special_tokens=False)
    with_bos = ids(facts, prompt="hi")
    assert (with_bos[0], with_bos[1:]) == (facts.tokenizer.bos_id, bare)
    assert ids(facts, prompt="hi", add_special_tokens=True) == with_bos
    assert ids(facts, **CHAT) == ids(facts, **CHAT, add_special_tokens=False) == bare
    assert ids(facts, **CHAT, add_special_tokens=True) == with_bos
