"""A tokenizer whose template has tools and thinking, and completions made of given texts."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import UNSET

from tests.api.completions import SampleCompletion, data_of, facts_of
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import ModelFacts, ReplyHead

TEMPLATE = (
    "{% for tool in tools or [] %}tool {{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content or '' }}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '\n' }}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
HEAD = ReplyHead("0123abcd", 1_700_000_000, "tiny", "default")
WEATHER = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}


@pytest.fixture(scope="session")
def plain() -> ModelFacts:
    """A model that does not think."""
    return facts_of(TEMPLATE)


@pytest.fixture(scope="session")
def thinker() -> ModelFacts:
    return facts_of(THINKING)


def body(**fields: Any) -> dict[str, Any]:
    """A body; a field that is None is left out."""
    whole = {"model": "tiny", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}], **fields}
    return {name: value for name, value in whole.items() if value is not None}


def read(**fields: Any) -> MessagesRequest:
    return MessagesRequest.read(body(**fields))


def streamed(request: MessagesRequest, completion: SampleCompletion, extra: Any = UNSET) -> bytes:
    return completion.streamed(request, HEAD, extra)


def replied(request: MessagesRequest, completion: SampleCompletion) -> dict[str, Any]:
    body: dict[str, Any] = data_of(request.reply(HEAD, [completion.output], completion.facts))
    return body
