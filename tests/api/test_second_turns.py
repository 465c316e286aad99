"""The second turn of a session after a tool call, with the fields that each client sends: the server refuses none, and
the prompt begins with the prompt of the first turn, so that the prefix cache serves it."""

from __future__ import annotations

from typing import Any, Final

import pytest

from tests.api.completions import facts_of
from tests.server.compatibility.table import PLAIN
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.fields import ignoring
from twofold.api.ollama.requests import OllamaChatRequest
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.responses.request import ResponsesRequest

FACTS: Final = facts_of(PLAIN)
SCHEMA: Final = {"type": "object", "properties": {"city": {"type": "string"}}}
TEXT: Final = '{"city": "Paris"}'
HI: Final[dict[str, Any]] = {"role": "user", "content": "Weather?"}
CHAT_TOOLS: Final = [{"type": "function", "function": {"name": "f", "description": "A", "parameters": SCHEMA}}]
CHAT: Final[dict[str, Any]] = {"model": "m", "tools": CHAT_TOOLS, "stream": True}
RESPONSES: Final[dict[str, Any]] = {
    "model": "m",
    "tools": [{"type": "function", "name": "f", "description": "A", "strict": False, "parameters": SCHEMA}],
}
MESSAGES: Final[dict[str, Any]] = {
    "model": "m",
    "max_tokens": 9,
    "tools": [{"name": "f", "description": "A", "input_schema": SCHEMA}],
}
CODEX_TOOLS: Final = [
    *RESPONSES["tools"],
    {"type": "namespace", "name": "n", "description": "A", "tools": RESPONSES["tools"]},
    {"type": "web_search", "external_web_access": False},
]
CALL: Final = {"id": "c", "type": "function", "function": {"name": "f", "arguments": TEXT}}
USE: Final = {"type": "tool_use", "id": "c", "name": "f", "input": {"city": "Paris"}}
RESULT: Final = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "sunny"}]}
ITEM: Final = {"type": "function_call", "call_id": "c", "name": "f", "arguments": TEXT}
OUTPUT: Final = {"type": "function_call_output", "call_id": "c", "output": "sunny"}

TURNS: Final[dict[str, tuple[Any, dict[str, Any], dict[str, Any], list[Any], list[str]]]] = {
    "opencode, Continue": (
        ChatRequest,
        CHAT | {"max_tokens": 9, "tool_choice": "auto", "stream_options": {"include_usage": True}},
        HI,
        [
            {"role": "assistant", "content": "", "tool_calls": [CALL]},
            {"role": "tool", "content": "a", "tool_call_id": "c"},
        ],
        [],
    ),
    "LiteLLM": (
        ChatRequest,
        CHAT,
        HI,
        [
            {"role": "assistant", "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "name": "f", "content": "a"},
        ],
        [],
    ),
    "pydantic-ai": (
        ChatRequest,
        CHAT | {"max_completion_tokens": 9},
        HI,
        [
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "a"},
            {"role": "system", "content": "Please return text or call a tool."},
        ],
        [],
    ),
    "another server's reply": (
        ChatRequest,
        CHAT,
        HI | {"images": []},
        [
            {
                "role": "assistant",
                "content": None,
                "partial": False,
                "reasoning": {"text": "I look it up."},
                "audio": None,
                "function_call": "",
                "refusal": None,
                "tool_calls": [CALL | {"index": 0}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "a"},
        ],
        [],
    ),
    "Codex": (
        ResponsesRequest,
        {
            **RESPONSES,
            "tools": CODEX_TOOLS,
            "reasoning": {"summary": "auto"},
            "store": False,
            "prompt_cache_key": "k",
            "include": ["reasoning.encrypted_content"],
            "client_metadata": {"x-codex-installation-id": "1"},
        },
        {"type": "message", "id": "i", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
        [ITEM | {"id": "i", "status": "completed"}, OUTPUT],
        ["client_metadata", "tools[1] of type namespace", "tools[2] of type web_search"],
    ),
    "OpenAI's and LangChain's responses": (
        ResponsesRequest,
        RESPONSES,
        HI | {"type": "message"},
        [
            ITEM | {"id": "i", "status": "completed"},
            OUTPUT,
            {
                "type": "message",
                "id": "i",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "Sunny.", "annotations": [], "logprobs": []}],
            },
            HI,
        ],
        [],
    ),
    "Claude Code": (
        MessagesRequest,
        {
            **MESSAGES,
            "metadata": {"user_id": "u"},
            "thinking": {"type": "adaptive"},
            "output_config": {"effort": "high"},
            "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            "system": [{"type": "text", "text": "A", "cache_control": {"type": "ephemeral"}}],
        },
        HI,
        [{"role": "assistant", "content": [USE]}, RESULT],
        ["metadata.user_id"],
    ),
    "Anthropic's tool runner": (
        MessagesRequest,
        MESSAGES | {"thread": {"type": "create"}},
        HI,
        [{"role": "assistant", "content": [USE | {"caller": None, "toolset_name": None}]}, RESULT],
        ["thread"],
    ),
    "LiteLLM by Ollama's API": (
        OllamaChatRequest,
        {"model": "m", "tools": CHAT_TOOLS, "stream": False, "options": {"num_predict": 9, "num_ctx": 0}},
        HI | {"images": []},
        [
            {
                "role": "assistant",
                "content": "",
                "images": [],
                "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": {"city": "Paris"}}}],
            },
            {"role": "tool", "content": "sunny", "images": [], "tool_call_id": "c"},
        ],
        [],
    ),
}


def prompt_of(reader: Any, body: dict[str, Any], turns: list[Any]) -> tuple[tuple[int, ...], list[str]]:
    key = "input" if reader is ResponsesRequest else "messages"
    with ignoring(unknown=False) as ignored:
        request = reader.read(body | {key: turns})
        return request.prepare(FACTS)[0].token_ids, sorted(ignored.shown)


@pytest.mark.parametrize("client", TURNS)
def test_a_second_turn_is_read_and_goes_on_from_the_first(client: str) -> None:
    reader, body, first, then, named = TURNS[client]
    begun, _ = prompt_of(reader, body, [first])
    whole, ignored = prompt_of(reader, body, [first, *then])
    assert ignored == named
    question = FACTS.tokenizer.encode("Weather?")
    end = max(at for at in range(len(begun)) if begun[at : at + len(question)] == tuple(question)) + len(question)
    assert whole[:end] == begun[:end]
