"""Replies about OpenAI's responses."""

from __future__ import annotations

from typing import Final

from twofold.api.body import kind_of, nullable
from twofold.api.openai.bodies import PlainFormat
from twofold.api.openai.chat import EFFORTS
from twofold.api.openai.responses.items import ItemStatus
from twofold.api.openai.responses.settings import Metadata, ResponseSchemaFormat
from twofold.api.openai.responses.tools import ResponseToolChoice
from twofold.server.openapi.openai_replies import COUNT, EXPLAINED, TIER, TOKEN_LOGPROB
from twofold.server.openapi.shapes import (
    ANYTHING,
    FLAG,
    NULL,
    OBJECT,
    either,
    joined,
    listed,
    number,
    only,
    ref,
    text,
    told,
    word,
)

STATUS: Final = kind_of(ItemStatus).form
METADATA: Final = kind_of(Metadata).form
OUTPUT_TEXT: Final = told(
    {"type": word("output_text"), "text": text(), "annotations": only([]), "logprobs": listed(TOKEN_LOGPROB)},
    prompt_cache_breakpoint=ANYTHING,
)
INPUT_TEXT: Final = told({"type": word("input_text"), "text": text()}, prompt_cache_breakpoint=ANYTHING)
REFUSAL: Final = told({"type": word("refusal"), "refusal": text()})
MESSAGE: Final = told(
    {
        "id": text(),
        "type": word("message"),
        "role": word("user", "assistant", "system", "developer"),
        "status": STATUS,
        "content": listed(either(OUTPUT_TEXT, INPUT_TEXT, REFUSAL)),
    },
    phase=word("commentary", "final_answer"),
)
CALL: Final = told(
    {
        "id": text(),
        "type": word("function_call"),
        "status": STATUS,
        "call_id": text(),
        "name": text(),
        "arguments": text(),
    }
)
CALL_OUTPUT: Final = told(
    {
        "id": text(),
        "type": word("function_call_output"),
        "status": STATUS,
        "call_id": text(),
        "output": either(text(), listed(INPUT_TEXT)),
    }
)
REASONING_TEXT: Final = told({"type": word("reasoning_text"), "text": text()})
REASONING: Final = told(
    {
        "id": text(),
        "type": word("reasoning"),
        "summary": listed(told({"type": word("summary_text"), "text": text()})),
        "content": listed(REASONING_TEXT),
    },
    status=STATUS,
    encrypted_content=text(),
)
ITEM: Final = either(MESSAGE, CALL, CALL_OUTPUT, REASONING)
TOOL: Final = told(
    {
        "type": word("function"),
        "name": text(),
        "description": nullable(text()),
        "parameters": nullable(OBJECT),
        "strict": FLAG,
    }
)
USAGE: Final = told(
    {
        "input_tokens": COUNT,
        "input_tokens_details": told({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": told({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
    }
)
LABEL: Final = nullable(text())
RESPONSE: Final = joined(
    told(
        {
            "id": text(),
            "object": only("response"),
            "created_at": COUNT,
            "status": word("completed", "incomplete", "cancelled"),
            "background": only(False),
            "completed_at": nullable(COUNT),
            "error": NULL,
            "incomplete_details": nullable(told({"reason": nullable(word("max_output_tokens"))})),
            "instructions": LABEL,
            "max_output_tokens": nullable(COUNT),
            "max_tool_calls": nullable(COUNT),
            "metadata": METADATA,
            "model": text(),
            "output": listed(ref("ResponseItem")),
            "parallel_tool_calls": FLAG,
            "previous_response_id": LABEL,
            "prompt_cache_key": LABEL,
            "reasoning": told({"effort": nullable(word(*EFFORTS)), "summary": NULL}),
            "safety_identifier": LABEL,
            "store": FLAG,
            "temperature": number(0),
            "text": told({"format": kind_of(PlainFormat | ResponseSchemaFormat).form, "verbosity": only("medium")}),
            "tool_choice": kind_of(ResponseToolChoice).form,
            "tools": listed(TOOL),
            "top_logprobs": COUNT,
            "top_p": number(0, 1),
            "truncation": word("auto", "disabled"),
            "usage": USAGE,
            "user": LABEL,
        },
        service_tier=TIER,
    ),
    EXPLAINED,
)
DELETED: Final = told({"id": text(), "object": only("response"), "deleted": only(True)})
ITEMS: Final = told(
    {
        "object": only("list"),
        "data": listed(ref("ResponseItem")),
        "first_id": text(),
        "last_id": text(),
        "has_more": FLAG,
    }
)
INPUT_TOKENS: Final = told({"object": only("response.input_tokens"), "input_tokens": COUNT})
