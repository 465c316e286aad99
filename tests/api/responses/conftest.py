"""A tokenizer whose template has tools and thinking, and completions made of given texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from tests.api import completions
from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.openai.responses.request import ResponsesRequest

TEMPLATE = """
{%- for tool in tools or [] %}tool {{ tool | tojson }}
{% endfor %}
{%- for m in messages %}{{ m.role }}: {{ m.reasoning_content or '' }}{{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}{# <think></think> #}"""
HEAD = ReplyHead("r1", 1_700_000_000, "tiny", "default")
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="session")
def facts() -> ModelFacts:
    return completions.facts_of(TEMPLATE)


def read(**fields: Any) -> ResponsesRequest:
    return ResponsesRequest.read({"model": "tiny", "input": "hello", **fields})


@dataclass(frozen=True)
class SampleCompletion(completions.SampleCompletion):
    """A completion of a prompt of 10 tokens."""

    prompt_tokens: int = 10


def streamed(request: ResponsesRequest, completion: SampleCompletion) -> bytes:
    return completion.streamed(request, HEAD)
