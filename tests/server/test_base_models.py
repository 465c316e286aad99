"""A model without a chat template: completions work, and chats are refused with a hint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.server.conftest import TINY
from tests.server.live import live_server
from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.errors import TemplateError
from twofold.fleet.reading import read_file
from twofold.host.paths import CacheFolders

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def base(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> Path:
    return tiny_gguf(replace(TINY, chat_template=None)).path


def test_chats_are_refused_and_completions_accepted(base: Path, tmp_path: Path) -> None:
    with live_server(tmp_path, f"base={base}", "--threads", "1") as live:
        chat = live.post("/v1/chat/completions", {"model": "base", "messages": HELLO, "max_tokens": 2})
        messages = live.post("/v1/messages", {"model": "base", "messages": HELLO, "max_tokens": 2})
        completion = live.post("/v1/completions", {"model": "base", "prompt": "Hello", "max_tokens": 2})
    assert (chat.status_code, messages.status_code, completion.status_code) == (400, 400, 200)
    for refused in (chat, messages):
        error = refused.json()["error"]
        assert error["type"] == "invalid_request_error"
        assert "The model has no chat template" in error["message"]
        assert "--chat-template" in error["message"]


def test_a_template_makes_chats_possible(base: Path, tmp_path: Path) -> None:
    folders = CacheFolders(tmp_path).create()
    with pytest.raises(TemplateError, match="no chat template"):
        read_file(base, folders).tokenizer.apply_chat_template(HELLO)
    tokenizer = read_file(base, folders, "chatml").tokenizer
    assert str(tokenizer.apply_chat_template(HELLO, tokenize=False)).startswith("<|im_start|>user\nHello")
