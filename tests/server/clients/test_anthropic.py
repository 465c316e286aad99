"""Anthropic's client and /v1/messages: whole, streamed, with tools, thinking, structured output, counts and errors."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from typing import Any, Final

import anthropic
import pytest
from pydantic import BaseModel

from tests.api.anthropic.claude_code import first_turn, later_turn
from tests.server.clients.conftest import CODER, THINKER, TINY, Guarded, async_anthropic
from tests.server.clients.test_openai_chat import CITY
from tests.server.clients.test_openai_errors import busy
from tests.server.live import LiveServer

ASK: Final[dict[str, Any]] = {
    "model": TINY,
    "max_tokens": 12,
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": "hi"}],
}
WEATHER: Final[Any] = {"name": "weather", "description": "Tells the weather.", "input_schema": CITY}
CALLED: Final[Any] = {
    "tools": [WEATHER],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "max_tokens": 200,
}


class City(BaseModel):
    city: str


def prompt_tokens(message: Any) -> int:
    """All of them, also where earlier tests left their beginning in the prefix cache."""
    return int(message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0))


def text_of(message: Any) -> str:
    return "".join(block.text for block in message.content if block.type == "text")


def test_models(claude: Any) -> None:
    assert [model.id for model in claude.models.list()] == [TINY, THINKER, CODER]
    assert claude.models.retrieve(TINY).display_name == TINY
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("tyni")


def test_a_whole_message(claude: Any) -> None:
    message = claude.messages.create(**ASK)
    assert (message.role, message.stop_reason, message.usage.output_tokens) == ("assistant", "max_tokens", 12)
    assert message.id.startswith("msg_")
    assert text_of(message)
    assert message.usage.service_tier == "standard"


def test_a_stream_says_the_same(claude: Any) -> None:
    whole = claude.messages.create(**ASK)
    with claude.messages.create(**ASK, stream=True) as stream:
        kinds = [event.type for event in stream]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    with claude.messages.stream(**ASK) as helped:
        text = "".join(helped.text_stream)
        final = helped.get_final_message()
    assert text == text_of(final) == text_of(whole)
    assert final.usage.output_tokens == 12
    assert final.stop_reason == "max_tokens"


def test_the_asynchronous_client(server: LiveServer, claude: Any) -> None:
    async def told() -> tuple[str, str]:
        async with async_anthropic(server) as remote:
            whole = await remote.messages.create(**ASK)
            async with remote.messages.stream(**ASK) as stream:
                return text_of(whole), "".join([text async for text in stream.text_stream])

    whole, streamed = asyncio.run(told())
    assert whole == streamed == text_of(claude.messages.create(**ASK))


def test_a_stop_sequence(claude: Any) -> None:
    whole = text_of(claude.messages.create(**ASK))
    stop = whole[6:8]
    message = claude.messages.create(**ASK, stop_sequences=["never", stop])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert text_of(message) == whole[: whole.index(stop)]


def test_system_prompts_of_both_kinds(claude: Any) -> None:
    text = claude.messages.create(**ASK, system="be brief")
    blocks = claude.messages.create(**ASK, system=[{"type": "text", "text": "be brief"}])
    assert text_of(text) == text_of(blocks)
    alone = claude.messages.create(**ASK)
    assert prompt_tokens(text) > prompt_tokens(alone)


def test_a_tool_round_trip(claude: Any) -> None:
    first = claude.messages.create(**ASK | CALLED)
    call = first.content[-1]
    assert (first.stop_reason, call.type, call.name) == ("tool_use", "tool_use", "weather")
    assert call.input["city"] in ("Ulm", "Bonn")
    result = {"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "sunny"}]}
    turns = [*ASK["messages"], {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
    second = claude.messages.create(**ASK | {"messages": turns, "tools": [WEATHER]})
    assert second.stop_reason == "max_tokens"
    with claude.messages.stream(**ASK | CALLED) as stream:
        parts = [event.partial_json for event in stream if event.type == "input_json"]
        again = stream.get_final_message().content[-1]
    assert json.loads("".join(parts)) == again.input == call.input
    named = {"type": "tool", "name": "weather", "disable_parallel_tool_use": True}
    assert claude.messages.create(**ASK | CALLED | {"tool_choice": named}).content[-1].name == "weather"


def test_tokens_are_counted(claude: Any) -> None:
    asked = {name: ASK[name] for name in ("model", "messages")} | {"system": "be brief", "tools": [WEATHER]}
    counted = claude.messages.count_tokens(**asked).input_tokens
    usage = claude.messages.create(**ASK | asked).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def test_thinking_ends_with_its_budget(claude: Any) -> None:
    asked: Any = ASK | {"model": THINKER, "max_tokens": 60, "thinking": {"type": "enabled", "budget_tokens": 5}}
    message = claude.messages.create(**asked)
    thought, said = message.content
    assert (thought.type, said.type) == ("thinking", "text")
    assert thought.thinking
    with claude.messages.stream(**asked) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_message()
    assert {"thinking", "signature", "text"} <= kinds
    assert [block.type for block in final.content] == ["thinking", "text"]
    turns = [*ASK["messages"], {"role": "assistant", "content": final.content}, *ASK["messages"]]
    assert claude.messages.create(**asked | {"messages": turns}).usage.input_tokens > message.usage.input_tokens


def test_thinking_turned_off(claude: Any) -> None:
    message = claude.messages.create(**ASK | {"model": THINKER, "thinking": {"type": "disabled"}})
    assert [block.type for block in message.content] == ["text"]


def test_a_form_is_parsed(claude: Any) -> None:
    parsed = claude.messages.parse(**ASK | {"max_tokens": 200}, output_format=City).parsed_output
    assert isinstance(parsed, City)


def test_beta_clients(claude: Any) -> None:
    """They call the same path with ?beta=true."""
    message = claude.beta.messages.create(**ASK, betas=["context-management-2025-06-27"])
    assert text_of(message) == text_of(claude.messages.create(**ASK))
    with claude.beta.messages.stream(**ASK) as stream:
        assert text_of(stream.get_final_message()) == text_of(message)
    counted = claude.beta.messages.count_tokens(model=TINY, messages=ASK["messages"])
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens


@pytest.mark.parametrize("turn", [first_turn, later_turn], ids=["first", "later"])
def test_claude_codes_bodies(server: LiveServer, turn: Any) -> None:
    body = turn() | {"model": TINY, "max_tokens": 4, "stream": False}
    reply = server.post("/v1/messages?beta=true", body, headers={"anthropic-version": "2023-06-01"})
    assert reply.status_code == 200, reply.text
    assert reply.json()["usage"]["output_tokens"] == 4


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"extra_body": {"temperature": 2}}, "temperature"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "image"),
        (
            {
                "tools": [{"type": "web_search_20250305", "name": "web_search"}],
                "tool_choice": {"type": "tool", "name": "web_search"},
            },
            r"tools\[0\].type",
        ),
        ({"extra_body": {"temprature": 1}}, "temprature"),
        ({"messages": [*ASK["messages"], {"role": "assistant", "content": "so "}]}, "assistant"),
    ],
)
def test_bad_requests_name_the_field(claude: Any, change: Any, named: str) -> None:
    with pytest.raises(anthropic.BadRequestError, match=named) as caught:
        claude.messages.create(**ASK | change)
    body: Any = caught.value.body
    assert body["error"]["type"] == "invalid_request_error"
    assert caught.value.request_id == body["request_id"]


def test_an_unknown_model(claude: Any) -> None:
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(**ASK | {"model": "tyni"})


def test_a_body_that_is_too_large(claude: Any) -> None:
    with pytest.raises(anthropic.RequestTooLargeError):
        claude.messages.create(**ASK | {"messages": [{"role": "user", "content": "x" * (5 << 20)}]})


def test_a_wrong_key(guarded: Guarded) -> None:
    with guarded.anthropic("wrong") as claude, pytest.raises(anthropic.AuthenticationError):
        claude.messages.create(**ASK)
    with guarded.anthropic(api_key=None, auth_token=guarded.keys["free"]) as claude:
        assert text_of(claude.messages.create(**ASK))


def test_a_full_server(guarded: Guarded) -> None:
    with busy(guarded), guarded.anthropic() as claude:
        with pytest.raises(anthropic.OverloadedError) as caught:
            claude.messages.create(**ASK)
        assert caught.value.status_code == 529
        assert 1 <= int(caught.value.response.headers["retry-after"]) <= 120


def test_requests_to_a_full_server_are_retried(guarded: Guarded) -> None:
    with guarded.anthropic(max_retries=4) as claude:
        with busy(guarded):
            told: list[Any] = []
            asking = threading.Thread(target=lambda: told.append(claude.messages.create(**ASK)))
            asking.start()
            time.sleep(0.3)
            assert told == []
        asking.join(60)
    assert text_of(told[0])


def test_disconnecting_from_a_stream(guarded: Guarded) -> None:
    with guarded.anthropic() as claude:
        with claude.messages.stream(**ASK | {"max_tokens": 8000}) as stream:
            next(iter(stream.text_stream))
        assert text_of(claude.messages.create(**ASK)), "the only place is free again"


def test_a_completion_continues_its_prefix(claude: Any) -> None:
    """The prompt is that of the question, followed by the prefix; the reply has only the rest."""
    asked: dict[str, Any] = {"model": TINY, "max_tokens": 8, "extra_body": {"temperature": 0}}
    question = {"role": "user", "content": "hi"}
    plain = claude.messages.create(**asked, messages=[question])
    begun = claude.messages.create(**asked, messages=[question, {"role": "assistant", "content": "x"}])
    assert sum_of(begun) == sum_of(plain) + 1
    with claude.messages.stream(**asked, messages=[question, {"role": "assistant", "content": "x"}]) as stream:
        assert stream.get_final_text() == text_of(begun)
    counted = claude.messages.count_tokens(model=TINY, messages=[question, {"role": "assistant", "content": "x"}])
    assert counted.input_tokens == sum_of(begun)
    with pytest.raises(anthropic.BadRequestError, match="white space"):
        claude.messages.create(**asked, messages=[question, {"role": "assistant", "content": "x "}])


def sum_of(message: Any) -> int:
    """All tokens of a message's prompt."""
    usage = message.usage
    return int(usage.input_tokens + usage.cache_creation_input_tokens + usage.cache_read_input_tokens)
