"""OpenAI's response bodies, held against what the engine gave."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import to_builtins

from tests.engine.conftest import MakeLLM
from twofold.api.base import DialectRequest, ModelFacts, ReplyHead
from twofold.api.body import encode
from twofold.api.fields import FieldError
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.errors import error_reply
from twofold.api.openai.vectors import EmbeddingRequest
from twofold.core.errors import (
    AccessError,
    BusyError,
    ContextLengthError,
    ModelNotFoundError,
    ParameterError,
    QuotaError,
    ResourceError,
    TwofoldError,
)
from twofold.engine.llm import LLM
from twofold.engine.outputs import OutputDelta, RequestOutput
from twofold.text.detokenize import StreamDetokenizer
from twofold.text.parsers.format import CompletionFormat

HEAD = ReplyHead("x", 1_700_000_000, "mock")
MESSAGES = [{"role": "user", "content": "hello"}]
GREEDY = {"temperature": 0, "ignore_eos": True}


def completed(make_llm: MakeLLM, request: DialectRequest) -> tuple[dict[str, Any], list[RequestOutput]]:
    """The body as JSON brings it over, and what it was made of."""
    llm = make_llm()
    model = facts(llm)
    outputs = [delta.request for _, delta in run(llm, request, model) if delta.request is not None]
    outputs.sort(key=lambda output: output.request_id)
    body: dict[str, Any] = json.loads(encode(request.reply(HEAD, outputs, model)))
    return body, outputs


def streamed(make_llm: MakeLLM, request: DialectRequest) -> tuple[list[dict[str, Any]], list[RequestOutput]]:
    """The chunks of a stream, and what they were made of."""
    llm = make_llm()
    model = facts(llm)
    prompts = [job.token_ids for job in request.prepare(model)]
    streamer = request.streamer(replace(HEAD, prompts=prompts), model)
    sent, outputs = streamer.open(), []
    for job, delta in run(llm, request, model):
        sent += streamer.take(job, delta)
        outputs += [] if delta.request is None else [delta.request]
    outputs.sort(key=lambda output: output.request_id)
    *events, done, nothing = (sent + streamer.close(outputs)).split(b"\n\n")
    assert (done, nothing) == (b"data: [DONE]", b"")
    return [json.loads(event.removeprefix(b"data: ")) for event in events], outputs


def facts(llm: LLM) -> ModelFacts:
    tokenizer = llm.get_tokenizer()
    return ModelFacts(tokenizer, CompletionFormat.of(tokenizer), llm.config.context, llm.loaded.spec.hidden_size)


def run(llm: LLM, request: DialectRequest, model: ModelFacts) -> Iterator[tuple[int, OutputDelta]]:
    """Deltas with the number of their job."""
    for number, job in enumerate(request.prepare(model)):
        llm.engine.add(replace(job, request_id=str(number)))
    while llm.engine.has_work:
        for delta in llm.engine.step():
            yield int(delta.request_id), delta


def test_a_chat(make_llm: MakeLLM) -> None:
    body, (output,) = completed(make_llm, ChatRequest.read({"messages": MESSAGES, "max_tokens": 4, **GREEDY}))
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
            "prompt_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
    }


def test_log_probabilities_of_a_chat(make_llm: MakeLLM) -> None:
    fields = {"messages": MESSAGES, "max_tokens": 8, "logprobs": True, "top_logprobs": 3, "seed": 1, "ignore_eos": True}
    body, (output,) = completed(make_llm, ChatRequest.read(fields))
    content = body["choices"][0]["logprobs"]["content"]
    completion = output.outputs[0]
    assert completion.logprobs is not None
    assert len(content) == len(completion.token_ids) == 8
    ranks = [position[token].rank for token, position in zip(completion.token_ids, completion.logprobs, strict=True)]
    assert min(ranks) <= 3 < max(ranks), "the seed draws tokens among the most likely ones and others"
    for entry, token, position in zip(content, completion.token_ids, completion.logprobs, strict=True):
        assert entry["logprob"] == position[token].logprob
        assert bytes(entry["bytes"]).decode(errors="replace") == entry["token"]
        top = [one["logprob"] for one in entry["top_logprobs"]]
        assert top == sorted(top, reverse=True)
        assert top == [one.logprob for one in sorted(position.values(), key=lambda one: one.rank)[:3]]


def test_completions_of_all_prompts_are_numbered(make_llm: MakeLLM) -> None:
    fields = {"prompt": ["hello", "the"], "n": 2, "seed": 3, "max_tokens": 3, "ignore_eos": True}
    body, outputs = completed(make_llm, CompletionRequest.read(fields))
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
    body, (output,) = completed(make_llm, CompletionRequest.read(fields))
    (choice,) = body["choices"]
    logprobs, before, completion = choice["logprobs"], output.prompt_token_ids, output.outputs[0]
    assert choice["text"].startswith("hello the" if prompt == "hello the" else "")
    assert choice["text"].endswith(completion.text if most else "")
    assert choice["prompt_token_ids"] == list(before)
    assert choice["token_ids"] == list(completion.token_ids[:most])
    assert body["usage"]["completion_tokens"] == most
    assert {len(column) for column in logprobs.values()} == {len(before) + most}
    assert logprobs["token_logprobs"][0] is logprobs["top_logprobs"][0] is None
    assert all(value <= 0 for value in logprobs["token_logprobs"][1:])
    ids = [*before, *completion.token_ids[:most]]
    assert logprobs["text_offset"] == [added(make_llm, ids[:count]) for count in range(len(ids))]


@pytest.mark.parametrize("prompt", ["hello the", [70, 80, 90]])
@pytest.mark.parametrize("extra", [{}, {"skip_special_tokens": False}, {"n": 2, "seed": 3, "temperature": 1}])
def test_offsets_count_from_the_start_of_the_prompt(make_llm: MakeLLM, prompt: Any, extra: dict[str, Any]) -> None:
    """Streamed or not, repeated or not: the text before a token's offset is that of the tokens before it."""
    fields = {"prompt": [prompt, "a"], "logprobs": 0, "max_tokens": 6, "temperature": 0, "ignore_eos": True, **extra}
    body, outputs = completed(make_llm, CompletionRequest.read(fields))
    chunks, _ = streamed(make_llm, CompletionRequest.read(fields | {"stream": True}))
    echoed, _ = completed(make_llm, CompletionRequest.read(fields | {"echo": True}))
    completions = [(output, completion) for output in outputs for completion in output.outputs]
    for choice, again, (output, completion) in zip(body["choices"], echoed["choices"], completions, strict=True):
        start = len(again["text"]) - len(completion.text)
        skips = fields.get("skip_special_tokens", True)
        ids = completion.token_ids
        expected = [start + added(make_llm, ids[:count], skips=skips) for count in range(len(ids))]
        assert choice["logprobs"]["text_offset"] == expected
        assert again["logprobs"]["text_offset"][len(output.prompt_token_ids) :] == expected
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"] and c["logprobs"]]
        assert [offset for c in mine for offset in c["logprobs"]["text_offset"]] == expected


def added(make_llm: MakeLLM, ids: Sequence[int], *, skips: bool = False) -> int:
    """The characters that these tokens make, without an incomplete one at their end."""
    detokenizer = StreamDetokenizer(make_llm().get_tokenizer(), skip_special_tokens=skips, continuation=True)
    return len("".join(map(detokenizer.push, ids)))


def test_token_ids_are_added_when_asked_for(make_llm: MakeLLM) -> None:
    fields = {"messages": MESSAGES, "max_tokens": 2, "return_token_ids": True, **GREEDY}
    body, (output,) = completed(make_llm, ChatRequest.read(fields))
    assert body["prompt_token_ids"] == list(output.prompt_token_ids)
    assert body["choices"][0]["token_ids"] == list(output.outputs[0].token_ids)


def test_embeddings_of_all_texts_are_numbered_through(make_llm: MakeLLM) -> None:
    body, outputs = completed(make_llm, EmbeddingRequest.read({"input": ["hello", [70, 80, 90]]}))
    tokens = sum(len(output.prompt_token_ids) for output in outputs)
    vectors = [list(output.embedding or ()) for output in outputs]
    assert body == {
        "object": "list",
        "data": [{"object": "embedding", "index": n, "embedding": vectors[n]} for n in range(2)],
        "model": "mock",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def test_a_vector_in_base64_is_little_endian_floats(make_llm: MakeLLM) -> None:
    body, (output,) = completed(make_llm, EmbeddingRequest.read({"input": "hello", "encoding_format": "base64"}))
    assert output.embedding is not None
    raw = base64.b64decode(body["data"][0]["embedding"], validate=True)
    assert struct.unpack(f"<{len(output.embedding)}f", raw) == pytest.approx(output.embedding, rel=1e-7)


@pytest.mark.parametrize(
    ("error", "code", "kind", "param"),
    [
        (ContextLengthError("long"), "context_length_exceeded", "invalid_request_error", None),
        (ModelNotFoundError("who"), "model_not_found", "not_found_error", None),
        (AccessError("no"), "invalid_api_key", "authentication_error", None),
        (QuotaError("much", retry_after_s=3), "rate_limit_exceeded", "rate_limit_error", None),
        (BusyError("full", retry_after_s=3), "overloaded", "server_error", None),
        (ParameterError("no", param="n"), "invalid_value", "invalid_request_error", "n"),
        (FieldError("no", param="n", code="unknown_parameter"), "unknown_parameter", "invalid_request_error", "n"),
        (ResourceError("full"), "server_error", "server_error", None),
        (TwofoldError("oh"), "server_error", "server_error", None),
    ],
)
def test_errors(error: TwofoldError, code: str, kind: str, param: str | None) -> None:
    assert to_builtins(error_reply(error)) == {
        "error": {"message": str(error), "type": kind, "param": param, "code": code}
    }


def test_an_error_says_the_way_out() -> None:
    assert error_reply(ResourceError("Full.", hint="Wait.")).error.message == "Full. Wait."


def test_an_error_is_short() -> None:
    error = FieldError("x" * 10_000, param="y" * 10_000, hint="z" * 10_000)
    assert len(encode(error_reply(error))) < 4096


def test_a_streamed_chat(make_llm: MakeLLM) -> None:
    fields = {"messages": MESSAGES, "max_tokens": 6, "n": 2, "seed": 4, "ignore_eos": True, "stream": True}
    chunks, (output,) = streamed(make_llm, ChatRequest.read({**fields, "stream_options": {"include_usage": True}}))
    *chunks, last = chunks
    assert {chunk["id"] for chunk in chunks} == {"chatcmpl-x"}
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert all(chunk["usage"] is None for chunk in chunks)
    assert (last["choices"], last["usage"]["completion_tokens"]) == ([], 12)
    for completion in output.outputs:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == completion.index]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(choice["delta"].get("content", "") for choice in mine) == completion.text
        assert [choice["finish_reason"] for choice in mine] == [None] * (len(mine) - 1) + ["length"]
        assert mine[-1]["delta"] == {}


def test_continuous_usage_counts_each_choice(make_llm: MakeLLM) -> None:
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    fields = {"n": 2, "seed": 4, "max_tokens": 6, "ignore_eos": True, "stream": True, **options}
    for request in (
        ChatRequest.read({**fields, "messages": MESSAGES}),
        CompletionRequest.read({**fields, "prompt": ["hello", [70, 80, 90]]}),
    ):
        (*chunks, last), outputs = streamed(make_llm, request)
        prompts = [len(output.prompt_token_ids) for output in outputs]
        sent: dict[int, list[int]] = {}
        for chunk in chunks:
            (choice,), usage = chunk["choices"], chunk["usage"]
            assert usage["prompt_tokens"] == prompts[choice["index"] // 2]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            sent.setdefault(choice["index"], []).append(usage["completion_tokens"])
        assert all(counts == sorted(counts) and counts[-1] == 6 for counts in sent.values())
        assert last["usage"]["completion_tokens"] == 6 * len(sent) == 12 * len(outputs)
        assert last["usage"]["prompt_tokens"] == sum(prompts)


def test_continuous_usage_needs_include_usage(make_llm: MakeLLM) -> None:
    fields = {"messages": MESSAGES, "max_tokens": 2, "stream": True, "stream_options": {"continuous_usage_stats": True}}
    chunks, _ = streamed(make_llm, ChatRequest.read(fields))
    assert not any("usage" in chunk for chunk in chunks)


def test_log_probabilities_are_streamed_with_their_tokens(make_llm: MakeLLM) -> None:
    fields = {"messages": MESSAGES, "max_tokens": 6, "seed": 4, "logprobs": True, "stream": True, "ignore_eos": True}
    chunks, (output,) = streamed(make_llm, ChatRequest.read({**fields, "return_token_ids": True}))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    sent = [entry for choice in choices if choice["logprobs"] for entry in choice["logprobs"]["content"]]
    assert len(sent) == 6
    assert [token for choice in choices for token in choice.get("token_ids", ())] == list(output.outputs[0].token_ids)


def test_streamed_completions(make_llm: MakeLLM) -> None:
    fields = {"prompt": ["hello", [70, 80]], "n": 2, "seed": 3, "max_tokens": 5, "ignore_eos": True, "logprobs": 1}
    chunks, outputs = streamed(make_llm, CompletionRequest.read({**fields, "stream": True}))
    completions = [completion for output in outputs for completion in output.outputs]
    for index, completion in enumerate(completions):
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert "".join(choice["text"] for choice in mine) == completion.text
        assert mine[-1]["finish_reason"] == "length"
        offsets = [offset for choice in mine if choice["logprobs"] for offset in choice["logprobs"]["text_offset"]]
        assert offsets == sorted(offsets)
        assert len(offsets) == 5


def test_a_streamed_echo_comes_first(make_llm: MakeLLM) -> None:
    request = CompletionRequest.read({"prompt": "hello", "echo": True, "stream": True, "max_tokens": 2, **GREEDY})
    chunks, (output,) = streamed(make_llm, request)
    text = "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])
    assert text == "hello" + output.outputs[0].text


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(
        st.sampled_from(["hello the", "a", [70], [70, 80, 90], "grüße 日本 the " * 3]), min_size=1, max_size=3
    ),
    n=st.integers(1, 3),
    most=st.sampled_from([0, 1, 4]),
    logprobs=st.sampled_from([None, 0, 3]),
    rows=st.sampled_from([16, 64]),
)
def test_an_echoed_stream_is_the_whole_reply(
    make_llm: MakeLLM, prompts: list[Any], n: int, most: int, logprobs: int | None, rows: int
) -> None:
    """Prompts are scored in steps of ``rows`` tokens; each part is in a chunk of its own, the first has the text."""
    llms = [make_llm(rows=rows, context=128, blocks=512) for _ in range(2)]
    fields = {"prompt": prompts, "echo": True, "n": n, "max_tokens": most, "seed": 3, "ignore_eos": True}
    fields |= {} if logprobs is None else {"logprobs": logprobs}
    whole, _ = completed(lambda: llms[0], CompletionRequest.read(fields))
    options = {"stream": True, "stream_options": {"include_usage": True}}
    (*chunks, last), _ = streamed(lambda: llms[1], CompletionRequest.read(fields | options))
    assert last["usage"] == whole["usage"]
    for choice in whole["choices"]:
        mine = [each for chunk in chunks for each in chunk["choices"] if each["index"] == choice["index"]]
        assert "".join(each["text"] for each in mine) == choice["text"]
        prompt = prompts[choice["index"] // n]
        assert not isinstance(prompt, str) or mine[0]["text"] == prompt
        assert mine[-1]["finish_reason"] == choice["finish_reason"] == "length"
        columns = [each["logprobs"] for each in mine if each["logprobs"] is not None]
        if logprobs is None:
            assert columns == []
            continue
        assert mine[0]["logprobs"]["token_logprobs"][0] is None
        for name, values in choice["logprobs"].items():
            assert [value for column in columns for value in column[name]] == values


def test_the_best_of_several_are_only_known_at_the_end() -> None:
    with pytest.raises(FieldError, match="cannot be streamed") as caught:
        CompletionRequest.read({"prompt": "hello", "stream": True, "best_of": 2})
    assert caught.value.param == "best_of"
