"""Chats that go on from the tokens of an answer that has begun."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import orjson
import pytest

from tests.server.live import LiveServer

CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hi there"}],
    "seed": 11,
    "temperature": 1.3,
    "ignore_eos": True,
    "return_token_ids": True,
}
COUNT = 24


def ask(server: LiveServer, **more: Any) -> dict[str, Any]:
    reply = server.post("/v1/chat/completions", {**CHAT, **more})
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


def test_an_answer_goes_on_from_any_of_its_tokens_as_it_did(server: LiveServer) -> None:
    """The tiny model samples bytes, so most places are within a character."""
    whole = ask(server, max_tokens=COUNT)["choices"][0]
    ids, text = whole["token_ids"], whole["message"]["content"]
    assert len(ids) == COUNT
    rests = []
    for place in range(1, COUNT):
        more = {"max_tokens": COUNT - place, "twofold": {"answer_token_ids": ids[:place]}}
        reply = ask(server, **more)
        choice = reply["choices"][0]
        assert choice["token_ids"] == ids[place:]
        assert text.endswith(choice["message"]["content"])
        rests.append(choice["message"]["content"])
        assert reply["usage"]["completion_tokens"] == COUNT - place
    assert all(longer.endswith(shorter) for longer, shorter in pairwise(rests))
    streamed = server.post("/v1/chat/completions", {**CHAT, **more, "stream": True}).text
    events = [orjson.loads(line[6:]) for line in streamed.split("\n\n") if line.startswith("data: {")]
    assert "".join(event["choices"][0]["delta"].get("content", "") for event in events) == rests[-1]


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"twofold": {"answer_token_ids": [299_999]}}, "twofold.answer_token_ids"),
        ({"twofold": {"answer_token_ids": [-1]}}, "twofold.answer_token_ids[0]"),
        ({"twofold": {"answer_token_ids": []}}, "twofold.answer_token_ids"),
        ({"twofold": {"answer_token_ids": [1]}, "add_generation_prompt": False}, "twofold.answer_token_ids"),
        (
            {"twofold": {"answer_token_ids": [1]}, "response_format": {"type": "json_object"}},
            "twofold.answer_token_ids",
        ),
        ({"twofold": {"answer_token_ids": [1] * 600}}, None),
    ],
    ids=["outside", "negative", "none", "without prompt", "structured", "too long"],
)
def test_impossible_answers_are_refused(server: LiveServer, more: dict[str, Any], param: str | None) -> None:
    refused = server.post("/v1/chat/completions", {**CHAT, "ignore_eos": False, **more, "max_tokens": 2})
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == param
