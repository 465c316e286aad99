"""A tokenizer whose template has tools and thinking, and answers made of given texts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.support.vocabulary import tokenizer_metadata, tokenizer_of
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import ModelFacts, ReplyHead
from twofold.core.record import HeldPin, SequenceRecord
from twofold.core.report import RequestMetrics
from twofold.core.step import FinishReason
from twofold.engine.outputs import CompletionOutput, OutputDelta, RequestOutput
from twofold.text.parsers.format import AnswerFormat

TEMPLATE = (
    "{% for tool in tools or [] %}tool {{ tool | tojson }}\n{% endfor %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content or '' }}{{ m.content }}"
    "{% for call in m.tool_calls or [] %}{{ '\n' }}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
THINKING = TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
END = 2
HEAD = ReplyHead("0123abcd", 1_700_000_000, "tiny", "default")
WEATHER = {
    "name": "weather",
    "description": "Tells the weather of a city.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'


def facts_of(template: str) -> ModelFacts:
    tokenizer = tokenizer_of({**tokenizer_metadata(300), "tokenizer.chat_template": template})
    return ModelFacts(tokenizer, AnswerFormat.of(tokenizer), context=4096, hidden_size=8)


@pytest.fixture(scope="session")
def plain() -> ModelFacts:
    """A model that does not think."""
    return facts_of(TEMPLATE)


@pytest.fixture(scope="session")
def thinker() -> ModelFacts:
    return facts_of(THINKING)


def body(**fields: Any) -> dict[str, Any]:
    """A body; a field that is None is left out."""
    whole = {"model": "tiny", "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}], **fields}
    return {name: value for name, value in whole.items() if value is not None}


def read(**fields: Any) -> MessagesRequest:
    return MessagesRequest.read(body(**fields))


@dataclass(frozen=True)
class Made:
    """An answer of these tokens, and of an end-of-sequence token if it ended by itself. The prompt has 100 tokens."""

    facts: ModelFacts
    text: str
    finish: FinishReason = "stop"
    stop: str | None = None
    cached: int = 0
    pins: tuple[HeldPin, ...] = ()

    @property
    def token_ids(self) -> tuple[int, ...]:
        ids = tuple(self.facts.tokenizer.encode(self.text, add_special_tokens=False))
        return (*ids, END) if self.finish == "stop" and self.stop is None else ids

    @property
    def output(self) -> RequestOutput:
        ids = self.token_ids
        answer = CompletionOutput(0, self.text, ids, None, None, self.finish, self.stop)
        times = tuple(2.0 + index for index in range(len(ids)))
        record = SequenceRecord(pins=list(self.pins))
        metrics = RequestMetrics(0.0, 1.0, 2.0, 3.0, (times,), 100, self.cached, "r1", (self.finish,), record)
        return RequestOutput("r1", None, tuple(range(100)), None, (answer,), metrics, True)

    @property
    def deltas(self) -> Iterator[OutputDelta]:
        """A delta for each token."""
        ids, done = self.token_ids, ""
        for count, token in enumerate(ids, 1):
            last = count == len(ids)
            text = self.text if last else self.facts.tokenizer.decode(ids[:count]).rstrip("\ufffd")
            stop = self.stop if last else None
            yield OutputDelta("r1", 0, text[len(done) :], (token,), None, self.finish if last else None, stop)
            done = text


def events(raw: bytes) -> list[dict[str, Any]]:
    """The data of server-sent events, each of which is named as its type."""
    found = []
    for event in raw.decode().split("\n\n")[:-1]:
        name, data = event.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def streamed(request: MessagesRequest, made: Made, extra: dict[str, Any] | None = None) -> bytes:
    streamer = request.streamer(HEAD, made.facts)
    told = [streamer.open(), *(streamer.take(0, delta) for delta in made.deltas)]
    return b"".join(told) + streamer.close([made.output], extra)


def replied(request: MessagesRequest, made: Made) -> dict[str, Any]:
    return request.reply(HEAD, [made.output], made.facts)
