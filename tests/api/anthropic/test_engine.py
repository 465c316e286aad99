"""Anthropic's messages on the mock engine: what is held is written once, and read from then on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tests.api.anthropic.conftest import HEAD, body
from tests.api.completions import data_of
from tests.engine.conftest import MakeLLM
from tests.support.clock import VirtualClock
from twofold.api.anthropic.messages import MessagesRequest
from twofold.api.base import ModelFacts
from twofold.core.params import SamplingParams
from twofold.engine.llm import LLM
from twofold.engine.outputs import RequestOutput
from twofold.text.parsers.format import CompletionFormat

HOUR = {"type": "ephemeral", "ttl": "1h"}
SOON = {"type": "ephemeral"}
BLOCK = 4


def text(said: str, control: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"type": "text", "text": said} | ({} if control is None else {"cache_control": control})


def facts_of(llm: LLM) -> ModelFacts:
    return ModelFacts(llm.get_tokenizer(), CompletionFormat.of(llm.get_tokenizer()), 4096, 8)


def ask(llm: LLM, facts: ModelFacts, nonce: int, asked: str) -> dict[str, Any]:
    """The usage of a request whose system prompt is held for an hour and whose question for five minutes."""
    header = text(f"x-anthropic-billing-header: cch={nonce};")
    question = {"role": "user", "content": [text(asked, SOON)]}
    given = body(max_tokens=2, system=[header, text("Be very kind to all.", HOUR)], messages=[question])
    request = MessagesRequest.read(given)
    (job,) = request.prepare(facts)
    assert isinstance(job.params, SamplingParams)
    prompt: Sequence[int] = job.token_ids
    outputs: list[RequestOutput] = llm.generate({"prompt_token_ids": prompt}, job.params, options=job.options)
    usage: dict[str, Any] = data_of(request.reply(HEAD, outputs, facts))["usage"]
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    assert sum(usage[part] for part in parts) == len(prompt)
    assert usage["output_tokens"] == 2
    return usage


def test_what_is_held_is_written_once_and_then_read(make_llm: MakeLLM) -> None:
    llm = make_llm(context=200, blocks=200, block_size=BLOCK)
    facts = facts_of(llm)
    first = ask(llm, facts, 1, "What is it?")
    held = first["cache_creation"]
    assert held["ephemeral_1h_input_tokens"] > 0
    assert held["ephemeral_5m_input_tokens"] > 0
    assert first["cache_read_input_tokens"] == 0

    again = ask(llm, facts, 22, "What is it?")
    assert again["cache_read_input_tokens"] >= first["cache_creation_input_tokens"]
    assert again["cache_creation_input_tokens"] == 0

    other = ask(llm, facts, 333, "And how?")
    assert other["cache_read_input_tokens"] >= held["ephemeral_1h_input_tokens"]
    assert other["cache_creation"]["ephemeral_1h_input_tokens"] == 0
    assert other["cache_creation"]["ephemeral_5m_input_tokens"] > 0


def test_each_time_to_live_is_kept(make_llm: MakeLLM) -> None:
    clock = VirtualClock()
    llm = make_llm(clock=clock, context=200, blocks=60, block_size=BLOCK)
    facts = facts_of(llm)
    held = ask(llm, facts, 1, "What is it?")["cache_creation"]
    for minutes, everything in ((4, True), (6, False)):
        clock.advance(60.0 * minutes)
        for other in range(4):  # each needs nearly half of the cache
            llm.generate({"prompt_token_ids": [10 + other] * 100}, SamplingParams(max_tokens=1))
        usage = ask(llm, facts, minutes, "What is it?")
        lost = usage["cache_creation"]["ephemeral_5m_input_tokens"]
        assert (lost == 0) is everything
        assert usage["cache_creation"]["ephemeral_1h_input_tokens"] == 0
        assert usage["cache_read_input_tokens"] >= held["ephemeral_1h_input_tokens"]
