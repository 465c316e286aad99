"""Clients recognise a prompt that does not fit, each by its own exception. Needs the packages of those clients."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.server.clients.conftest import TINY
from tests.server.live import LiveServer

pytestmark = pytest.mark.filterwarnings("ignore")  # the clients' own: of their imports, and of what they leave open
LONG: Final = "river " * 4000
PYDANTIC: Final = {
    "chat": ("openai", "OpenAIChatModel", "OpenAIProvider", "/v1"),
    "responses": ("openai", "OpenAIResponsesModel", "OpenAIProvider", "/v1"),
    "anthropic": ("anthropic", "AnthropicModel", "AnthropicProvider", ""),
}


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


@pytest.mark.parametrize(("kind", "path"), [("openai", "/v1"), ("anthropic", "")])
def test_litellm_falls_back(server: LiveServer, kind: str, path: str) -> None:
    litellm: Any = pytest.importorskip("litellm")
    small = {"model": f"{kind}/{TINY}", "api_base": server.url + path, "api_key": "none"}
    models = [
        {"model_name": "small", "litellm_params": small},
        {"model_name": "large", "litellm_params": {**small, "mock_response": "from the large one"}},
    ]
    router = litellm.Router(models, context_window_fallbacks=[{"small": ["large"]}], num_retries=0)
    reply = router.completion("small", [{"role": "user", "content": LONG}])
    assert reply.choices[0].message.content == "from the large one"


@pytest.mark.parametrize("api", PYDANTIC)
def test_pydantic_ai(server: LiveServer, api: str) -> None:
    module, model, provider, path = PYDANTIC[api]
    agents: Any = pytest.importorskip("pydantic_ai", minversion="2.68")
    exceptions: Any = pytest.importorskip("pydantic_ai.exceptions")
    models: Any = pytest.importorskip(f"pydantic_ai.models.{module}")
    providers: Any = pytest.importorskip(f"pydantic_ai.providers.{module}")
    given = getattr(providers, provider)(base_url=server.url + path, api_key="none")
    with pytest.raises(exceptions.ModelContextWindowExceededError):
        agents.Agent(getattr(models, model)(TINY, provider=given)).run_sync(LONG)
