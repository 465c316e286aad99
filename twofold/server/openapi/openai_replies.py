"""Replies of OpenAI's chats, completions, embeddings and models, and of tokenize and detokenize."""

from __future__ import annotations

from typing import Final

from twofold.api.body import nullable
from twofold.server.openapi.shapes import (
    NULL,
    Schema,
    either,
    joined,
    listed,
    mapped,
    number,
    only,
    ref,
    text,
    told,
    whole,
    word,
)

COUNT: Final = whole(0)
IDS: Final = listed(COUNT)
EXPLAINED: Final = told(twofold=ref("RequestRecord"))
TIER: Final = word("default", "flex", "priority", "batch")
FINISH: Final = word("stop", "length", "tool_calls")
USAGE: Final = told(
    {
        "prompt_tokens": COUNT,
        "completion_tokens": COUNT,
        "total_tokens": COUNT,
        "prompt_tokens_details": told({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
        "completion_tokens_details": told({"reasoning_tokens": COUNT}),
    }
)
_ENTRY: Final[dict[str, Schema]] = {"token": text(), "logprob": number(high=0), "bytes": listed(whole(0, 255))}
TOKEN_LOGPROB: Final = told({**_ENTRY, "top_logprobs": listed(told(_ENTRY))})
CHAT_LOGPROBS: Final = told({"content": listed(TOKEN_LOGPROB), "refusal": NULL})
TEXT_LOGPROBS: Final = told(
    {
        "tokens": listed(text()),
        "token_logprobs": listed(nullable(number(high=0))),
        "top_logprobs": listed(nullable(mapped(number(high=0)))),
        "text_offset": IDS,
    }
)
CALL: Final = told(
    {"id": text(), "type": word("function"), "function": told({"name": text(), "arguments": text()})},
)
MESSAGE: Final = told(
    {"role": word("assistant"), "content": nullable(text()), "refusal": NULL},
    reasoning_content=text(),
    tool_calls=listed(CALL, 1),
)


def _whole(kind: str, choice: Schema) -> Schema:
    return joined(
        told(
            {
                "id": text(),
                "object": only(kind),
                "created": COUNT,
                "model": text(),
                "choices": listed(choice, 1),
                "usage": ref("Usage"),
            },
            service_tier=TIER,
            prompt_token_ids=IDS,
        ),
        EXPLAINED,
    )


CHAT_COMPLETION: Final = _whole(
    "chat.completion",
    told(
        {
            "index": COUNT,
            "message": MESSAGE,
            "logprobs": nullable(CHAT_LOGPROBS),
            "finish_reason": FINISH,
        },
        token_ids=IDS,
    ),
)
TEXT_COMPLETION: Final = _whole(
    "text_completion",
    told(
        {"index": COUNT, "text": text(), "logprobs": nullable(TEXT_LOGPROBS), "finish_reason": FINISH},
        token_ids=IDS,
        prompt_token_ids=IDS,
    ),
)
EMBEDDINGS: Final = joined(
    told(
        {
            "object": only("list"),
            "model": text(),
            "data": listed(
                told({"object": only("embedding"), "index": COUNT, "embedding": either(listed(number()), text())}), 1
            ),
            "usage": told({"prompt_tokens": COUNT, "total_tokens": COUNT}),
        }
    ),
    EXPLAINED,
)
_SPENT: Final = told({"prompt_tokens": COUNT, "total_tokens": COUNT})
_COSINE: Final = number(-1, 1)
RERANKED: Final = joined(
    told(
        {
            "id": text(),
            "model": text(),
            "usage": _SPENT,
            "results": listed(told({"index": COUNT, "relevance_score": _COSINE}, document=told({"text": text()})), 1),
        }
    ),
    EXPLAINED,
)
SCORES: Final = joined(
    told(
        {
            "id": text(),
            "object": only("list"),
            "created": COUNT,
            "model": text(),
            "data": listed(told({"index": COUNT, "object": only("score"), "score": _COSINE}), 1),
            "usage": _SPENT,
        }
    ),
    EXPLAINED,
)
MODEL: Final = told(
    {
        "id": text(),
        "object": only("model"),
        "created": COUNT,
        "owned_by": text(),
        "root": text(),
        "parent": NULL,
        "max_model_len": nullable(COUNT),
        "state": word("unloaded", "loading", "ready", "failed"),
    }
)
MODELS: Final = told({"object": only("list"), "data": listed(ref("Model"))})
MODEL_USE: Final = told(
    {
        "id": text(),
        "object": only("twofold.model"),
        "names": listed(text(), 1),
        "state": word("unloaded", "loading", "ready", "failed"),
        "bytes": COUNT,
        "context": nullable(COUNT),
        "running": COUNT,
        "waiting": COUNT,
        "idle_s": nullable(number(0)),
        "unloads_in_s": nullable(number(0)),
        "error": nullable(text()),
    }
)
MODEL_USES: Final = told({"object": only("list"), "data": listed(ref("ModelUse"))})
TOKENS: Final = told(
    {"count": COUNT, "max_model_len": COUNT, "tokens": IDS, "token_strs": nullable(listed(text()))},
)
TOKENIZER: Final = told(
    {"model": text(), **dict.fromkeys(("bos_token", "eos_token", "pad_token", "chat_template"), nullable(text()))}
)
DETOKENIZED: Final = told({"prompt": text()})
