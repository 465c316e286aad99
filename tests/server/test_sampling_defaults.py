"""A server's sampling defaults: in every API, and in the lines printed at its start."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.live import LiveServer, live_server
from tests.support.tiny import TinyModel

SAID = [{"role": "user", "content": "hello"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID, "max_tokens": 12},
    "/v1/completions": {"prompt": "hello", "max_tokens": 12},
    "/v1/messages": {"messages": SAID, "max_tokens": 12},
    "/v1/responses": {"input": "hello", "max_output_tokens": 16},
}


LIMIT = 20
UNLIMITED: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "/v1/chat/completions": ({"messages": SAID}, "max_completion_tokens", ("usage", "completion_tokens")),
    "/v1/completions": ({"prompt": "hello"}, "max_tokens", ("usage", "completion_tokens")),
    "/v1/responses": ({"input": "hello"}, "max_output_tokens", ("usage", "output_tokens")),
    "/api/chat": ({"messages": SAID, "stream": False}, "num_predict", ("eval_count",)),
    "/api/generate": ({"prompt": "hello", "stream": False}, "num_predict", ("eval_count",)),
}
"""Bodies without a limit of tokens, the limit's name, and where the reply counts them."""


@pytest.fixture(scope="module")
def warm(tiny: TinyModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    flags = ["--threads", "1", "--temperature", "9", "--top-p", "1", "--kv-cache-memory-bytes", "32M"]
    flags += ["--default-max-tokens", str(LIMIT)]
    with live_server(tmp_path_factory.mktemp("warm"), f"tiny={tiny.path}", *flags) as live:
        yield live


def said(path: str, answer: Any) -> Any:
    match path:
        case "/v1/chat/completions":
            return answer["choices"][0]["message"]["content"]
        case "/v1/completions":
            return answer["choices"][0]["text"]
        case "/v1/messages":
            return answer["content"]
    return answer["output"][0]["content"][0]["text"]


@pytest.mark.parametrize("path", BODIES)
def test_flags_are_the_defaults_of_requests(warm: LiveServer, path: str) -> None:
    body = {"model": "tiny", **BODIES[path]}
    answers = [warm.post(path, {**body, **more}).json() for more in ({}, {}, {"temperature": 0}, {"temperature": 0})]
    default, again, zero, none = (said(path, answer) for answer in answers)
    assert default != again, "drawn at the temperature of the flag"
    assert zero == none, "what a request says goes first"
    if path == "/v1/responses":
        assert [answer["temperature"] for answer in answers] == [9, 9, 0, 0]


@pytest.mark.parametrize("path", UNLIMITED)
def test_the_limit_of_requests_without_one(warm: LiveServer, server: LiveServer, path: str) -> None:
    """By default the end of the context, and OpenAI's 16 tokens for texts; what a request says goes first."""
    body, name, where = UNLIMITED[path]

    def length(live: LiveServer, limit: int | None = None) -> int:
        given = {} if limit is None else {name: limit}
        cold: dict[str, Any] = {"temperature": 0}
        more = {"options": {**cold, **given}} if path.startswith("/api") else {**cold, **given}
        reply = live.post(path, {"model": "tiny", **body, **more}).json()
        for key in where:
            reply = reply[key]
        assert isinstance(reply, int)
        return reply

    assert length(warm) == LIMIT
    assert length(warm, 24) == length(server, 24) == 24
    assert length(server) == 16 if path == "/v1/completions" else length(server) > LIMIT
    if path.startswith("/api"):
        assert length(warm, -1) == length(server)


def test_the_server_prints_its_sampling_defaults(warm: LiveServer, server: LiveServer) -> None:
    assert "sampling defaults: temperature 9, top_p 1, max_tokens 20\n" in warm.log.read_text()
    assert "KV cache 32 MiB, 1 thread\n" in warm.log.read_text(), "without the swap space"
    printed = server.log.read_text()
    assert "sampling defaults: temperature 0.2, top_p 0.9" in printed
    assert "Ready: tiny\n" in printed
    assert "\n  context 512 tokens, KV cache " in printed
    assert (
        server.post("/v1/responses", {"model": "tiny", "input": "hi", "max_output_tokens": 16}).json()["top_p"] == 0.9
    )


def test_a_server_for_other_machines_prints_its_address(tiny: TinyModel, tmp_path: Path) -> None:
    with live_server(tmp_path, f"tiny={tiny.path}", "--threads", "1", "--host", "0.0.0.0", "--api-key", "k") as live:
        printed = live.log.read_text()
    found = re.search(r"from other machines: http://(\S+):(\d+)\n", printed)
    assert found, printed
    assert found[1] not in ("0.0.0.0", "127.0.0.1")
    assert "--allowed-hosts NAME" in printed
