"""How far a chat is before its first token."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson
import pytest

from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel


@pytest.fixture(scope="module")
def narrow(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server for one sequence at a time, with small steps."""
    limits = ("--max-num-seqs", "1", "--max-num-batched-tokens", "16", "--token-budget", "fixed")
    folder = tmp_path_factory.mktemp("narrow")
    with live_server(folder, f"tiny={tiny.path}", "--threads", "1", *limits) as live:
        yield live


def chat(text: str, tokens: int, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": text}]
    return {"messages": messages, "max_tokens": tokens, "ignore_eos": True, "stream": True, **more}


def chunks(server: LiveServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    reply = server.post("/v1/chat/completions", body)
    assert reply.status_code == 200, reply.text
    return [orjson.loads(line[6:]) for line in reply.text.split("\n\n") if line.startswith("data: {")]


def test_a_queued_chat_is_told_its_place_and_then_its_prefill(narrow: LiveServer) -> None:
    with ThreadPoolExecutor() as others:
        running = [others.submit(chunks, narrow, chat(f"{number} first", 250)) for number in range(2)]
        asked = chat("a " * 100, 2, twofold={"progress": True})
        found = chunks(narrow, asked)
        assert all(each.result() for each in running)
    told = [chunk["twofold"] for chunk in found if not chunk["choices"]]
    first = next(
        place for place, chunk in enumerate(found) if chunk["choices"] and chunk["choices"][0]["delta"].get("content")
    )
    assert all(chunk["choices"] for chunk in found[first:]), "nothing is told after the first token"
    assert told
    states = [one["progress"]["state"] for one in told]
    assert states == sorted(states, reverse=True), "queued comes before prefill"
    assert states[0] == "queued"
    places = [one["progress"]["ahead"] for one in told if one["progress"]["state"] == "queued"]
    assert places == sorted(places, reverse=True)
    times = [one["at_ms"] for one in told]
    assert times == sorted(times)


def test_progress_needs_a_stream_and_is_not_told_unless_asked(narrow: LiveServer) -> None:
    refused = narrow.post("/v1/chat/completions", {**chat("a", 1, twofold={"progress": True}), "stream": False})
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "twofold.progress")
    assert all(chunk["choices"] for chunk in chunks(narrow, chat("a " * 100, 2)))
