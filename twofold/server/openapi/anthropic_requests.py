"""Bodies of Anthropic's messages, and of counting their tokens, as their readers take them."""

from __future__ import annotations

from typing import Final

from twofold.api.anthropic import settings
from twofold.api.anthropic.caching import TIMES
from twofold.api.anthropic.tools import MAX_NAME_CHARS, MAX_TOOLS
from twofold.core.params import MAX_STOP_CHARS, MAX_STOPS
from twofold.server.openapi.openai_requests import COUNT, MODEL, OURS, TOKEN, refused
from twofold.server.openapi.shapes import (
    FLAG,
    OBJECT,
    asked,
    either,
    joined,
    listed,
    number,
    only,
    said,
    text,
    word,
)
from twofold.text.templates.messages import MAX_MESSAGES

CACHED: Final = asked({"type": word("ephemeral")}, ttl=word(*TIMES))
NAME: Final = text(1, MAX_NAME_CHARS)
TEXT_BLOCK: Final = asked({"type": word("text"), "text": text()}, cache_control=CACHED, citations=only([]))
THINKING_BLOCK: Final = asked({"type": word("thinking"), "thinking": text()}, signature=text())
REDACTED_BLOCK: Final = asked({"type": word("redacted_thinking")}, data=text())
USE_BLOCK: Final = asked(
    {"type": word("tool_use"), "id": text(), "name": text(), "input": OBJECT},
    caller=only({"type": "direct"}),
    toolset_name=only(),
    cache_control=CACHED,
)
RESULT_BLOCK: Final = asked(
    {"type": word("tool_result"), "tool_use_id": text()},
    content=either(text(), listed(TEXT_BLOCK)),
    is_error=FLAG,
    toolset_name=only(),
    cache_control=CACHED,
)
MESSAGE: Final = either(
    asked({"role": word("user"), "content": either(text(), listed(either(TEXT_BLOCK, RESULT_BLOCK)))}),
    asked(
        {
            "role": word("assistant"),
            "content": either(text(), listed(either(TEXT_BLOCK, THINKING_BLOCK, REDACTED_BLOCK, USE_BLOCK))),
        }
    ),
    asked({"role": word("system"), "content": either(text(), listed(TEXT_BLOCK))}),
)
TOOL: Final = asked(
    {"name": NAME, "input_schema": OBJECT},
    type=word("custom"),
    description=text(),
    strict=FLAG,
    eager_input_streaming=only(True),
    defer_loading=only(False),
    allowed_callers=only(["direct"]),
    input_examples=only([]),
    cache_control=CACHED,
)
CHOICE: Final = either(
    asked({"type": word("auto", "any", "none")}, disable_parallel_tool_use=FLAG),
    asked({"type": word("tool"), "name": text()}, disable_parallel_tool_use=FLAG),
)
SHOWN: Final = word("summarized", "omitted")
THINKING: Final = either(
    asked({"type": word("enabled"), "budget_tokens": COUNT}, display=SHOWN),
    asked({"type": word("adaptive")}, display=SHOWN),
    asked({"type": word("disabled")}),
)
FORM: Final = asked({"type": word("json_schema"), "schema": OBJECT})
EDIT: Final = asked({"type": word("clear_thinking_20251015"), "keep": only("all", {"type": "all"})})
COUNTED: Final = joined(
    asked({"model": MODEL, "messages": listed(MESSAGE, 1, MAX_MESSAGES)}),
    asked(
        system=either(text(), listed(TEXT_BLOCK)),
        tools=listed(TOOL, 0, MAX_TOOLS),
        tool_choice=CHOICE,
        cache_control=CACHED,
        thinking=THINKING,
        output_config=asked(effort=word(*settings.EFFORTS), task_budget=only(), format=FORM),
        output_format=FORM,
        context_management=asked(edits=listed(EDIT)),
        metadata=asked(user_id=text()),
        betas=listed(text()),
    ),
    refused(settings.ELSEWHERE),
)
MESSAGES: Final = joined(
    COUNTED,
    asked({"max_tokens": said(TOKEN, "0 reads the prompt into the cache and answers nothing.")}),
    asked(
        stream=FLAG,
        temperature=number(0, 1),
        top_p=number(high=1, above=0),
        top_k=TOKEN,
        stop_sequences=listed(text(1, MAX_STOP_CHARS), 0, MAX_STOPS),
        service_tier=word("auto", "standard_only"),
        twofold=OURS,
        diagnostics=asked(previous_message_id=text()),
    ),
)
