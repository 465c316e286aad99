"""OpenAI's request bodies: what they become, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from twofold.api.base import DialectRequest, ModelFacts
from twofold.api.fields import FieldError
from twofold.api.openai.bodies import StreamOptions, given_prompts
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.errors import error_reply
from twofold.api.openai.vectors import EmbeddingRequest
from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.request import PoolingParams, RequestOptions
from twofold.text.parsers.format import CompletionFormat
from twofold.text.templates.chat import RESERVED_VARIABLES
from twofold.text.tokenizers.tokenizer import Tokenizer

HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> ModelFacts:
    return ModelFacts(tokenizer, CompletionFormat.of(tokenizer), 4096, 8)


def options_of(request: DialectRequest) -> RequestOptions:
    options: RequestOptions = request.request_options  # type: ignore[attr-defined]
    return options


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.read({"messages": HELLO, **fields})


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.read({"prompt": "hello", **fields})


def test_the_defaults_are_openais() -> None:
    assert chat().params == SamplingParams(temperature=1, top_p=1, max_tokens=None)
    assert completion().params == SamplingParams(temperature=1, top_p=1, max_tokens=16)
    assert chat().model is None
    assert chat(model="m").model == "m"


@pytest.mark.parametrize("make", [chat, completion])
def test_fields_of_sampling(make: Callable[..., ChatRequest | CompletionRequest]) -> None:
    same: dict[str, Any] = {
        "n": 3,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.2,
        "presence_penalty": 1,
        "frequency_penalty": -1,
        "stop": ["a", "b"],
        "stop_token_ids": [4],
        "min_tokens": 2,
        "ignore_eos": True,
        "skip_special_tokens": False,
        "include_stop_str_in_output": True,
        "max_tokens": 9,
    }
    assert make(**same, seed=5, logit_bias={"7": -100}).params == SamplingParams(**same, seed=5, logit_bias={7: -100})


def embedding(**fields: Any) -> EmbeddingRequest:
    return EmbeddingRequest.read({"input": "hello", **fields})


@pytest.mark.parametrize("make", [chat, completion, embedding])
def test_vllms_fields_about_a_request_beside_others(make: Callable[..., DialectRequest]) -> None:
    assert options_of(make()) == options_of(make(priority=None, cache_salt=None)) == RequestOptions()
    assert options_of(make(priority=-3, cache_salt="s")) == RequestOptions(priority=-3, cache_salt="s")
    for fields in ({"priority": 1.5}, {"priority": 1001}, {"cache_salt": 5}, {"cache_salt": "s" * 257}):
        with pytest.raises(ParameterError) as caught:
            make(**fields)
        assert caught.value.param in fields


def test_the_defaults_of_embeddings() -> None:
    assert embedding().params == PoolingParams("mean")
    assert (embedding().encoding_format, embedding(encoding_format="base64").encoding_format) == ("float", "base64")
    assert embedding(pooling="last", user="me", model="m", encoding_format="float").params == PoolingParams("last")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("a", ["a"]),
        ([1, 2], [(1, 2)]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [(1,), (2, 3)]),
    ],
)
def test_forms_of_inputs(given: Any, read: list[Any], model: ModelFacts) -> None:
    request = embedding(input=given)
    assert list(given_prompts(request.input)) == read
    jobs = request.prepare(model)
    assert [job.prompt or job.token_ids for job in jobs] == read
    assert all(job.token_ids for job in jobs)


def test_dimensions_are_the_models() -> None:
    embedding(dimensions=8).params.check(8)
    embedding().params.check(8)
    with pytest.raises(ParameterError, match="dimensions must be the model's 8, not 4"):
        embedding(dimensions=4).params.check(8)


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"input": None}, "input", "required"),
        ({"input": []}, "input", "not empty"),
        ({"input": [[]]}, "input[0]", "not empty"),
        ({"input": {}}, "input", "text, a list of texts"),
        ({"input": ["a"] * 2049}, "input", "1 to 2048"),
        ({"encoding_format": "base32"}, "encoding_format", "Did you mean 'base64'?"),
        ({"encoding_format": 5}, "encoding_format", "float or base64"),
        ({"pooling": "maen"}, "pooling", "Did you mean 'mean'?"),
        ({"dimensions": 0}, "dimensions", "whole number"),
        ({"model": 5}, "model", "text"),
        ({"temperature": 0}, "temperature", "no"),
    ],
    ids=str,
)
def test_impossible_embeddings(fields: dict[str, Any], param: str, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        embedding(**fields)
    assert caught.value.param == param
    assert message in f"{caught.value} {caught.value.hint}"


def test_a_seed_below_zero_stands_for_its_bits() -> None:
    assert chat(seed=-1).params.seed == (1 << 64) - 1
    assert chat(seed=0).params.seed == 0


@pytest.mark.parametrize(
    ("fields", "tokens"),
    [
        ({}, None),
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 5}, 5),
        ({"max_completion_tokens": 5, "max_tokens": 5}, 5),
    ],
)
def test_most_tokens_of_a_chat(fields: dict[str, Any], tokens: int | None) -> None:
    assert chat(**fields).params.max_tokens == tokens


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({}, None), ({"logprobs": False}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 3}, 3)],
)
def test_log_probabilities_of_a_chat(fields: dict[str, Any], logprobs: int | None) -> None:
    assert chat(**fields).params.logprobs == logprobs


@pytest.mark.parametrize(
    ("chosen", "form"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, StructuredOutputsParams(json_object=True)),
        ({"type": "json_object", "schema": SCHEMA}, StructuredOutputsParams(json=SCHEMA)),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, StructuredOutputsParams(json_object=True)),
        (
            {"type": "json_schema", "json_schema": {"name": "x", "strict": True, "schema": SCHEMA}},
            StructuredOutputsParams(json=SCHEMA),
        ),
    ],
)
def test_response_formats(chosen: dict[str, Any], form: StructuredOutputsParams | None) -> None:
    assert chat(response_format=chosen).params.structured_outputs == form


def test_structured_outputs_as_vllm_writes_them() -> None:
    assert completion(structured_outputs={"regex": "a+"}).params.structured_outputs == StructuredOutputsParams(
        regex="a+"
    )


@pytest.mark.parametrize(
    ("prompt", "given"),
    [
        ("a", ["a"]),
        ([1, 2], [(1, 2)]),
        (["a", "b"], ["a", "b"]),
        ([[1], "b"], [(1,), "b"]),
    ],
)
def test_forms_of_prompts(prompt: Any, given: list[Any], model: ModelFacts) -> None:
    request = CompletionRequest.read({"prompt": prompt})
    assert list(request.given) == given
    assert all(job.token_ids for job in request.prepare(model))


def test_echo_scores_the_prompt() -> None:
    assert completion(echo=True, logprobs=2).params.prompt_logprobs == 2
    assert completion(logprobs=2).params.prompt_logprobs is None
    assert completion(echo=True, max_tokens=0).params.max_tokens == 1
    assert completion(best_of=3, n=2).params.best_of == 3


def test_a_chat_goes_through_the_template(model: ModelFacts) -> None:
    (job,) = chat().prepare(model)
    assert job.token_ids == tuple(model.tokenizer.apply_chat_template(HELLO))


def test_variables_of_the_template() -> None:
    conversation = chat(chat_template_kwargs={"enable_thinking": False}).conversation
    assert conversation.variables == {"enable_thinking": False}
    assert not chat(add_generation_prompt=False).conversation.add_generation_prompt


def test_null_is_as_good_as_nothing() -> None:
    assert chat(messages=[{"role": "user", "content": "hello", "refusal": None}]) == chat()
    nulls = dict.fromkeys(("temperature", "n", "stop", "seed", "tools", "stream", "logit_bias", "audio", "logprobs"))
    assert chat(**nulls) == chat()


def test_fields_that_change_no_completion_are_accepted() -> None:
    plain = {"stream": False, "store": False, "service_tier": "auto", "parallel_tool_calls": True}
    taken, least = chat(**plain, user="me", metadata={"a": "b"}, modalities=["text"]), chat()
    assert (taken.conversation, taken.params, taken.request_options) == (
        least.conversation,
        least.params,
        least.request_options,
    )
    assert (taken.stream, taken.tier, taken.explain) == (least.stream, least.tier, least.explain)


def test_settings_of_the_reply() -> None:
    assert not chat().stream
    streamed = chat(stream=True, stream_options={"include_usage": True})
    assert streamed.stream
    assert streamed.stream_options == StreamOptions(include_usage=True)
    assert chat(twofold={"explain": True}).explain
    assert chat(service_tier="fast").tier == "priority"
    assert chat().tier == "auto"


@pytest.mark.parametrize(
    ("fields", "param", "code", "message"),
    [
        ({"temprature": 1}, "temprature", "unknown_parameter", "'temperature'"),
        ({"max_token": 1}, "max_token", "unknown_parameter", "'max_tokens'"),
        ({"zzz": 1}, "zzz", "unknown_parameter", "Known: "),
        ({"messages": "x"}, "messages", "invalid_value", "list of 1 to 4096"),
        ({"messages": None}, "messages", "missing_required_parameter", "required"),
        ({"model": 5}, "model", "invalid_value", "text"),
        ({"stream": "yes"}, "stream", "invalid_value", "true or false"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "include_obfusc", "unsupported_value", ""),
        ({"reasoning_effort": "hihg"}, "reasoning_effort", "invalid_value", "'high'"),
        ({"reasoning_effort": "none", "thinking_token_budget": 1}, "thinking_token_budget", "invalid_value", ""),
        ({"service_tier": "scale"}, "service_tier", "unsupported_value", "auto"),
        ({"parallel_tool_calls": 0}, "parallel_tool_calls", "invalid_value", "true or false"),
        ({"tool_choice": "any"}, "tool_choice", "invalid_value", "required"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type", "unsupported_value", "function"),
        ({"tools": [{"type": "function", "function": {"nam": "x"}}]}, "tools[0].function.name", "missing_required", ""),
        ({"tools": [TOOL] * 129}, "tools", "invalid_value", "128"),
        ({"prompt_cache_options": {"ttl": "12h"}}, "prompt_cache_options.ttl", "invalid_value", "1h"),
        ({"prompt_cache_retention": "12h"}, "prompt_cache_retention", "invalid_value", "in_memory"),
        ({"twofold": {"explian": True}}, "twofold.explian", "unknown_parameter", "'explain'"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "content[0].type",
            "unsupported_value",
            "'text'",
        ),
        ({"messages": HELLO * 4097}, "messages", "invalid_value", "4096"),
        ({"tools": "x"}, "tools", "invalid_value", "list"),
        ({"top_logprobs": 2}, "top_logprobs", "invalid_value", "logprobs"),
        ({"logprobs": 2}, "logprobs", "invalid_value", "true or false"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_value", "20"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens", "invalid_value", "max_completion_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "invalid_value", "0"),
        ({"seed": 1.5}, "seed", "invalid_value", "whole"),
        ({"seed": 1 << 64}, "seed", "invalid_value", "whole"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "invalid_value", "token ids"),
        ({"logit_bias": {"²": 1}}, "logit_bias", "invalid_value", "token ids"),
        ({"logit_bias": [1]}, "logit_bias", "invalid_value", "token ids"),
        ({"response_format": "json"}, "response_format", "invalid_value", "object"),
        ({"response_format": {"type": "jsn_object"}}, "response_format.type", "invalid_value", "json_object"),
        (
            {"response_format": {"type": "text", "schema": {"a": 1}}},
            "response_format.schema",
            "unknown_parameter",
            "type",
        ),
        ({"response_format": {"type": "text", "a": 1}}, "response_format.a", "unknown_parameter", "type"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"shema": {}}}},
            "response_format.json_schema.shema",
            "unknown_parameter",
            "'schema'",
        ),
        (
            {"response_format": {"type": "json_object"}, "structured_outputs": {"regex": "a"}},
            "structured_outputs",
            "invalid_value",
            "response_format",
        ),
        ({"structured_outputs": "a"}, "structured_outputs", "invalid_value", "object"),
        ({"chat_template_kwargs": [1]}, "chat_template_kwargs", "invalid_value", "object"),
        ({"echo": True}, "echo", "unknown_parameter", "Known"),
    ],
    ids=str,
)
def test_refused_fields_are_named(fields: dict[str, Any], param: str, code: str, message: str) -> None:
    with pytest.raises(FieldError) as caught:
        chat(**fields)
    assert caught.value.code.startswith(code)
    assert param in caught.value.param
    assert param in str(caught.value)
    assert message in f"{caught.value} {caught.value.hint}"


@pytest.mark.parametrize("name", [*sorted(RESERVED_VARIABLES), "a b", "", "ä"])
def test_template_variables_that_cannot_be(name: str) -> None:
    with pytest.raises(ParameterError) as caught:
        chat(chat_template_kwargs={name: 1})
    assert error_reply(caught.value).error.param == f"chat_template_kwargs.{name}"
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"n": 0}, "n"),
        ({"n": True}, "n"),
        ({"stop": [1]}, "stop[0]"),
        ({"logit_bias": {"1": 101}}, "logit_bias.1"),
        ({"structured_outputs": {"jsn": "{}"}}, "structured_outputs.jsn"),
    ],
    ids=str,
)
def test_sampling_checks_its_values(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(ParameterError) as caught:
        chat(**fields)
    assert caught.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": None},
        {"prompt": []},
        {"prompt": [[]]},
        {"prompt": 5},
        {"prompt": [1.5]},
        {"prompt": [True]},
        {"prompt": [1, "a"]},
        {"prompt": ["a"] * 2049},
        {"max_tokens": 0},
        {"logprobs": True},
        {"logprobs": 21},
        {"suffix": "end", "echo": True},
        {"suffix": "end", "prompt": [1]},
        {"suffix": 5},
        {"echo": 1},
        {"best_of": 1, "n": 2},
        {"messages": HELLO},
    ],
    ids=lambda fields: str(fields)[:40],
)
def test_impossible_completions(fields: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        completion(**fields)


@pytest.mark.parametrize("body", [None, [], "text", 5])
def test_a_body_is_an_object(body: object) -> None:
    with pytest.raises(FieldError, match="body must be an object"):
        ChatRequest.read(body)
