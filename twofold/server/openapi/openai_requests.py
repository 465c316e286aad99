"""Bodies of OpenAI's chats, completions and embeddings, and of tokenize and detokenize, as their readers take them."""

from __future__ import annotations

from typing import Final, get_args

from twofold.api.openai import chat, scores
from twofold.api.openai.bodies import MAX_PROMPTS, TIERS, Limits
from twofold.api.openai.embeddings import Encoding
from twofold.api.openai.messages import CACHE_TTLS, ROLES
from twofold.api.openai.sampling import LEAST_SEED
from twofold.api.openai.tools import MAX_NAME_CHARS, MAX_TOOLS
from twofold.core.params import (
    MAX_BIASED_TOKENS,
    MAX_CHOICES,
    MAX_LOGPROBS,
    MAX_N,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MAX_TOKEN_ID,
)
from twofold.core.request import MAX_NAME_CHARS as MAX_SALT_CHARS
from twofold.core.step import Pooling
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
    ref,
    said,
    text,
    whole,
    word,
)
from twofold.server.openapi.shapes import number as real
from twofold.server.tiers import MOST_OWN_PRIORITY
from twofold.text.templates.chat import MAX_VARIABLE_CHARACTERS, RESERVED_VARIABLES
from twofold.text.templates.messages import MAX_MESSAGES

TOKEN: Final = whole(0, MAX_TOKEN_ID)
STOP: Final = text(1, MAX_STOP_CHARS)
COUNT: Final = whole(1, MAX_TOKEN_ID)
OURS: Final = said(asked(explain=FLAG), "Twofold's own fields. explain: the reply carries the request's record.")
MODEL: Final = ref("ModelName")
NAME: Final = text(1, MAX_NAME_CHARS)
TIER: Final = word(*TIERS)
LABEL: Final = said(text(), "Sorts requests; it changes no answer.")
PROMPTS: Final = either(
    text(), listed(TOKEN, 1), listed(text(), 1, MAX_PROMPTS), listed(listed(TOKEN, 1), 1, MAX_PROMPTS)
)
BREAKPOINT: Final = asked({"mode": word("explicit")}, ttl=word(*CACHE_TTLS))
TEXT_PART: Final = asked({"type": word("text"), "text": text()}, prompt_cache_breakpoint=BREAKPOINT)
REFUSAL_PART: Final = asked({"type": word("refusal"), "refusal": text()}, prompt_cache_breakpoint=BREAKPOINT)
CALL: Final = asked(
    {"function": asked({"name": text(1)}, arguments=either(text(), OBJECT))},
    id=text(),
    type=word("function"),
    index=TOKEN,
)
MESSAGE: Final = asked(
    {"role": word(*ROLES)},
    content=either(text(), listed(either(text(), TEXT_PART, REFUSAL_PART))),
    name=text(),
    tool_calls=listed(CALL),
    tool_call_id=text(),
    reasoning_content=text(),
    thinking=text(),
    refusal=text(),
    annotations=only([]),
    audio=only(),
    function_call=only(),
)
FUNCTION: Final = asked({"name": NAME}, description=text(), parameters=OBJECT, strict=FLAG)
TOOL: Final = asked({"type": word("function"), "function": FUNCTION})
NAMED: Final = asked({"type": word("function"), "function": asked({"name": text()})})
ALLOWED: Final = asked(
    {
        "type": word("allowed_tools"),
        "allowed_tools": asked({"mode": word("auto", "required"), "tools": listed(TOOL)}),
    }
)
JSON_SCHEMA: Final = asked(name=text(), description=text(), strict=FLAG, schema=OBJECT)
FORMAT: Final = either(
    asked({"type": word("text", "json_object")}),
    asked({"type": word("json_schema"), "json_schema": JSON_SCHEMA}),
)


def _one_form(name: str, schema: Schema) -> Schema:
    others = {other: only() for other in ("json", "regex", "choice", "grammar") if other != name}
    return asked({name: schema}, json_object=only(False), **others)


STRUCTURED: Final = either(
    _one_form("json", either(OBJECT, text())),
    _one_form("regex", text(1)),
    _one_form("choice", listed(text(1), 1, MAX_CHOICES)),
    _one_form("grammar", text(1)),
    asked({"json_object": only(True)}, json=only(), regex=only(), choice=only(), grammar=only()),
)
LABELS: Final = asked(user=LABEL, metadata=mapped(ANYTHING), safety_identifier=LABEL, prompt_cache_key=LABEL)
BESIDES: Final = asked(
    model=MODEL,
    service_tier=TIER,
    twofold=OURS,
    priority=said(whole(0, MOST_OWN_PRIORITY), "Within the service tier; 0 goes first."),
    cache_salt=said(text(0, MAX_SALT_CHARS), "Only prompts of the same salt share cached prefixes."),
)
STREAMED: Final = asked(
    stream=FLAG,
    stream_options=asked(include_usage=FLAG, include_obfuscation=only(False), continuous_usage_stats=only(False)),
    return_token_ids=FLAG,
)
SAMPLING: Final = asked(
    n=whole(1, MAX_N),
    temperature=real(0),
    top_p=real(high=1, above=0),
    top_k=whole(-1, MAX_TOKEN_ID),
    min_p=real(0, 1),
    repetition_penalty=real(above=0),
    presence_penalty=real(-2, 2),
    frequency_penalty=real(-2, 2),
    stop=either(STOP, listed(STOP, 0, MAX_STOPS)),
    stop_token_ids=listed(TOKEN, 0, MAX_STOP_TOKENS),
    min_tokens=whole(0, MAX_TOKEN_ID),
    ignore_eos=FLAG,
    skip_special_tokens=FLAG,
    include_stop_str_in_output=FLAG,
    seed=whole(LEAST_SEED, MAX_SEED),
    logit_bias=mapped(real(-100, 100), MAX_BIASED_TOKENS, names=text(pattern="^[0-9]{1,9}$")),
    response_format=FORMAT,
    structured_outputs=STRUCTURED,
)


def refused(limits: Limits) -> Schema:
    """Fields of OpenAI's that are refused but for some values."""
    return asked(**{name: only(*possible) for name, possible in limits.items()})


VARIABLE_NAME: Final = {
    **text(1, MAX_VARIABLE_CHARACTERS, pattern="^[A-Za-z_][A-Za-z0-9_]*$"),
    "not": {"enum": sorted(RESERVED_VARIABLES)},
}

CHAT: Final = joined(
    asked(
        {"messages": listed(ref("ChatMessage"), 1, MAX_MESSAGES)},
        tools=listed(TOOL, 0, MAX_TOOLS),
        tool_choice=either(word("auto", "none", "required"), NAMED, ALLOWED),
        parallel_tool_calls=FLAG,
        reasoning_effort=word(*chat.EFFORTS),
        thinking_token_budget=TOKEN,
        chat_template_kwargs=mapped(ANYTHING, names=VARIABLE_NAME),
        add_generation_prompt=FLAG,
        continue_final_message=said(FLAG, "The answer goes on from the last message, which is the assistant's."),
        max_tokens=COUNT,
        max_completion_tokens=COUNT,
        logprobs=FLAG,
        top_logprobs=whole(0, MAX_LOGPROBS),
        prompt_cache_retention=only("in_memory"),
        prompt_cache_options=asked(mode=word("implicit", "explicit"), ttl=word(*CACHE_TTLS)),
    ),
    BESIDES,
    STREAMED,
    SAMPLING,
    LABELS,
    refused(chat.LIMITS),
)
COMPLETION: Final = joined(
    asked(
        {"prompt": PROMPTS},
        suffix=said(text(), "The model fills in what stands between the prompt and this text."),
        best_of=whole(1, MAX_N),
        echo=FLAG,
        logprobs=whole(0, MAX_LOGPROBS),
        max_tokens=said(TOKEN, "0 needs echo: then the prompt alone is told."),
    ),
    BESIDES,
    STREAMED,
    SAMPLING,
    LABELS,
)
EMBEDDING: Final = joined(
    asked(
        {"input": PROMPTS},
        encoding_format=word(*get_args(Encoding)),
        pooling=word(*get_args(Pooling)),
        dimensions=said(COUNT, "The length of the model's vectors; others are not possible."),
    ),
    BESIDES,
    LABELS,
)
FULL_TEXT: Final = text(1)
_COMPARED: Final = joined(asked(pooling=word(*get_args(Pooling))), BESIDES, LABELS)
RERANK: Final = joined(
    asked(
        {
            "query": FULL_TEXT,
            "documents": listed(either(FULL_TEXT, asked({"text": FULL_TEXT})), 1, scores.MAX_DOCUMENTS),
        },
        top_n=said(TOKEN, "How many results to return; 0 for all."),
        return_documents=FLAG,
    ),
    _COMPARED,
)
_SIDE: Final = either(FULL_TEXT, listed(FULL_TEXT, 1, scores.MAX_DOCUMENTS))
SCORE: Final = joined(asked(text_1=_SIDE, queries=_SIDE, text_2=_SIDE, documents=_SIDE), _COMPARED)
TOKENIZE_TEXT: Final = asked({"prompt": text()}, model=MODEL, add_special_tokens=FLAG, return_token_strs=FLAG)
TOKENIZE_CHAT: Final = joined(CHAT, asked(return_token_strs=FLAG))
DETOKENIZE: Final = asked({"tokens": listed(TOKEN)}, model=MODEL)
