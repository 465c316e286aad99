"""A tokenizer whose template has tools and thinking, and answers made of given texts."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.openai.responses.request import ResponsesRequest
from twofold.core.record import HeldPin, SequenceRecord
from twofold.core.report import RequestMetrics
from twofold.core.step import FinishReason
from twofold.engine.outputs import CompletionOutput, Logprob, Logprobs, OutputDelta, RequestOutput
from twofold.text.parsers.format import AnswerFormat

TEMPLATE = """
{%- for tool in tools or [] %}tool {{ tool | tojson }}
{% endfor %}
{%- for m in messages %}{{ m.role }}: {{ m.reasoning_content or '' }}{{ m.content }}
{%- for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}
{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}{# <think></think> #}"""
END = 2
HEAD = ReplyHead("r1", 1_700_000_000, "tiny", "default")
WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'


@pytest.fixture(scope="session")
def facts() -> ModelFacts:
    tokenizer = tokenizer_of({**tokenizer_metadata(300), "tokenizer.chat_template": TEMPLATE})
    return ModelFacts(tokenizer, AnswerFormat.of(tokenizer), context=4096, hidden_size=8)


def read(**fields: Any) -> ResponsesRequest:
    return ResponsesRequest.read({"model": "tiny", "input": "hello", **fields})


def positions(facts: ModelFacts, token_ids: Sequence[int]) -> tuple[Logprobs, ...]:
    """Each token with log-probability −1, and token 0 as the most likely one."""

    def entry(token: int, logprob: float, rank: int) -> Logprob:
        text = facts.tokenizer.decode([token], skip_special_tokens=False, continuation=True)
        return Logprob(logprob, rank, text)

    return tuple({token: entry(token, -1.0, 2), 0: entry(0, -0.5, 1)} for token in token_ids)


@dataclass(frozen=True)
class Made:
    """An answer that consists of these tokens and of an end-of-sequence token, if it ended with "stop"."""

    facts: ModelFacts
    text: str
    finish: FinishReason = "stop"
    logprobs: bool = False
    cached: int = 0
    pins: tuple[HeldPin, ...] = ()

    @property
    def token_ids(self) -> tuple[int, ...]:
        ids = tuple(self.facts.tokenizer.encode(self.text, add_special_tokens=False))
        return (*ids, END) if self.finish == "stop" else ids

    @property
    def output(self) -> RequestOutput:
        ids = self.token_ids
        answer = CompletionOutput(
            0, self.text, ids, positions(self.facts, ids) if self.logprobs else None, None, self.finish, None
        )
        times = tuple(2.0 + index for index in range(len(ids)))
        record = SequenceRecord(pins=list(self.pins))
        metrics = RequestMetrics(0.0, 1.0, 2.0, 3.0, (times,), 10, self.cached, "r1", (self.finish,), record)
        return RequestOutput("r1", None, tuple(range(10)), None, (answer,), metrics, True)

    @property
    def deltas(self) -> Iterator[OutputDelta]:
        """A delta for each token."""
        ids, done = self.token_ids, ""
        for count, token in enumerate(ids, 1):
            last = count == len(ids)
            text = self.text if last else self.facts.tokenizer.decode(ids[:count]).rstrip("\ufffd")
            logprobs = positions(self.facts, [token]) if self.logprobs else None
            finish = self.finish if last else None
            yield OutputDelta("r1", 0, text[len(done) :], (token,), logprobs, finish)
            done = text


def events(raw: bytes) -> list[dict[str, Any]]:
    """The data of server-sent events, each of which is named as its type."""
    found = []
    for event in raw.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def streamed(request: ResponsesRequest, made: Made) -> bytes:
    streamer = request.streamer(HEAD, made.facts)
    told = [streamer.open(), *(streamer.take(0, delta) for delta in made.deltas)]
    return b"".join(told) + streamer.close([made.output])
