"""Completions made of given texts, and the events of a stream, for the tests of several API protocols."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from twofold.api.base import DialectRequest, ModelFacts, ReplyHead
from twofold.api.body import encode
from twofold.core.record import HeldPin, SequenceRecord
from twofold.core.report import RequestMetrics
from twofold.core.step import FinishReason
from twofold.engine.outputs import CompletionOutput, Logprob, Logprobs, OutputDelta, RequestOutput
from twofold.text.parsers.format import CompletionFormat

END = 2
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'


def data_of(reply: object) -> Any:
    """A reply as a client reads it."""
    return json.loads(encode(reply))


def facts_of(template: str) -> ModelFacts:
    tokenizer = tokenizer_of({**tokenizer_metadata(300), "tokenizer.chat_template": template})
    return ModelFacts(tokenizer, CompletionFormat.of(tokenizer), context=4096, hidden_size=8)


def positions(facts: ModelFacts, token_ids: Sequence[int]) -> tuple[Logprobs, ...]:
    """Each token with log-probability −1, and token 0 as the most likely one."""

    def entry(token: int, logprob: float, rank: int) -> Logprob:
        text = facts.tokenizer.decode([token], skip_special_tokens=False, continuation=True)
        return Logprob(logprob, rank, text)

    return tuple({token: entry(token, -1.0, 2), 0: entry(0, -0.5, 1)} for token in token_ids)


@dataclass(frozen=True)
class SampleCompletion:
    """A completion of these tokens, and of an end-of-sequence token if no stop string and no limit ended it."""

    facts: ModelFacts
    text: str
    finish: FinishReason = "stop"
    logprobs: bool = False
    cached: int = 0
    pins: tuple[HeldPin, ...] = ()
    stop: str | None = None
    prompt_tokens: int = 100

    @property
    def token_ids(self) -> tuple[int, ...]:
        ids = tuple(self.facts.tokenizer.encode(self.text, add_special_tokens=False))
        return (*ids, END) if self.finish == "stop" and self.stop is None else ids

    @property
    def output(self) -> RequestOutput:
        ids, prompt = self.token_ids, self.prompt_tokens
        logprobs = positions(self.facts, ids) if self.logprobs else None
        completion = CompletionOutput(0, self.text, ids, logprobs, None, self.finish, self.stop)
        times = tuple(2.0 + index for index in range(len(ids)))
        record = SequenceRecord(pins=list(self.pins))
        metrics = RequestMetrics(0.0, 1.0, 2.0, 3.0, (times,), prompt, self.cached, "r1", (self.finish,), record)
        return RequestOutput("r1", None, tuple(range(prompt)), None, (completion,), metrics, True)

    @property
    def deltas(self) -> Iterator[OutputDelta]:
        """A delta for each token."""
        ids, done = self.token_ids, ""
        for count, token in enumerate(ids, 1):
            last = count == len(ids)
            text = self.text if last else self.facts.tokenizer.decode(ids[:count]).rstrip("\ufffd")
            logprobs = positions(self.facts, [token]) if self.logprobs else None
            finish, stop = (self.finish, self.stop) if last else (None, None)
            yield OutputDelta("r1", 0, text[len(done) :], (token,), logprobs, finish, stop)
            done = text

    def streamed(self, request: DialectRequest, head: ReplyHead, extra: Any = UNSET) -> bytes:
        """The bytes of the stream that replies to ``request``."""
        streamer = request.streamer(head, self.facts)
        sent = [streamer.open(), *(streamer.take(0, delta) for delta in self.deltas)]
        return b"".join(sent) + streamer.close([self.output], extra)


def events(raw: bytes) -> list[dict[str, Any]]:
    """The data of server-sent events, each of which is named as its type."""
    found = []
    for event in raw.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found
