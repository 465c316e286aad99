"""The forms in which a caller may give prompts, and the one form in which the engine takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, TypedDict

from twofold.core.errors import ParameterError, nearest


class TextPrompt(TypedDict):
    prompt: str


class TokensPrompt(TypedDict):
    prompt_token_ids: Sequence[int]


Prompt: TypeAlias = str | TextPrompt | TokensPrompt
Message: TypeAlias = Mapping[str, Any]
"""A chat message: ``role`` and ``content``, as chat templates know them."""

FORMS: Final = 'a string, {"prompt": text} or {"prompt_token_ids": ids}'


@dataclass(frozen=True, slots=True)
class GivenPrompt:
    """A checked prompt: text that is still to be tokenised, or token ids."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None


def read_prompts(prompts: Prompt | Sequence[Prompt]) -> list[GivenPrompt]:
    """One prompt or a list of them. Raises ParameterError for anything else."""
    if isinstance(prompts, str | Mapping):
        return [_read_prompt(prompts)]
    if not isinstance(prompts, Sequence):
        raise _wrong(prompts)
    return [_read_prompt(prompt) for prompt in prompts]


def _read_prompt(prompt: object) -> GivenPrompt:
    if isinstance(prompt, str):
        return GivenPrompt(text=prompt)
    if not isinstance(prompt, Mapping):
        raise _wrong(prompt)
    if len(prompt) != 1:
        raise _wrong(sorted(map(str, prompt)))
    ((key, value),) = prompt.items()
    if key == "prompt" and isinstance(value, str):
        return GivenPrompt(text=value)
    if key == "prompt_token_ids" and isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return GivenPrompt(token_ids=tuple(value))
    if key in {"prompt", "prompt_token_ids"}:
        raise ParameterError(f"{key} is a {type(value).__name__}.", param=str(key), hint=f"A prompt is {FORMS}.")
    close = nearest(str(key), ("prompt", "prompt_token_ids"))
    hint = f"Did you mean {close!r}?" if close else f"A prompt is {FORMS}."
    raise ParameterError(f"A prompt has no field {key!r}.", param=str(key), hint=hint)


def _wrong(prompt: object) -> ParameterError:
    return ParameterError(f"{prompt!r:.60} is not a prompt.", param="prompts", hint=f"A prompt is {FORMS}.")
