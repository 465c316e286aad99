"""Log-probabilities as OpenAI tells them: token by token for chats, in four lists for completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from twofold.engine.outputs import Logprob, Logprobs, RequestOutput
from twofold.text.tokenizers.tokenizer import Tokenizer

MIN_LOGPROB: Final = -9999.0
"""JSON has no −∞; OpenAI writes this for it."""

Position = tuple[str, int, Logprobs | None]
"""A token's text and id, with what its position holds; None where nothing comes before it."""


def chat_logprobs(
    token_ids: Sequence[int], logprobs: Sequence[Logprobs], tokenizer: Tokenizer, top: int
) -> dict[str, Any]:
    """Of the tokens of an answer, or of some of them, with the ``top`` most likely ones."""
    content = []
    for token, position in zip(token_ids, logprobs, strict=True):
        likely = sorted(position.items(), key=lambda item: item[1].rank)[:top]
        best = [_entry(*item, tokenizer) for item in likely]
        content.append(_entry(token, position[token], tokenizer) | {"top_logprobs": best})
    return {"content": content, "refusal": None}


def text_logprobs(tokens: Iterable[Position], start: int = 0) -> dict[str, Any]:
    """Four lists with an entry for each token; offsets count characters from ``start`` on."""
    names: list[str] = []
    chosen: list[float | None] = []
    best: list[dict[str, float] | None] = []
    offsets: list[int] = []
    end = start
    for text, token, position in tokens:
        names.append(text)
        chosen.append(None if position is None else _finite(position[token].logprob))
        best.append(None if position is None else _by_text(position))
        offsets.append(end)
        end += len(text)
    return {"tokens": names, "token_logprobs": chosen, "top_logprobs": best, "text_offset": offsets}


def answer_positions(token_ids: Sequence[int], logprobs: Sequence[Logprobs] | None) -> list[Position]:
    pairs = zip(token_ids, logprobs or (), strict=False)
    return [(position[token].decoded_token, token, position) for token, position in pairs]


@dataclass(frozen=True, slots=True)
class Echo:
    """A prompt as it is told again."""

    text: str
    tokens: list[Position]

    @classmethod
    def of(cls, output: RequestOutput, tokenizer: Tokenizer) -> Echo:
        ids = output.prompt_token_ids
        text = tokenizer.decode(ids, skip_special_tokens=False) if output.prompt is None else output.prompt
        tokens: list[Position] = []
        for token, position in zip(ids, output.prompt_logprobs or (), strict=False):
            shown = tokenizer.decode([token], skip_special_tokens=False, continuation=True)
            tokens.append((shown, token, position))
        return cls(text, tokens)


def _entry(token: int, entry: Logprob, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""
    return {"token": entry.decoded_token, "logprob": _finite(entry.logprob), "bytes": list(raw)}


def _by_text(position: Logprobs) -> dict[str, float]:
    """Log-probabilities by the tokens' text; of tokens that look the same, the first counts."""
    found: dict[str, float] = {}
    for entry in position.values():
        found.setdefault(entry.decoded_token, _finite(entry.logprob))
    return found


def _finite(logprob: float) -> float:
    return max(logprob, MIN_LOGPROB)
