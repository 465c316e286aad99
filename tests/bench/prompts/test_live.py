"""A Twofold server by every endpoint: prompts have the requested length, as the server counts it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import httpx2
import pytest

from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel, TinyOptions
from twofold.bench.client.target import Exchange, Reply
from twofold.bench.endpoints.discover import find_server, first_response
from twofold.bench.endpoints.endpoint import ENDPOINTS, ApiEndpoint, EndpointOptions
from twofold.bench.load.base import Ask, PromptMessage
from twofold.bench.prompts.local import local_counter
from twofold.bench.prompts.prompter import make_prompter
from twofold.bench.prompts.remote import remote_counter, usage_counter

HELLO = (PromptMessage("user", "Hello there"),)
TINY = TinyOptions("llama", vocab=300, context=512)


@pytest.fixture(scope="module")
def server(
    tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("server")
    with live_server(folder, f"tiny={tiny_gguf(TINY).path}", "--threads", "1") as live:
        yield live


@pytest.fixture
def exchange(server: LiveServer) -> Iterator[Exchange]:
    with server.client() as client:

        def ask(method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
            response: httpx2.Response = client.request(method, path, content=body, headers=dict(headers))
            return response.status_code, dict(response.headers), response.content

        yield ask


def test_the_server_reports_its_properties(exchange: Exchange) -> None:
    facts = find_server(exchange, {}, None)
    assert (facts.model, facts.context) == ("tiny", 512)


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize("stream", [True, False])
def test_prompts_are_as_long_as_asked(exchange: Exchange, name: str, stream: bool) -> None:
    spoken = name != "messages"
    options = EndpointOptions(
        "tiny", stream=stream, ignore_eos=spoken, extra={"return_token_ids": True} if spoken else {}
    )
    counter = remote_counter(exchange, name, options)
    prompter = make_prompter(counter, chat=name != "completions", seed=4)
    assert prompter.recipe.exact
    endpoint = ApiEndpoint(name, options, prompter)
    history: tuple[PromptMessage, ...] = ()
    before = 0
    for turn, tokens in enumerate((90, 60)):
        ask = Ask(turn, 0.0, tokens, 5, history=history, turn=turn)
        response = first_response(exchange, endpoint, ask)
        assert (response.prompt_tokens, response.done, response.streamed) == (before + tokens, True, stream)
        if spoken:
            assert (response.completion_tokens, sum(response.tokens)) == (5, 5)
        history = (*prompter(ask), PromptMessage("assistant", "XYZ"))
        before += tokens + 3


@pytest.mark.parametrize("name", ["chat", "completions"])
def test_the_tokens_of_every_event_are_known(exchange: Exchange, name: str) -> None:
    facts = find_server(exchange, {}, None)
    assert facts.counts
    endpoint = ApiEndpoint(name, EndpointOptions("tiny", ignore_eos=True, usage_each=True), lambda _: HELLO)
    response = first_response(exchange, endpoint, Ask(0, 0.0, 8, 12))
    assert response.completion_tokens == sum(response.tokens) == 12
    assert min(response.tokens) > 0


def test_the_usage_and_the_model_file_agree_with_the_server(
    exchange: Exchange, tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path: Path
) -> None:
    usage = usage_counter(exchange, "chat", EndpointOptions("tiny"))
    local = local_counter(str(tiny_gguf(TINY).path), chat=True, models=tmp_path)
    asked = (PromptMessage("user", "Hello there"), PromptMessage("assistant", "Hi"), PromptMessage("user", "Go on"))
    assert usage.count(asked) == local.count(asked)
