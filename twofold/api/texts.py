"""Prompts that are no chats: texts to continue, and texts with a gap to fill in."""

from __future__ import annotations

from dataclasses import replace

from twofold.api.base import Job, ModelFacts
from twofold.core.params import SamplingParams
from twofold.core.request import RequestOptions
from twofold.engine.prompts import GivenPrompt
from twofold.text.prompt_limit import PromptLimit


def tokenized(given: GivenPrompt, model: ModelFacts, *, answer: int = 1) -> GivenPrompt:
    """The prompt with its token ids, which leave ``answer`` tokens of the context. Raises ContextLengthError."""
    room = PromptLimit(model.context, answer)
    if given.token_ids is not None:
        room.check(len(given.token_ids))
        return given
    return GivenPrompt(given.text, tuple(model.tokenizer.within(room).encode(given.text or "")))


def infilled(prefix: str, suffix: str, model: ModelFacts, params: SamplingParams, options: RequestOptions) -> Job:
    """Asks for what stands between two texts. Raises ParameterError for a model that has no tokens for it."""
    ids = model.tokenizer.within(PromptLimit(model.context)).encode_infill(prefix, suffix)
    assert model.tokenizer.infill is not None, "it was just used"
    ends = tuple(dict.fromkeys((*params.stop_tokens, *model.tokenizer.infill.ends)))
    return Job(tuple(ids), replace(params, stop_token_ids=ends), options, prefix)
