"""Bodies of OpenAI's chats, completions and embeddings, and of tokenize and detokenize, as their readers take them."""

from __future__ import annotations

from typing import Final

from twofold.api.openai.bodies import TIERS, Limits
from twofold.api.openai.sampling import LEAST_SEED
from twofold.api.openai.tools import MAX_NAME_CHARS
from twofold.core.params import (
    MAX_BIASED_TOKENS,
    MAX_N,
    MAX_SEED,
    MAX_STOP_CHARS,
    MAX_STOP_TOKENS,
    MAX_STOPS,
    MAX_TOKEN_ID,
)
from twofold.core.request import MAX_NAME_CHARS as MAX_SALT_CHARS
from twofold.server.openapi.shapes import (
    FLAG,
    Schema,
    asked,
    either,
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

TOKEN: Final = whole(0, MAX_TOKEN_ID)
STOP: Final = text(1, MAX_STOP_CHARS)
COUNT: Final = whole(1, MAX_TOKEN_ID)
OURS: Final = said(asked(explain=FLAG), "Twofold's own fields. explain: the reply carries the request's record.")
MODEL: Final = ref("ModelName")
NAME: Final = text(1, MAX_NAME_CHARS)
TIER: Final = word(*TIERS)
LABEL: Final = said(text(), "Sorts requests; it changes no answer.")
BESIDES: Final = asked(
    model=MODEL,
    service_tier=TIER,
    twofold=OURS,
    priority=said(whole(0, MOST_OWN_PRIORITY), "Within the service tier; 0 goes first."),
    cache_salt=said(text(0, MAX_SALT_CHARS), "Only prompts of the same salt share cached prefixes."),
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
)


def refused(limits: Limits) -> Schema:
    """Fields of OpenAI's that are refused but for some values."""
    return asked(**{name: only(*possible) for name, possible in limits.items()})
