"""Bodies, headers and names of endpoints, and error messages."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.endpoints.streams import no_prompts
from twofold.bench.endpoints.endpoint import ENDPOINTS, ApiEndpoint, EndpointOptions
from twofold.bench.endpoints.values import MAX_CHARS, sentence
from twofold.bench.load.base import Ask, PromptMessage
from twofold.core.errors import ParameterError

ASK = Ask(0, 0.0, input_tokens=8, output_tokens=16)


def test_the_body_of_a_chat() -> None:
    body = orjson.loads(ApiEndpoint("chat", EndpointOptions("m"), no_prompts).body(ASK))
    assert body == {
        "model": "m",
        "messages": [{"role": "user", "content": "hello"}],
        "max_tokens": 16,
        "temperature": 0.0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_the_body_of_a_completion_joins_all_messages() -> None:
    ask = Ask(
        0,
        0.0,
        8,
        16,
        messages=(PromptMessage("user", "a"), PromptMessage("assistant", " b"), PromptMessage("user", " c")),
    )
    body = orjson.loads(ApiEndpoint("completions", EndpointOptions("m"), no_prompts).body(ask))
    assert body["prompt"] == "a b c"
    assert "messages" not in body


def test_options_become_fields() -> None:
    options = EndpointOptions("m", stream=False, ignore_eos=True, temperature=None, length="max_completion_tokens")
    body = orjson.loads(ApiEndpoint("chat", options, no_prompts).body(ASK))
    assert body["ignore_eos"] is True
    assert body["max_completion_tokens"] == 16
    assert not {"stream", "stream_options", "temperature", "max_tokens"} & body.keys()


def test_the_usage_so_far_is_requested_if_supported() -> None:
    body = orjson.loads(ApiEndpoint("chat", EndpointOptions("m", usage_each=True), no_prompts).body(ASK))
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    whole = orjson.loads(ApiEndpoint("chat", EndpointOptions("m", stream=False, usage_each=True), no_prompts).body(ASK))
    assert "stream_options" not in whole


def test_extra_fields_override_options_and_fields_of_a_request_override_both() -> None:
    options = EndpointOptions("m", extra={"temperature": 1, "model": "other", "max_tokens": 3})
    ask = Ask(0, 0.0, 8, 16, fields={"max_tokens": 4})
    body = orjson.loads(ApiEndpoint("chat", options, no_prompts).body(ask))
    assert (body["model"], body["temperature"], body["max_tokens"]) == ("other", 1, 4)


@pytest.mark.parametrize("name", ENDPOINTS)
def test_each_endpoint_has_a_name_and_hides_the_key(name: str) -> None:
    options = EndpointOptions("m", api_key="secret", headers={"X-Team": "a"})
    endpoint = ApiEndpoint(name, options, no_prompts)
    assert endpoint.path.startswith("/v1/")
    assert endpoint.headers["authorization"] == "Bearer secret"
    assert endpoint.headers["x-team"] == "a"
    assert "secret" not in repr(options)


def test_a_given_header_overrides_the_default() -> None:
    options = EndpointOptions("m", api_key="a", headers={"Authorization": "Basic b"})
    assert ApiEndpoint("chat", options, no_prompts).headers["authorization"] == "Basic b"


@pytest.mark.parametrize(
    "options",
    [
        EndpointOptions("m", api_key="secret\n"),
        EndpointOptions("m", api_key="sécret"),
        EndpointOptions("m", headers={"a b": "c"}),
        EndpointOptions("m", headers={"a": "secret\r\nb: c"}),
    ],
)
def test_headers_that_http_cannot_send_are_refused_without_being_shown(options: EndpointOptions) -> None:
    with pytest.raises(ParameterError) as caught:
        ApiEndpoint("chat", options, no_prompts)
    assert "secret" not in str(caught.value)


def test_an_endpoint_that_does_not_exist() -> None:
    with pytest.raises(ParameterError) as caught:
        ApiEndpoint("completion", EndpointOptions("m"), no_prompts)
    assert caught.value.hint == "Did you mean 'completions'?"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"error":{"message":"No key.","type":"x","code":null}}', "No key."),
        (b'{"type":"error","error":{"type":"overloaded_error","message":"Overloaded"}}', "Overloaded"),
        (b'{"type":"error","error":{"type":"overloaded_error"}}', "overloaded_error"),
        (b'{"object":"error","message":"Too long","code":400}', "Too long"),
        (b'{"error":"Model is overloaded","error_type":"overloaded"}', "Model is overloaded"),
        (b'{"detail":[{"loc":["body"],"msg":"field required"}]}', "field required"),
        (b'{"detail":"Not Found"}', "Not Found"),
        (b'{"odd":1}', '{"odd":1}'),
        (b"Bad\r\n Gateway\x1b[31m", "Bad Gateway [31m"),
        (
            b"<html><head><title>502</title></head><body><h1>502 Bad Gateway</h1><hr>nginx</body>",
            "502 Bad Gateway nginx",
        ),
        (b"", "the body is empty"),
        (b"[1]", "[1]"),
    ],
)
def test_error_messages_of_servers(body: bytes, said: str) -> None:
    assert sentence(body) == said


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_any_bytes_make_one_line(body: bytes) -> None:
    said = sentence(body)
    assert said.isprintable()
    assert 0 < len(said) <= MAX_CHARS


@pytest.mark.parametrize("body", [b"<" + b"x" * 5_000_000, b"<" * 5_000_000, b"<script>" * 100_000])
def test_a_huge_body_is_cut(body: bytes) -> None:
    assert len(sentence(body)) <= MAX_CHARS
