"""Texts that are no chats."""

from __future__ import annotations

from twofold.dialects.base import ModelFacts
from twofold.engine.prompts import GivenPrompt


def tokenized(given: GivenPrompt, model: ModelFacts) -> GivenPrompt:
    """The prompt with its token ids."""
    if given.token_ids is not None:
        return given
    return GivenPrompt(given.text, tuple(model.tokenizer.encode(given.text or "")))
