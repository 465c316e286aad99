"""LangChain's standard tests of its clients, pointed at the server and the model that the environment names.

``test_standard.py`` runs it in an environment of its own: langchain-tests brings plugins of pytest that would change
the other tests.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar, Final

from langchain_anthropic import ChatAnthropic
from langchain_ollama import ChatOllama, OllamaEmbeddings
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from langchain_tests.integration_tests import ChatModelIntegrationTests, EmbeddingsIntegrationTests

URL: Final = os.environ["SUITE_URL"]
MODEL: Final = os.environ["SUITE_MODEL"]
OPENAI: Final[dict[str, Any]] = {"base_url": f"{URL}/v1", "api_key": "none", "model": MODEL, "max_retries": 0}
LIMITS: Final[dict[str, Any]] = {"temperature": 0, "max_tokens": 112}


class Chat(ChatModelIntegrationTests):
    """What all chat clients have in common."""

    client: ClassVar[Any]
    parameters: ClassVar[dict[str, Any]]
    supports_model_override = True
    model_override_value = MODEL
    standard_chat_model_params: ClassVar[dict[str, Any]] = {}

    @property
    def chat_model_class(self) -> Any:
        return self.client

    @property
    def chat_model_params(self) -> dict[str, Any]:
        return self.parameters


class TestOpenAI(Chat):
    client = ChatOpenAI
    parameters: ClassVar[dict[str, Any]] = {**OPENAI, **LIMITS, "stream_usage": True}
    supports_json_mode = True


class TestResponses(Chat):
    client = ChatOpenAI
    parameters: ClassVar[dict[str, Any]] = {**OPENAI, **LIMITS, "use_responses_api": True}
    supports_json_mode = True


class TestAnthropic(Chat):
    client = ChatAnthropic
    parameters: ClassVar[dict[str, Any]] = {
        "base_url": URL,
        "api_key": "none",
        "model": MODEL,
        "max_retries": 0,
    } | LIMITS
    supports_anthropic_inputs = True


class TestOllama(Chat):
    client = ChatOllama
    parameters: ClassVar[dict[str, Any]] = {"base_url": URL, "model": MODEL, "temperature": 0, "num_predict": 112}
    supports_json_mode = True


class TestOpenAIEmbeddings(EmbeddingsIntegrationTests):
    embeddings_class = OpenAIEmbeddings
    embedding_model_params: ClassVar[dict[str, Any]] = {**OPENAI, "check_embedding_ctx_length": False}


class TestOllamaEmbeddings(EmbeddingsIntegrationTests):
    embeddings_class = OllamaEmbeddings
    embedding_model_params: ClassVar[dict[str, Any]] = {"base_url": URL, "model": MODEL}
