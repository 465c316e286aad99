"""Anthropic's own client, fed with our bytes: it must find in them what we put there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.api.anthropic.claude_code import later_turn
from tests.api.anthropic.conftest import HEAD, THINKING, WEATHER
from tests.api.completions import CALL, SampleCompletion, data_of, facts_of
from twofold.api.anthropic.errors import AnthropicDialect
from twofold.api.anthropic.messages import CountTokensRequest, MessagesRequest
from twofold.api.base import ModelFacts
from twofold.core.errors import AccessError, BusyError, ModelNotFoundError, QuotaError, TwofoldError, WorkerError
from twofold.core.record import HeldPin

anthropic = pytest.importorskip("anthropic")
httpx = pytest.importorskip("httpx2")

FACTS = facts_of(THINKING)
COMPLETION = f"<think>I need the weather.</think>\n\nI look.\n{CALL}"
ASK = {
    "model": "tiny",
    "max_tokens": 200,
    "messages": [{"role": "user", "content": "Is it sunny?"}],
    "tools": [WEATHER],
}


class Server:
    """Replies to each request with one given completion, or with an error before or in the middle of it."""

    def __init__(self, text: str = COMPLETION, *, error: TwofoldError | None = None, broken: bool = False) -> None:
        self._made = SampleCompletion(FACTS, text, cached=16, pins=(HeldPin(48, 3600.0), HeldPin(64, 300.0)))
        self._error, self._broken = error, broken
        self.bodies: list[dict[str, Any]] = []

    def client(self) -> Any:
        http = httpx.Client(transport=httpx.MockTransport(self._reply))
        return anthropic.Anthropic(api_key="key", base_url="http://twofold", http_client=http, max_retries=0)

    def _reply(self, given: Any) -> Any:
        body = json.loads(given.content)
        self.bodies.append(body)
        if self._error is not None and not self._broken:
            dialect = AnthropicDialect()
            return httpx.Response(dialect.status(self._error), json=data_of(dialect.error(self._error, "req_1")))
        if given.url.path.endswith("/count_tokens"):
            counted = CountTokensRequest.read(body)
            return httpx.Response(200, json=data_of(counted.reply(counted.count(FACTS))))
        request = MessagesRequest.read(body)
        if not request.stream:
            return httpx.Response(200, json=data_of(request.reply(HEAD, [self._made.output], FACTS)))
        raw = b"".join(self._events(request))
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=raw)

    def _events(self, request: MessagesRequest) -> Iterator[bytes]:
        streamer = request.streamer(HEAD, FACTS)
        yield streamer.open()
        for index, delta in enumerate(self._made.deltas):
            yield streamer.take(0, delta)
            yield streamer.keep_alive
            if self._broken and self._error is not None and index == 5:
                yield streamer.fail(self._error, "req_1")
                return
        yield streamer.close([self._made.output])


def checked(message: Any) -> Any:
    """The message, after all of its values were held against the client's types, strictly."""
    return type(message).model_validate(message.model_dump(mode="json", warnings=False), strict=True)


def as_expected(message: Any) -> None:
    thinking, text, call = message.content
    assert (thinking.type, thinking.thinking, thinking.signature) == ("thinking", "I need the weather.", "unsigned")
    assert (text.type, text.text.strip()) == ("text", "I look.")
    assert (call.type, call.name, call.input) == ("tool_use", "weather", {"city": "Ulm"})
    assert message.stop_reason == "tool_use"
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (36, 16, 48)
    assert usage.output_tokens == len(SampleCompletion(FACTS, COMPLETION).token_ids)


def test_a_whole_message() -> None:
    message = Server().client().messages.create(**ASK)
    as_expected(checked(message))
    assert message.usage.cache_creation.ephemeral_1h_input_tokens == 32


def test_a_streamed_message() -> None:
    with Server().client().messages.stream(**ASK) as stream:
        kinds = {event.type for event in stream}
        as_expected(stream.get_final_message())
    assert {"text", "thinking", "signature", "input_json", "message_start", "message_stop"} <= kinds


def test_beta_clients_too() -> None:
    client = Server().client()
    as_expected(client.beta.messages.create(**ASK, betas=["context-management-2025-06-27"]))
    with client.beta.messages.stream(**ASK) as stream:
        as_expected(stream.get_final_message())


def test_what_the_client_got_it_may_send_back() -> None:
    server = Server()
    client = server.client()
    first = client.messages.create(**ASK)
    result = {"type": "tool_result", "tool_use_id": first.content[2].id, "content": "Sunny"}
    more = [*ASK["messages"], {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]  # type: ignore[misc]
    client.messages.create(**(ASK | {"messages": more}))
    messages = MessagesRequest.read(server.bodies[-1]).conversation.messages
    assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
    assert messages[1]["reasoning_content"] == "I need the weather."


def test_a_form_is_parsed() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    config = {"format": {"type": "json_schema", "schema": schema}}
    message = Server('{"a": 1}').client().messages.create(**(ASK | {"output_config": config}))
    assert json.loads(message.content[0].text) == {"a": 1}


def test_claude_codes_body_goes_through_the_client() -> None:
    body = {
        name: value
        for name, value in later_turn().items()
        if name not in ("stream", "context_management", "temperature")  # the client sends them otherwise
    }
    with Server().client().messages.stream(**body) as stream:
        as_expected(stream.get_final_message())


def test_tokens_are_counted() -> None:
    counted = Server().client().messages.count_tokens(**{k: v for k, v in ASK.items() if k != "max_tokens"})
    (job,) = MessagesRequest.read(ASK).prepare(FACTS)
    assert counted.input_tokens == len(job.token_ids)


@pytest.mark.parametrize(
    ("error", "name"),
    [
        (AccessError("x"), "AuthenticationError"),
        (ModelNotFoundError("x"), "NotFoundError"),
        (QuotaError("x", retry_after_s=1), "RateLimitError"),
        (BusyError("x", retry_after_s=1), "OverloadedError"),
        (WorkerError("x"), "InternalServerError"),
    ],
)
def test_errors_have_the_clients_classes(error: TwofoldError, name: str) -> None:
    kind = getattr(anthropic, name, anthropic.InternalServerError)
    with pytest.raises(kind) as caught:
        Server(error=error).client().messages.create(**ASK)
    assert caught.value.body["error"]["message"] == "x"


def test_an_error_in_the_middle_is_raised() -> None:
    stream = Server(error=WorkerError("Gone."), broken=True).client().messages.create(**ASK, stream=True)
    with pytest.raises(anthropic.APIError, match="Gone"):
        list(stream)


def test_facts_are_those_of_a_model_that_thinks() -> None:
    assert isinstance(FACTS, ModelFacts)
    assert FACTS.format.thinking is not None
