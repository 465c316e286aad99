"""A server with a KV store is stopped and started again: its models load what they had computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.server.live import live_server
from tests.support.tiny import TinyModel, TinyOptions

CHAT: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "abc " * 200}],
    "temperature": 0,
    "max_tokens": 4,
    "ignore_eos": True,
}


def test_a_restarted_server_loads_prompts_and_says_the_same(tiny_gguf: Any, tmp_path: Path) -> None:
    made: TinyModel = tiny_gguf(TinyOptions("llama", context=2048))
    said = []
    for start in range(2):
        with live_server(tmp_path, f"tiny={made.path}", "--threads", "1", "--kv-store", str(tmp_path / "kv")) as server:
            answer = server.post("/v1/chat/completions", CHAT).json()
            details = answer["usage"]["prompt_tokens_details"]
            assert ("cache_load_tokens" in details) == bool(start)
            if start:
                assert details["cache_load_tokens"] == details["cached_tokens"] >= 256
            said.append(answer["choices"][0]["message"]["content"])
            kept = server.post("/v1/chat/completions", CHAT | {"prompt_cache_retention": "24h"})
            assert kept.status_code == 200
    assert said[0] == said[1]


def test_a_day_without_a_store_is_refused_with_the_way_out(tiny_gguf: Any, tmp_path: Path) -> None:
    made: TinyModel = tiny_gguf(TinyOptions("llama", context=2048))
    with live_server(tmp_path, f"tiny={made.path}", "--threads", "1") as server:
        answer = server.post("/v1/chat/completions", CHAT | {"prompt_cache_retention": "24h"})
    assert answer.status_code == 400
    assert "--kv-store" in answer.text
