"""Clients recognise a prompt that does not fit, each by its own exception. Needs the packages of those clients."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.server.clients.conftest import TINY
from tests.server.live import LiveServer

LONG: Final = "river " * 4000


@pytest.mark.parametrize("responses", [False, True])
def test_langchain_with_openais_api(server: LiveServer, responses: bool) -> None:
    langchain: Any = pytest.importorskip("langchain_openai")
    errors: Any = pytest.importorskip("langchain_core.exceptions")
    given = {"base_url": f"{server.url}/v1", "api_key": "none", "model": TINY, "max_retries": 0}
    chat = langchain.ChatOpenAI(**given, use_responses_api=responses)
    with pytest.raises(errors.ContextOverflowError):
        chat.invoke(LONG)
    with pytest.raises(errors.ContextOverflowError):
        list(chat.stream(LONG))


def test_langchain_with_anthropics_api(server: LiveServer) -> None:
    langchain: Any = pytest.importorskip("langchain_anthropic")
    errors: Any = pytest.importorskip("langchain_core.exceptions")
    given = {"base_url": server.url, "api_key": "none", "model": TINY, "max_retries": 0, "max_tokens": 5}
    with pytest.raises(errors.ContextOverflowError):
        langchain.ChatAnthropic(**given).invoke(LONG)


@pytest.mark.parametrize(("model", "path"), [(f"openai/{TINY}", "/v1"), (f"anthropic/{TINY}", "")])
def test_litellm(server: LiveServer, model: str, path: str) -> None:
    litellm: Any = pytest.importorskip("litellm")
    with pytest.raises(litellm.ContextWindowExceededError):
        litellm.completion(
            model=model, api_base=server.url + path, api_key="none", messages=[{"role": "user", "content": LONG}]
        )
