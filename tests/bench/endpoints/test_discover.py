"""The inspection of a server before a load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest

from tests.bench.endpoints.streams import chunk, no_prompts
from twofold.bench.client.target import Reply
from twofold.bench.endpoints.discover import ServerFacts, check_lengths, find_server, first_response
from twofold.bench.endpoints.endpoint import ApiEndpoint, EndpointOptions
from twofold.bench.load.base import Ask
from twofold.core.errors import (
    AccessError,
    BusyError,
    ContextLengthError,
    ForbiddenError,
    NetworkError,
    NotFoundError,
    ParameterError,
    TwofoldError,
    UsageError,
)

ASK = Ask(0, 0.0, 8, 1)
CHAT = ApiEndpoint("chat", EndpointOptions("m"), no_prompts)


@dataclass
class FakeServer:
    """A server with a response for each method and path; others are 404."""

    replies: Mapping[str, Reply]
    asked: list[str] = field(default_factory=list)

    def __call__(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:  # noqa: ARG002
        self.asked.append(f"{method} {path}")
        return self.replies.get(self.asked[-1], (404, {}, b'{"detail":"Not Found"}'))


def listing(*models: str, **more: Any) -> FakeServer:
    body = orjson.dumps({"object": "list", "data": [{"id": model, **more} for model in models]})
    return FakeServer({"GET /v1/models": (200, {"server": "uvicorn"}, body)})


def responding(status: int, body: Any, kind: str = "application/json") -> FakeServer:
    told = body if isinstance(body, bytes) else orjson.dumps(body)
    return FakeServer({"POST /v1/chat/completions": (status, {"content-type": kind}, told)})


def test_the_only_model_needs_no_name() -> None:
    assert find_server(listing("a", max_model_len=512), {}, None) == ServerFacts("a", "uvicorn", 512)


@pytest.mark.parametrize(("owner", "counts"), [("twofold", True), ("vllm", True), ("sglang", True), ("openai", False)])
def test_servers_that_can_report_the_usage_so_far(owner: str, counts: bool) -> None:
    assert find_server(listing("a", owned_by=owner), {}, None).counts is counts


def test_the_context_under_other_names() -> None:
    assert find_server(listing("a", context_length=9), {}, "a").context == 9
    assert find_server(listing("a", meta={"n_ctx": 7}), {}, "a").context == 7
    assert find_server(listing("a", max_model_len="many"), {}, "a").context is None


def test_a_model_that_is_not_there() -> None:
    with pytest.raises(NotFoundError, match="no model 'lama'") as caught:
        find_server(listing("llama", "qwen"), {}, "lama")
    assert caught.value.hint == "Did you mean llama?"
    with pytest.raises(NotFoundError) as caught:
        find_server(listing(*"abcdefghijk"), {}, "nothing")
    assert caught.value.hint == "It has a, b, c, d, e, f, g, h and 3 more."


def test_a_model_may_be_there_without_being_listed() -> None:
    server = listing("a")
    server.replies = {**server.replies, "GET /v1/models/org/b": (200, {}, b'{"id":"org/b","max_model_len":5}')}
    assert find_server(server, {}, "org/b").context == 5


def test_one_of_several_models_must_be_chosen() -> None:
    with pytest.raises(ParameterError, match="2 models") as caught:
        find_server(listing("a", "b"), {}, None)
    assert "a, b" in str(caught.value.hint)


@pytest.mark.parametrize("reply", [(404, {}, b""), (200, {}, b"<html>"), (200, {}, b'{"data":7}'), (500, {}, b"")])
def test_a_missing_list_of_models_is_accepted(reply: Reply) -> None:
    server = FakeServer({"GET /v1/models": reply})
    assert find_server(server, {}, "m") == ServerFacts("m", None, None)
    with pytest.raises(ParameterError, match="does not list"):
        find_server(server, {}, None)


@pytest.mark.parametrize(("status", "kind"), [(401, AccessError), (403, ForbiddenError)])
def test_keys(status: int, kind: type[TwofoldError]) -> None:
    reply: Reply = (status, {}, b'{"error":{"message":"Wrong key."}}')
    for act in (
        lambda: find_server(FakeServer({"GET /v1/models": reply}), {}, "m"),
        lambda: first_response(FakeServer({"POST /v1/chat/completions": reply}), CHAT, ASK),
    ):
        with pytest.raises(kind, match="Wrong key") as caught:
            act()
        assert "--api-key" in str(caught.value.hint)


def test_lengths_that_do_not_fit() -> None:
    facts = ServerFacts("m", None, 100)
    check_lengths(facts, 60, 40)
    check_lengths(ServerFacts("m", None, None), 1 << 20, 1)
    with pytest.raises(ContextLengthError, match="60 and a completion of 41"):
        check_lengths(facts, 60, 41)


def test_a_first_response_whole_and_streamed() -> None:
    usage = {"prompt_tokens": 8, "completion_tokens": 1}
    whole = {"choices": [{"message": {"content": "a"}, "finish_reason": "length"}], "usage": usage}
    assert first_response(responding(200, whole), CHAT, ASK).prompt_tokens == 8
    body = b": hello\n\ndata: " + orjson.dumps(chunk({"content": "a"}, "length", usage=usage)) + b"\n\ndata: [DONE]"
    response = first_response(responding(200, body, "Text/Event-Stream; charset=utf-8"), CHAT, ASK)
    assert (response.text, response.prompt_tokens, response.pings, response.done) == ("a", 8, 1, True)


@pytest.mark.parametrize(
    ("server", "kind", "words"),
    [
        (responding(404, {"detail": "Not Found"}), NotFoundError, "/v1/chat/completions returned 404"),
        (responding(400, {"error": {"message": "ignore_eos is unknown"}}), UsageError, "ignore_eos"),
        (responding(422, {"detail": [{"msg": "bad"}]}), UsageError, "422"),
        (responding(503, {"error": {"message": "full"}}), BusyError, "full"),
        (responding(500, b"oh"), NetworkError, "status 500: oh"),
        (responding(200, b"<html>hello"), NetworkError, "does not match its API"),
        (responding(200, {"error": {"message": "out of memory"}}), NetworkError, "out of memory"),
        (responding(200, b"data: {}\n\n", "text/event-stream"), NetworkError, "ended before"),
    ],
)
def test_failed_first_responses(server: FakeServer, kind: type[TwofoldError], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        first_response(server, CHAT, ASK)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Use 'max_completion_tokens' instead.", "max_completion_tokens"),
        ("ignore_eos: extra inputs are not permitted", "does not support ignore_eos"),
        ("too long", "Change the lengths"),
    ],
)
def test_hints_for_unsupported_fields(said: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        first_response(responding(400, {"error": {"message": said}}), CHAT, ASK)
    assert hint in str(caught.value.hint)


@pytest.mark.parametrize("target", ["https://api.example.org/v1/models", None])
def test_a_redirect_is_named_with_its_target(target: str | None) -> None:
    headers = {} if target is None else {"location": target}
    said = "redirects the request to https://api.example" if target else "names no target"
    models, chat = FakeServer({"GET /v1/models": (301, headers, b"")}), responding(200, {})
    chat.replies = {"POST /v1/chat/completions": (307, headers, b"")}
    for act, status in ((lambda: find_server(models, {}, None), 301), (lambda: first_response(chat, CHAT, ASK), 307)):
        with pytest.raises(UsageError, match=said) as caught:
            act()
        assert f"(status {status})" in str(caught.value)
        assert "redirects are not followed" in str(caught.value.hint)
    assert find_server(models, {}, "m").model == "m", "a server without a list of models may have any"
