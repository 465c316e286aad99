"""Any JSON as a body, or as a part of one: it is read, or refused by a parameter's name."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.completions import CALL, data_of
from tests.api.responses.conftest import HEAD, WEATHER, SampleCompletion
from twofold.api.base import ModelFacts
from twofold.api.openai.responses.request import InputTokensRequest, ResponsesRequest
from twofold.core.errors import ParameterError, TwofoldError

FIELDS = [
    "include",
    "input",
    "instructions",
    "max_output_tokens",
    "max_tool_calls",
    "metadata",
    "model",
    "parallel_tool_calls",
    "stream",
    "previous_response_id",
    "prompt_cache_options",
    "reasoning",
    "service_tier",
    "store",
    "temperature",
    "text",
    "tool_choice",
    "tools",
    "top_logprobs",
    "top_p",
    "truncation",
    "user",
    "twofold",
    "background",
    "conversation",
    "stream_options",
    "seed",
    "priority",
]
INNER = [
    "type",
    "role",
    "content",
    "id",
    "status",
    "text",
    "call_id",
    "name",
    "arguments",
    "output",
    "summary",
    "encrypted_content",
    "mode",
    "ttl",
    "effort",
    "format",
    "schema",
    "strict",
    "parameters",
    "tools",
    "explain",
    "caller",
    "phase",
    "annotations",
    "prompt_cache_breakpoint",
]
WORDS = [
    "message",
    "function",
    "function_call",
    "function_call_output",
    "reasoning",
    "item_reference",
    "user",
    "assistant",
    "system",
    "input_text",
    "output_text",
    "refusal",
    "json_schema",
    "json_object",
    "auto",
    "required",
    "none",
    "allowed_tools",
    "explicit",
    "30m",
    "low",
    "completed",
    "weather",
]
PLAIN = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5), st.sampled_from(WORDS)
)
JSON = st.recursive(
    PLAIN,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(INNER), inner, max_size=5),
    max_leaves=12,
)
ITEMS = st.lists(
    st.fixed_dictionaries({"type": st.sampled_from(WORDS[:6])}, optional=dict.fromkeys(INNER[1:12], JSON)), max_size=3
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=4), ITEMS)
def test_any_body_is_read_or_refused(facts: ModelFacts, body: dict[str, Any], items: list[Any]) -> None:
    for whole in (body, {"input": "hi"} | body, {"tools": [WEATHER]} | body | {"input": items}):
        for kind in (ResponsesRequest, InputTokensRequest):
            try:
                request = kind.read(whole)
            except ParameterError as error:
                refused = error.param, str(error)
                assert refused[0]
                assert len(refused[1]) < 1000
            else:
                _use(request, facts)


def _use(request: ResponsesRequest | InputTokensRequest, facts: ModelFacts) -> None:
    try:
        if isinstance(request, InputTokensRequest):
            request.count(facts)
            return
        request.prepare(facts)
    except TwofoldError:
        return
    completion = SampleCompletion(facts, f"a{CALL}", logprobs=request.params.logprobs is not None)
    reply = data_of(request.reply(HEAD, [completion.output], facts))
    assert reply["object"] == "response"
    if not request.references:
        assert all(item.id for item in request.new_items(HEAD))
