"""OpenAI's response bodies, made of what the engine gave: plain data, ready to be written as JSON."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from struct import pack
from typing import Any, Final

from twofold.core.errors import ContextLengthError, ModelNotFoundError, ParameterError, TemplateError, TwofoldError
from twofold.engine.offline.fields import IMPOSSIBLE, FieldError
from twofold.engine.outputs import CompletionOutput, Logprob, Logprobs, RequestOutput
from twofold.text.tokenizer import Tokenizer

LEAST_LOGPROB: Final = -9999.0
"""JSON has no −∞; OpenAI writes this for it."""

CODES: Final[tuple[tuple[type[TwofoldError], str], ...]] = (
    (ContextLengthError, "context_length_exceeded"),
    (ModelNotFoundError, "model_not_found"),
    (TemplateError, "invalid_messages"),
    (ParameterError, IMPOSSIBLE),
)


@dataclass(frozen=True, slots=True)
class ReplyHead:
    """What a response says about itself. ``created`` is in seconds since 1970."""

    id: str
    created: int
    model: str


def chat_completion(
    head: ReplyHead, output: RequestOutput, tokenizer: Tokenizer, *, top_logprobs: int = 0, token_ids: bool = False
) -> dict[str, Any]:
    """A ``chat.completion``.

    ``top_logprobs`` is how many of the most likely tokens were asked for; ``token_ids`` adds those of prompt and
    answers, under vLLM's names.
    """
    choices = [_chat_choice(answer, tokenizer, top_logprobs, token_ids) for answer in output.outputs]
    whole = _whole(f"chatcmpl-{head.id}", "chat.completion", head, choices, usage([output]))
    return whole | {"prompt_token_ids": output.prompt_token_ids} if token_ids else whole


def text_completion(
    head: ReplyHead,
    outputs: Sequence[RequestOutput],
    tokenizer: Tokenizer,
    *,
    echo: bool = False,
    prompt_only: bool = False,
    token_ids: bool = False,
) -> dict[str, Any]:
    """A ``text_completion``: the answers of the first prompt, those of the second, and so on.

    ``echo`` puts the prompt before each answer, ``prompt_only`` leaves the answers away, ``token_ids`` adds those of
    prompt and answers, under vLLM's names.
    """
    choices: list[dict[str, Any]] = []
    for output in outputs:
        before = _echoed(output, tokenizer) if echo else _Text("", [])
        for answer in output.outputs:
            after = _Text("", []) if prompt_only else _Text(answer.text, _positions(answer))
            choice = {
                "index": len(choices),
                "text": before.text + after.text,
                "logprobs": None if answer.logprobs is None else _text_logprobs([*before.tokens, *after.tokens]),
                "finish_reason": answer.finish_reason,
            }
            if token_ids:
                choice |= {"prompt_token_ids": output.prompt_token_ids, "token_ids": _ids(answer, prompt_only)}
            choices.append(choice)
    spent = usage(outputs, answers=not prompt_only)
    return _whole(f"cmpl-{head.id}", "text_completion", head, choices, spent)


def embedding_list(head: ReplyHead, outputs: Sequence[RequestOutput], *, base64: bool = False) -> dict[str, Any]:
    """A ``list`` of embeddings, one of each text; ``base64`` writes a vector as the bytes of little-endian floats."""
    spent = sum(len(output.prompt_token_ids) for output in outputs)
    data = []
    for index, output in enumerate(outputs):
        assert output.embedding is not None, "a text that was read has its vector"
        vector = _packed(output.embedding) if base64 else list(output.embedding)
        data.append({"object": "embedding", "index": index, "embedding": vector})
    return {
        "object": "list",
        "data": data,
        "model": head.model,
        "usage": {"prompt_tokens": spent, "total_tokens": spent},
    }


def _packed(vector: Sequence[float]) -> str:
    return b64encode(pack(f"<{len(vector)}f", *vector)).decode()


def usage(outputs: Sequence[RequestOutput], *, answers: bool = True) -> dict[str, Any]:
    """Tokens of all prompts, cached ones included, and of all answers, those included that best_of dropped."""
    prompt = sum(len(output.prompt_token_ids) for output in outputs)
    drawn = sum(output.metrics.output_tokens for output in outputs) if answers else 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": sum(output.metrics.cached_tokens for output in outputs)},
    }


def error_code(error: TwofoldError) -> str:
    """The error in one of OpenAI's words."""
    if isinstance(error, FieldError):
        return error.code
    found = (code for kind, code in CODES if isinstance(error, kind))
    return next(found, "invalid_request" if error.status < 500 else "server_error")


def error_message(error: TwofoldError) -> str:
    """What happened and the way out, in one text."""
    return f"{error} {error.hint}" if error.hint else str(error)


def error_reply(error: TwofoldError) -> dict[str, Any]:
    """The body of a response whose status is ``error.status``."""
    return {
        "error": {
            "message": error_message(error),
            "type": "invalid_request_error" if error.status < 500 else "server_error",
            "param": error.param if isinstance(error, ParameterError) else None,
            "code": error_code(error),
        }
    }


def _whole(
    identity: str, kind: str, head: ReplyHead, choices: list[dict[str, Any]], spent: dict[str, Any]
) -> dict[str, Any]:
    return {
        "id": identity,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "usage": spent,
    }


def _chat_choice(answer: CompletionOutput, tokenizer: Tokenizer, top_logprobs: int, token_ids: bool) -> dict[str, Any]:
    choice = {
        "index": answer.index,
        "message": {"role": "assistant", "content": answer.text, "refusal": None},
        "logprobs": None if answer.logprobs is None else _chat_logprobs(answer, tokenizer, top_logprobs),
        "finish_reason": answer.finish_reason,
    }
    return choice | {"token_ids": answer.token_ids} if token_ids else choice


def _chat_logprobs(answer: CompletionOutput, tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    assert answer.logprobs is not None
    content = []
    for token, position in zip(answer.token_ids, answer.logprobs, strict=True):
        likely = sorted(position.items(), key=lambda item: item[1].rank)[:top]
        best = [_entry(*item, tokenizer) for item in likely]
        content.append(_entry(token, position[token], tokenizer) | {"top_logprobs": best})
    return {"content": content, "refusal": None}


def _entry(token: int, entry: Logprob, tokenizer: Tokenizer) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token) if token < tokenizer.vocab_size else b""
    return {"token": entry.decoded_token, "logprob": _finite(entry.logprob), "bytes": list(raw)}


@dataclass(frozen=True, slots=True)
class _Text:
    """A text with its tokens, each with what its position holds; None where nothing comes before it."""

    text: str
    tokens: list[tuple[str, int, Logprobs | None]]


def _positions(answer: CompletionOutput) -> list[tuple[str, int, Logprobs | None]]:
    pairs = zip(answer.token_ids, answer.logprobs or (), strict=False)
    return [(position[token].decoded_token, token, position) for token, position in pairs]


def _echoed(output: RequestOutput, tokenizer: Tokenizer) -> _Text:
    ids = output.prompt_token_ids
    text = tokenizer.decode(ids, skip_special_tokens=False) if output.prompt is None else output.prompt
    tokens = []
    for token, position in zip(ids, output.prompt_logprobs or (), strict=False):
        shown = tokenizer.decode([token], skip_special_tokens=False, continuation=True)
        tokens.append((shown, token, position))
    return _Text(text, tokens)


def _text_logprobs(tokens: Iterable[tuple[str, int, Logprobs | None]]) -> dict[str, Any]:
    """Four lists with an entry for each token; offsets count characters from the start of the text."""
    names: list[str] = []
    chosen: list[float | None] = []
    best: list[dict[str, float] | None] = []
    offsets: list[int] = []
    end = 0
    for text, token, position in tokens:
        names.append(text)
        chosen.append(None if position is None else _finite(position[token].logprob))
        best.append(None if position is None else _by_text(position))
        offsets.append(end)
        end += len(text)
    return {"tokens": names, "token_logprobs": chosen, "top_logprobs": best, "text_offset": offsets}


def _by_text(position: Logprobs) -> dict[str, float]:
    """Log-probabilities by the tokens' text; of tokens that look the same, the first counts."""
    found: dict[str, float] = {}
    for entry in position.values():
        found.setdefault(entry.decoded_token, _finite(entry.logprob))
    return found


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)


def _ids(answer: CompletionOutput, prompt_only: bool) -> tuple[int, ...]:
    return () if prompt_only else answer.token_ids
