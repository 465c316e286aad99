"""Twofold's own fields in APIs of other providers: speculation and compression."""

from __future__ import annotations

from typing import Any

import pytest

from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import DialectRequest, ModelFacts
from twofold.api.fields import FieldError
from twofold.api.ollama.requests import OllamaChatRequest, OllamaEmbedRequest, OllamaGenerateRequest
from twofold.text.parsers.format import CompletionFormat
from twofold.text.tokenizers.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def chat_model(tokenizer: Tokenizer) -> ModelFacts:
    return ModelFacts(tokenizer, CompletionFormat.of(tokenizer), 128, 8)


TURNS = [("user", "One. Two. Three."), ("assistant", "Four."), ("user", "Hi")]
HELLO = {"model": "m", "messages": [{"role": role, "content": text} for role, text in TURNS]}
CHATS = [(MessagesRequest, {**HELLO, "max_tokens": 4}), (OllamaChatRequest, HELLO)]
TEXTS = [*CHATS, (OllamaGenerateRequest, {"model": "m", "prompt": "Hi", "raw": True})]


@pytest.mark.parametrize(("kind", "body"), TEXTS)
def test_speculation_reaches_the_engine(kind: Any, body: dict[str, Any], chat_model: ModelFacts) -> None:
    for given, expected in (({}, True), ({"twofold": {"speculation": False}}, False)):
        request: DialectRequest = kind.read({**body, **given})
        (job,) = request.prepare(chat_model)
        assert job.options.speculation is expected


@pytest.mark.parametrize(("kind", "body"), CHATS)
def test_chats_ask_for_compression(kind: Any, body: dict[str, Any]) -> None:
    assert kind.read(body).scoring() is None
    scoring = kind.read({**body, "twofold": {"compress": {"roles": ["user"], "model": "small"}}}).scoring()
    assert scoring.model == "small"
    assert scoring.places == [(0, None)]
    with pytest.raises(FieldError, match="keep"):
        kind.read({**body, "twofold": {"compress": {"roles": ["user"], "keep": 0}}})


def test_prompts_and_embeddings_have_no_such_fields() -> None:
    for kind, field in ((OllamaGenerateRequest, "compress"), (OllamaEmbedRequest, "speculation")):
        with pytest.raises(FieldError, match="not a known field"):
            kind.read({"model": "m", "prompt": "a", "input": "a", "twofold": {field: False}})
