"""OpenAI's response bodies, made of what the engine gave: plain data, ready to be written as JSON."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from struct import pack
from typing import Any

from twofold.api.answers import AnswerReader, read_answer
from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.openai.logprobs import Echo, answer_positions, chat_logprobs, text_logprobs
from twofold.api.openai.usage import usage
from twofold.core.step import FinishReason
from twofold.engine.outputs import CompletionOutput, RequestOutput
from twofold.text.parsers.base import SectionParser


def chat_completion(
    head: ReplyHead,
    output: RequestOutput,
    model: ModelFacts,
    parser: Callable[[], SectionParser],
    *,
    top_logprobs: int = 0,
    token_ids: bool = False,
) -> dict[str, Any]:
    """A ``chat.completion``; each answer is divided by a ``parser`` of its own.

    ``top_logprobs`` is how many of the most likely tokens were asked for; ``token_ids`` adds those of prompt and
    answers, under vLLM's names.
    """
    choices = [_chat_choice(head, answer, model, parser(), top_logprobs, token_ids) for answer in output.outputs]
    whole = _whole(f"chatcmpl-{head.id}", "chat.completion", head, choices, usage([output], model))
    return whole | {"prompt_token_ids": output.prompt_token_ids} if token_ids else whole


def text_completion(
    head: ReplyHead,
    outputs: Sequence[RequestOutput],
    model: ModelFacts,
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
        before = Echo.of(output, model.tokenizer) if echo else Echo("", [])
        for answer in output.outputs:
            text, positions = ("", []) if prompt_only else (answer.text, _positions(answer))
            choice = {
                "index": len(choices),
                "text": before.text + text,
                "logprobs": None if answer.logprobs is None else text_logprobs([*before.tokens, *positions]),
                "finish_reason": chat_finish(answer.finish_reason),
            }
            if token_ids:
                drawn = () if prompt_only else answer.token_ids
                choice |= {"prompt_token_ids": output.prompt_token_ids, "token_ids": drawn}
            choices.append(choice)
    spent = usage(outputs, model, answers=not prompt_only)
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


def chat_finish(finish: FinishReason | None) -> str | None:
    """How an answer ended, in OpenAI's words, which know no time that was up."""
    match finish:
        case "deadline":
            return "length"
        case "abort":
            return "stop"
    return finish


def call_id(head: ReplyHead, answer: int, call: int) -> str:
    """The id of a call: the same whether the reply is streamed or not."""
    return f"call_{head.id}_{answer}_{call}"


def tool_calls(head: ReplyHead, answer: int, reader: AnswerReader) -> list[dict[str, Any]]:
    """The calls of an answer."""
    return [
        {
            "id": call_id(head, answer, number),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for number, call in enumerate(reader.calls)
    ]


def _packed(vector: Sequence[float]) -> str:
    return b64encode(pack(f"<{len(vector)}f", *vector)).decode()


def _whole(
    identity: str, kind: str, head: ReplyHead, choices: list[dict[str, Any]], spent: dict[str, Any]
) -> dict[str, Any]:
    whole = {
        "id": identity,
        "object": kind,
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "usage": spent,
    }
    return whole if head.service_tier is None else whole | {"service_tier": head.service_tier}


def _chat_choice(
    head: ReplyHead,
    answer: CompletionOutput,
    model: ModelFacts,
    parser: SectionParser,
    top_logprobs: int,
    token_ids: bool,
) -> dict[str, Any]:
    reader = read_answer(parser, answer.text)
    message: dict[str, Any] = {"role": "assistant", "content": reader.content, "refusal": None}
    if reader.reasoning:
        message["reasoning_content"] = reader.reasoning
    if reader.calls:
        message["content"] = reader.content or None
        message["tool_calls"] = tool_calls(head, answer.index, reader)
    logprobs = None
    if answer.logprobs is not None:
        logprobs = chat_logprobs(answer.token_ids, answer.logprobs, model.tokenizer, top_logprobs)
    choice = {
        "index": answer.index,
        "message": message,
        "logprobs": logprobs,
        "finish_reason": "tool_calls" if reader.called(answer.finish_reason) else chat_finish(answer.finish_reason),
    }
    return choice | {"token_ids": answer.token_ids} if token_ids else choice


def _positions(answer: CompletionOutput) -> list[Any]:
    return answer_positions(answer.token_ids, answer.logprobs)
