"""Server-sent events as OpenAI's clients parse them, written without building what is the same in every chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from twofold.api.base import ReplyHead
from twofold.api.openai.errors import error_reply
from twofold.core.errors import TwofoldError

DONE: Final = b"data: [DONE]\n\n"
KEEP_ALIVE: Final = b": keep-alive\n\n"
NO_USAGE: Final = b',"usage":null'


class RunningUsage:
    """Tokens of each choice so far, as vLLM's continuous_usage_stats reports them in its chunks.

    prompts  tokens of each prompt
    answers  choices of each prompt
    """

    def __init__(self, prompts: Sequence[int], answers: int) -> None:
        self._prompts = [tokens for tokens in prompts for _ in range(answers)]
        self._answers = [0] * len(self._prompts)

    def add(self, index: int, tokens: int) -> None:
        self._answers[index] += tokens

    def field(self, index: int) -> bytes:
        prompt, answer = self._prompts[index], self._answers[index]
        return b',"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}' % (
            prompt,
            answer,
            prompt + answer,
        )


class ChunkFrame:
    """Chunks of one reply, which differ in their choices only.

    usage    whether the last one has the tokens of the whole request
    running  the usage of every other chunk
    """

    def __init__(
        self, identity: str, kind: str, head: ReplyHead, *, usage: bool, running: RunningUsage | None = None
    ) -> None:
        same = {"id": identity, "object": kind, "created": head.created, "model": head.model}
        if head.service_tier is not None:
            same["service_tier"] = head.service_tier
        self._usage = usage
        self._running = running
        self._start = b"data: " + orjson.dumps(same)[:-1]
        self._choice = self._start + b',"choices":['
        self._end = b"]" + (NO_USAGE if usage else b"") + b"}\n\n"

    def choice(self, index: int, choice: bytes) -> bytes:
        """A chunk with one choice, given as JSON."""
        end = self._end if self._running is None else b"]" + self._running.field(index) + b"}\n\n"
        return self._choice + choice + end

    def last(self, spent: dict[str, Any], extra: Any | None) -> bytes:
        """The chunk without choices that ends a stream: with usage or extras, if either was asked for."""
        more: dict[str, Any] = {"choices": []}
        if self._usage:
            more["usage"] = spent
        if extra is not None:
            more["twofold"] = extra
        return self._start + b"," + orjson.dumps(more)[1:] + b"\n\n" if len(more) > 1 else b""


def failure(error: TwofoldError) -> bytes:
    """The event that ends a stream which cannot go on."""
    return b"data: " + orjson.dumps(error_reply(error)) + b"\n\n" + DONE
