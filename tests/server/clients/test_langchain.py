"""LangChain's chat model and embeddings with OpenAI's API. Needs the package langchain-openai."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import BaseModel

from tests.server.clients.conftest import TINY
from tests.server.live import LiveServer

langchain = pytest.importorskip("langchain_openai", reason="the package langchain-openai is not installed")


class Ready(BaseModel):
    """Whether the server is ready."""

    ok: bool


@pytest.fixture
def chat(server: LiveServer) -> Any:
    return langchain.ChatOpenAI(
        base_url=f"{server.url}/v1", api_key="none", model=TINY, temperature=0, max_tokens=200, max_retries=0
    )


def test_whole_and_streamed(chat: Any) -> None:
    short = chat.bind(max_tokens=8)
    whole = short.invoke("hi")
    assert whole.content == "".join(chunk.content for chunk in short.stream("hi"))
    assert whole.usage_metadata["output_tokens"] == 8
    assert whole.response_metadata["finish_reason"] == "length"


def test_batches(chat: Any) -> None:
    told = chat.bind(max_tokens=4).batch(["hi", "you", "hi"])
    assert told[0].content == told[2].content


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_structured_output(chat: Any, method: str) -> None:
    found = chat.with_structured_output(Ready, method=method).invoke("are you?")
    assert isinstance(found, Ready)


def test_tools(chat: Any) -> None:
    called = chat.bind_tools([Ready], tool_choice="any", parallel_tool_calls=False).invoke("are you?")
    (call,) = called.tool_calls
    assert call["name"] == "Ready"
    assert isinstance(call["args"]["ok"], bool)


def test_the_responses_api(server: LiveServer) -> None:
    chat = langchain.ChatOpenAI(
        base_url=f"{server.url}/v1",
        api_key="none",
        model=TINY,
        temperature=0,
        max_tokens=16,
        max_retries=0,
        use_responses_api=True,
    )
    whole = chat.invoke("hi")
    assert whole.text == "".join(chunk.text for chunk in chat.stream("hi"))


def test_embeddings(server: LiveServer) -> None:
    embeddings = langchain.OpenAIEmbeddings(
        base_url=f"{server.url}/v1", api_key="none", model=TINY, check_embedding_ctx_length=False, max_retries=0
    )
    first, second = embeddings.embed_documents(["the river", "a sea"])
    assert len(first) == len(second) == 64
    assert first == pytest.approx(embeddings.embed_query("the river"))
