"""Replies of Anthropic's messages, and models as its clients read them."""

from __future__ import annotations

from typing import Final, get_args

from twofold.api.anthropic.blocks import SIGNATURE
from twofold.api.anthropic.replies import StopReason
from twofold.api.body import nullable
from twofold.server.openapi.openai_replies import COUNT, EXPLAINED
from twofold.server.openapi.shapes import FLAG, OBJECT, either, joined, listed, only, ref, text, told, word

TEXT: Final = told({"type": word("text"), "text": text()})
THINKING: Final = told({"type": word("thinking"), "thinking": text(), "signature": only(SIGNATURE)})
TOOL_USE: Final = told({"type": word("tool_use"), "id": text(), "name": text(), "input": OBJECT})
USAGE: Final = told(
    {
        "input_tokens": COUNT,
        "cache_creation_input_tokens": COUNT,
        "cache_read_input_tokens": COUNT,
        "cache_creation": told({"ephemeral_5m_input_tokens": COUNT, "ephemeral_1h_input_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": told({"thinking_tokens": COUNT}),
        "service_tier": word("standard", "priority", "batch"),
    }
)
MESSAGE: Final = joined(
    told(
        {
            "id": text(),
            "type": only("message"),
            "role": only("assistant"),
            "model": text(),
            "content": listed(either(TEXT, THINKING, TOOL_USE)),
            "stop_reason": word(*get_args(StopReason)),
            "stop_sequence": nullable(text()),
            "usage": USAGE,
        },
        diagnostics=told({"cache_miss_reason": told({"type": word("unavailable")})}),
    ),
    EXPLAINED,
)
COUNTED: Final = told({"input_tokens": COUNT}, context_management=told({"original_input_tokens": COUNT}))
MODEL: Final = told(
    {
        "type": only("model"),
        "id": text(),
        "display_name": text(),
        "created_at": {"type": "string", "format": "date-time"},
        "lifecycle": word("active"),
        "max_input_tokens": nullable(COUNT),
        "max_tokens": nullable(COUNT),
    }
)
MODELS: Final = told(
    {
        "data": listed(ref("AnthropicModel")),
        "has_more": FLAG,
        "first_id": nullable(text()),
        "last_id": nullable(text()),
    }
)
