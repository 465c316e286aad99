"""OpenAI's response bodies, held against what the engine gave."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import pytest

from tests.engine.conftest import MakeLLM
from twofold.core.errors import ContextLengthError, ModelNotFoundError, ParameterError, ResourceError, TwofoldError
from twofold.engine.offline.bodies import OpenAIRequest, PoolingParams
from twofold.engine.offline.embeddings import EmbeddingRequest
from twofold.engine.offline.fields import FieldError
from twofold.engine.offline.openai import ChatRequest, CompletionRequest
from twofold.engine.offline.replies import ReplyHead, error_reply
from twofold.engine.outputs import RequestOutput

HEAD = ReplyHead("x", 1_700_000_000, "mock")
MESSAGES = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0, "ignore_eos": True}


def answered(make_llm: MakeLLM, request: OpenAIRequest) -> tuple[dict[str, Any], list[RequestOutput]]:
    """The body as JSON brings it over, and what it was made of."""
    llm = make_llm()
    tokenizer = llm.get_tokenizer()
    prompts = request.prompts(tokenizer)
    given: list[Any] = [p.text if p.token_ids is None else {"prompt_token_ids": p.token_ids} for p in prompts]
    if isinstance(request.params, PoolingParams):
        outputs = llm.embed(given, pooling=request.params.pooling)
    else:
        outputs = llm.generate(given, request.params)
    body: dict[str, Any] = json.loads(json.dumps(request.reply(HEAD, outputs, tokenizer)))
    return body, outputs


def test_a_chat(make_llm: MakeLLM) -> None:
    body, (output,) = answered(make_llm, ChatRequest.read({"messages": MESSAGES, "max_tokens": 4, **GREEDY}))
    tokens = len(output.prompt_token_ids)
    assert body == {
        "id": "chatcmpl-x",
        "object": "chat.completion",
        "created": 1_700_000_000,
        "model": "mock",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": output.outputs[0].text, "refusal": None},
                "logprobs": None,
                "finish_reason": "length",
            }
        ],
        "usage": {
            "prompt_tokens": tokens,
            "completion_tokens": 4,
            "total_tokens": tokens + 4,
            "prompt_tokens_details": {"cached_tokens": 0},
        },
    }


def test_log_probabilities_of_a_chat(make_llm: MakeLLM) -> None:
    fields = {"messages": MESSAGES, "max_tokens": 8, "logprobs": True, "top_logprobs": 3, "seed": 1, "ignore_eos": True}
    body, (output,) = answered(make_llm, ChatRequest.read(fields))
    content = body["choices"][0]["logprobs"]["content"]
    answer = output.outputs[0]
    assert answer.logprobs is not None
    assert len(content) == len(answer.token_ids) == 8
    ranks = [position[token].rank for token, position in zip(answer.token_ids, answer.logprobs, strict=True)]
    assert min(ranks) <= 3 < max(ranks), "the seed draws tokens among the most likely ones and others"
    for entry, token, position in zip(content, answer.token_ids, answer.logprobs, strict=True):
        assert entry["logprob"] == position[token].logprob
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
        top = [one["logprob"] for one in entry["top_logprobs"]]
        assert top == sorted(top, reverse=True)
        assert top == [one.logprob for one in sorted(position.values(), key=lambda one: one.rank)[:3]]


def test_answers_of_all_prompts_are_numbered_through(make_llm: MakeLLM) -> None:
    fields = {"prompt": ["hello", "the"], "n": 2, "seed": 3, "max_tokens": 3, "ignore_eos": True}
    body, outputs = answered(make_llm, CompletionRequest.read(fields))
    choices = body["choices"]
    assert body["object"] == "text_completion"
    assert [choice["index"] for choice in choices] == [0, 1, 2, 3]
    assert [choice["text"] for choice in choices] == [a.text for output in outputs for a in output.outputs]
    assert body["usage"]["completion_tokens"] == 12
    assert body["usage"]["prompt_tokens"] == sum(len(output.prompt_token_ids) for output in outputs)


@pytest.mark.parametrize("prompt", ["hello the", [70, 80, 90]])
@pytest.mark.parametrize("most", [0, 4])
def test_echo(make_llm: MakeLLM, prompt: Any, most: int) -> None:
    fields = {"prompt": prompt, "echo": True, "logprobs": 1, "max_tokens": most, "return_token_ids": True, **GREEDY}
    body, (output,) = answered(make_llm, CompletionRequest.read(fields))
    (choice,) = body["choices"]
    logprobs, before, answer = choice["logprobs"], output.prompt_token_ids, output.outputs[0]
    assert choice["text"].startswith("hello the" if prompt == "hello the" else "")
    assert choice["text"].endswith(answer.text if most else "")
    assert choice["prompt_token_ids"] == list(before)
    assert choice["token_ids"] == list(answer.token_ids[:most])
    assert body["usage"]["completion_tokens"] == most
    assert {len(column) for column in logprobs.values()} == {len(before) + most}
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    ends = [start + len(text) for start, text in zip(logprobs["text_offset"], logprobs["tokens"], strict=True)]
    assert logprobs["text_offset"] == [0, *ends[:-1]]


def test_token_ids_are_added_when_asked_for(make_llm: MakeLLM) -> None:
    fields = {"messages": MESSAGES, "max_tokens": 2, "return_token_ids": True, **GREEDY}
    body, (output,) = answered(make_llm, ChatRequest.read(fields))
    assert body["prompt_token_ids"] == list(output.prompt_token_ids)
    assert body["choices"][0]["token_ids"] == list(output.outputs[0].token_ids)


def test_embeddings_of_all_texts_are_numbered_through(make_llm: MakeLLM) -> None:
    body, outputs = answered(make_llm, EmbeddingRequest.read({"input": ["hello", [70, 80, 90]]}))
    tokens = sum(len(output.prompt_token_ids) for output in outputs)
    vectors = [list(output.embedding or ()) for output in outputs]
    assert body == {
        "object": "list",
        "data": [{"object": "embedding", "index": n, "embedding": vectors[n]} for n in range(2)],
        "model": "mock",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def test_a_vector_in_base64_is_little_endian_floats(make_llm: MakeLLM) -> None:
    body, (output,) = answered(make_llm, EmbeddingRequest.read({"input": "hello", "encoding_format": "base64"}))
    assert output.embedding is not None
    raw = base64.b64decode(body["data"][0]["embedding"], validate=True)
    assert struct.unpack(f"<{len(output.embedding)}f", raw) == pytest.approx(output.embedding, rel=1e-7)


@pytest.mark.parametrize(
    ("error", "code", "kind", "param"),
    [
        (ContextLengthError("long"), "context_length_exceeded", "invalid_request_error", None),
        (ModelNotFoundError("who"), "model_not_found", "invalid_request_error", None),
        (ParameterError("no", param="n"), "invalid_value", "invalid_request_error", "n"),
        (FieldError("no", param="n", code="unknown_parameter"), "unknown_parameter", "invalid_request_error", "n"),
        (ResourceError("full"), "server_error", "server_error", None),
        (TwofoldError("oh"), "server_error", "server_error", None),
    ],
)
def test_errors(error: TwofoldError, code: str, kind: str, param: str | None) -> None:
    assert error_reply(error) == {"error": {"message": str(error), "type": kind, "param": param, "code": code}}


def test_an_error_says_the_way_out() -> None:
    assert error_reply(ResourceError("Full.", hint="Wait."))["error"]["message"] == "Full. Wait."
