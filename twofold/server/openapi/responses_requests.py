"""Bodies of OpenAI's responses as their readers take them."""

from __future__ import annotations

from typing import Final

from twofold.api.openai.chat import EFFORTS
from twofold.api.openai.messages import CACHE_TTLS
from twofold.api.openai.responses import items, request, settings
from twofold.api.openai.tools import MAX_TOOLS
from twofold.core.params import MAX_LOGPROBS
from twofold.core.request import TTL_SECONDS
from twofold.server.openapi.openai_requests import BESIDES, COUNT, NAME, SAMPLING, refused
from twofold.server.openapi.shapes import (
    ANYTHING,
    FLAG,
    OBJECT,
    Schema,
    asked,
    either,
    joined,
    listed,
    mapped,
    only,
    said,
    text,
    whole,
    word,
)

ID: Final = text(1, items.MAX_ID_CHARS)
DIRECT: Final = only({"type": "direct"})
LABELLED: Final = asked(id=ID, status=word(*items.STATUSES))
BREAKPOINT: Final = asked({"mode": word("explicit")}, ttl=word(*TTL_SECONDS))
TEXT_PART: Final = asked(
    {"type": word("input_text", "output_text"), "text": text()},
    prompt_cache_breakpoint=BREAKPOINT,
    annotations=ANYTHING,
    logprobs=ANYTHING,
)
REFUSAL_PART: Final = asked({"type": word("refusal"), "refusal": text()})


def _message(roles: tuple[str, ...], parts: Schema) -> Schema:
    return joined(
        asked(
            {"role": word(*roles), "content": either(text(), listed(parts, 1))},
            type=word("message"),
            phase=word(*items.PHASES),
        ),
        LABELLED,
    )


def _texts(kind: str) -> Schema:
    return listed(asked({"type": word(kind), "text": text()}))


ASSISTANT: Final = "assistant"
INPUT_MESSAGE: Final = _message(tuple(role for role in items.ROLES if role != ASSISTANT), TEXT_PART)
OUTPUT_MESSAGE: Final = _message((ASSISTANT,), either(TEXT_PART, REFUSAL_PART))
CALL: Final = joined(
    asked(
        {"type": word("function_call"), "call_id": text(1), "name": text(1), "arguments": text()},
        namespace=only(),
        caller=DIRECT,
        **{"async": only(False)},
    ),
    LABELLED,
)
CALL_OUTPUT: Final = joined(
    asked(
        {
            "type": word("function_call_output"),
            "call_id": text(1),
            "output": either(text(), listed(TEXT_PART, 1)),
        },
        caller=DIRECT,
        name=text(),
        created_by=text(),
    ),
    LABELLED,
)
REASONING_ITEM: Final = joined(
    asked(
        {"type": word("reasoning")},
        summary=_texts("summary_text"),
        content=_texts("reasoning_text"),
        encrypted_content=said(text(), "As a response told it; it counts where there is no content."),
    ),
    LABELLED,
)
REFERENCE: Final = asked({"id": text(1)}, type=word("item_reference"))
ITEM: Final = either(INPUT_MESSAGE, OUTPUT_MESSAGE, CALL, CALL_OUTPUT, REASONING_ITEM, REFERENCE)

TOOL: Final = asked(
    {"type": word("function"), "name": NAME},
    description=text(),
    parameters=OBJECT,
    strict=FLAG,
    defer_loading=only(False),
    allowed_callers=only(["direct"]),
    output_schema=only(),
    **{"async": only(False)},
)
NAMED: Final = asked({"type": word("function"), "name": NAME})
ALLOWED: Final = asked(
    {"type": word("allowed_tools"), "mode": word("auto", "required"), "tools": listed(NAMED, 1)},
)
FORMAT: Final = either(
    asked({"type": word("text", "json_object")}),
    asked({"type": word("json_schema"), "name": text(), "schema": OBJECT}, description=text(), strict=FLAG),
)
LABEL: Final = text(0, request.MAX_LABEL_CHARS)
METADATA: Final = mapped(text(0, settings.MAX_LABEL), settings.MAX_LABELS, names=text(0, settings.MAX_LABEL_NAME))
TURN: Final = asked(
    input=either(text(), listed(ITEM, 1, items.MAX_ITEMS)),
    instructions=text(),
    previous_response_id=text(),
    conversation=only(),
    tools=listed(TOOL, 0, MAX_TOOLS),
    tool_choice=either(word("auto", "none", "required"), NAMED, ALLOWED),
    parallel_tool_calls=FLAG,
    reasoning=asked(
        effort=word(*EFFORTS),
        summary=only("auto"),
        generate_summary=only("auto"),
        context=only("auto"),
        mode=only("standard"),
    ),
    text=asked(format=FORMAT, verbosity=only("medium")),
    truncation=word("auto", "disabled"),
    prompt_cache_retention=only("in_memory"),
    prompt_cache_options=asked(
        mode=word("implicit", "explicit"),
        ttl=word(*CACHE_TTLS),
        prewarm=only(False),
        comparison_response_id=only(),
    ),
)
_DRAWN: Final = asked()
_DRAWN["properties"] = {name: SAMPLING["properties"][name] for name in request.DRAWN}
RESPONSE: Final = joined(
    TURN,
    BESIDES,
    _DRAWN,
    asked(
        max_output_tokens=COUNT,
        max_tool_calls=COUNT,
        top_logprobs=whole(0, MAX_LOGPROBS),
        include=listed(word(*settings.INCLUDABLE)),
        store=FLAG,
        stream=FLAG,
        stream_options=asked(include_obfuscation=only(False)),
        metadata=METADATA,
        client_metadata=OBJECT,
        **dict.fromkeys(request.LABELS, LABEL),
    ),
    refused(request.LIMITS),
)
_COUNTED: Final = asked()
_COUNTED["properties"] = {"model": BESIDES["properties"]["model"]}
INPUT_TOKENS: Final = joined(TURN, _COUNTED, asked(personality=only()))
