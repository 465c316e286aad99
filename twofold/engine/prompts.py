"""The forms in which callers of ``LLM`` and ``AsyncLLM`` may give prompts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypedDict

from twofold.core.errors import ParameterError, closest_match
from twofold.core.request import TextOrTokens


class TextPrompt(TypedDict):
    prompt: str


class TokensPrompt(TypedDict):
    prompt_token_ids: Sequence[int]


Prompt: TypeAlias = str | TextPrompt | TokensPrompt
Message: TypeAlias = Mapping[str, Any]
"""A chat message: ``role`` and ``content``, as chat templates know them."""

FORMS: Final = 'a string, {"prompt": text} or {"prompt_token_ids": ids}'


def read_prompts(prompts: Prompt | Sequence[Prompt]) -> list[TextOrTokens]:
    """The text or the token ids of one prompt or of each of a list. Raises ParameterError for anything else."""
    if isinstance(prompts, str | Mapping):
        return [_read_prompt(prompts)]
    if not isinstance(prompts, Sequence):
        raise _wrong(prompts)
    return [_read_prompt(prompt) for prompt in prompts]


def _read_prompt(prompt: object) -> TextOrTokens:
    if isinstance(prompt, str):
        return prompt
    if not isinstance(prompt, Mapping):
        raise _wrong(prompt)
    if len(prompt) != 1:
        raise _wrong(sorted(map(str, prompt)))
    ((key, value),) = prompt.items()
    if key == "prompt" and isinstance(value, str):
        return value
    if key == "prompt_token_ids" and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return tuple(value)
    if key in {"prompt", "prompt_token_ids"}:
        raise ParameterError(f"{key} is a {type(value).__name__}.", param=str(key), hint=f"A prompt is {FORMS}.")
    close = closest_match(str(key), ("prompt", "prompt_token_ids"))
    hint = f"Did you mean {close!r}?" if close else f"A prompt is {FORMS}."
    raise ParameterError(f"A prompt has no field {key!r}.", param=str(key), hint=hint)


def _wrong(prompt: object) -> ParameterError:
    return ParameterError(f"{prompt!r:.60} is not a prompt.", param="prompts", hint=f"A prompt is {FORMS}.")
