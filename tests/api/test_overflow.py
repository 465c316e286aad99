"""A prompt that does not fit: each API says so in its own words, by which clients recognise it and shorten their
conversation or ask another model."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from tests.api.completions import data_of
from twofold.api.anthropic.errors import AnthropicDialect
from twofold.api.ollama.replies import OllamaDialect
from twofold.api.openai.errors import OpenAIDialect, error_reply
from twofold.core.errors import ContextLengthError, TwofoldError
from twofold.core.step_bytes import from_plain, to_plain
from twofold.server.routes import dialect_of
from twofold.text.prompt_limit import PromptLimit

LOOKED_FOR: Final = {
    "/v1/chat/completions": (
        r"^This model's maximum context length is 8192 tokens\. However, your messages resulted in 9031 tokens\. ",
        r"(?i)reduce the length of the messages",
        r"context_length_exceeded",
    ),
    "/v1/completions": (
        r"^This model's maximum context length is 8192 tokens\. However, your prompt resulted in 9031 tokens\. ",
    ),
    "/v1/responses": (
        r"exceeds the context window",
        r"context_length_exceeded",
        r"This model's maximum context length is 8192 tokens\. However, your input resulted in 9031 tokens\. ",
    ),
    "/v1/embeddings": (r"This model's maximum context length is 8192 tokens",),
    "/v1/messages": (r"^prompt is too long: 9031 tokens > 8192 maximum",),
    "/v1/messages/count_tokens": (r"^prompt is too long: (\d+) tokens > (\d+) maximum",),
    "/api/chat": (
        r"^prompt too long; exceeded max context length: ",
        r"This model's maximum context length is 8192 tokens",
    ),
}
"""What clients look for: LiteLLM ("this model's maximum context length is", "prompt is too long"), pydantic-ai
("maximum context length"), LangChain (the code, in the message), opencode and pi (all of these), Claude Code (the
sentence of Anthropic with its numbers)."""


def overflow(tokens: int = 9031, context: int = 8192, **fields: Any) -> ContextLengthError:
    with pytest.raises(ContextLengthError) as caught:
        PromptLimit(context, **fields).check(tokens)
    return caught.value


def message(path: str, error: TwofoldError) -> str:
    reply = data_of(dialect_of(path).error(error, "req_1"))["error"]
    return reply if isinstance(reply, str) else reply["message"]


@pytest.mark.parametrize("path", LOOKED_FOR)
def test_each_api_says_it_in_its_own_words(path: str) -> None:
    for pattern in LOOKED_FOR[path]:
        assert re.search(pattern, message(path, overflow()))
    assert "--max-model-len" in message(path, overflow()), "the way out"


def test_a_lower_bound_is_called_one() -> None:
    with pytest.raises(ContextLengthError) as caught:
        PromptLimit(8192).check(12000, at_least=True)
    for path in ("/v1/chat/completions", "/v1/responses", "/api/chat"):
        assert "resulted in at least 12000 tokens. " in message(path, caught.value)
    assert message("/v1/messages", caught.value).startswith("prompt is too long: 12000 tokens > 8192 maximum")


def test_the_code_is_openais() -> None:
    assert data_of(OpenAIDialect().error(overflow(), "r"))["error"]["code"] == "context_length_exceeded"
    assert data_of(error_reply(overflow()))["error"]["message"].startswith(
        "This model's maximum context length is 8192"
    )


def test_a_prompt_that_leaves_no_room_for_an_output_token() -> None:
    """The numbers never contradict each other."""
    error = overflow(8192)
    assert "you requested 8193 tokens (8192 in the messages, 1 in the completion)" in message("/v1/chat/x", error)
    assert message("/v1/messages", error).startswith("prompt is too long: 8192 tokens > 8191 maximum")


def test_a_cache_that_is_too_small_for_prompt_and_completion() -> None:
    error = ContextLengthError.of_cache(100, 160, 128)
    assert "you requested 160 tokens (100 in the messages, 60 in the completion)" in message("/v1/chat/x", error)
    assert "exceed context limit: 100 + 60 > 128" in message("/v1/messages", error)


def test_other_texts_are_called_what_they_are() -> None:
    assert "your prediction resulted in" in message("/v1/chat/x", overflow(reserved=0, text="prediction"))
    assert "raise options.num_ctx" in message("/api/chat", overflow(remedy="raise options.num_ctx"))
    embedded = overflow(reserved=0, text="input", remedy="set truncate")
    assert message("/api/embed", embedded).startswith("the input length exceeds the context length")


def test_an_error_without_numbers_is_shown_as_it_is() -> None:
    for dialect in (OpenAIDialect(), AnthropicDialect(), OllamaDialect()):
        reply: Any = data_of(dialect.error(ContextLengthError("It is too long."), "r"))["error"]
        assert (reply if isinstance(reply, str) else reply["message"]) == "It is too long."


def test_the_numbers_come_over_from_another_process() -> None:
    error = overflow()
    assert vars(from_plain(TwofoldError, to_plain(error))) == vars(error)
