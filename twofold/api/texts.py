"""Prompts that are no chats: texts to continue, and texts with a gap to fill in."""

from __future__ import annotations

from dataclasses import replace

from twofold.api.base import ModelFacts
from twofold.core.params import SamplingParams
from twofold.core.request import EngineRequest, PoolingParams, RequestOptions, TextOrTokens
from twofold.text.prompt_limit import PromptLimit


def tokenized(
    prompt: TextOrTokens, model: ModelFacts, params: SamplingParams | PoolingParams, options: RequestOptions
) -> EngineRequest:
    """The request for a prompt. Raises ContextLengthError where it leaves no room for a completion."""
    room = PromptLimit(model.context, 1 if isinstance(params, SamplingParams) else 0)
    if isinstance(prompt, str):
        return EngineRequest(tuple(model.tokenizer.within(room).encode(prompt)), params, options, prompt)
    room.check(len(prompt))
    return EngineRequest(prompt, params, options)


def infilled(
    prefix: str, suffix: str, model: ModelFacts, params: SamplingParams, options: RequestOptions
) -> EngineRequest:
    """Asks for what stands between two texts. Raises ParameterError for a model that has no tokens for it."""
    ids = model.tokenizer.within(PromptLimit(model.context)).encode_infill(prefix, suffix)
    assert model.tokenizer.infill is not None, "it was just used"
    ends = tuple(dict.fromkeys((*params.stop_tokens, *model.tokenizer.infill.ends)))
    return EngineRequest(tuple(ids), replace(params, stop_token_ids=ends), options, prefix)
