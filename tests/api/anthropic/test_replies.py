"""Anthropic's messages as replies, whole and streamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api.anthropic.conftest import HEAD, TEMPLATE, THINKING, WEATHER, read, replied, streamed
from tests.api.completions import CALL, SampleCompletion, events, facts_of
from twofold.api.base import ModelFacts, ReplyHead
from twofold.core.errors import BusyError, WorkerError
from twofold.core.forecast import RequestProgress
from twofold.core.record import HeldPin
from twofold.engine.outputs import OutputDelta

PLAIN, THINKER = facts_of(TEMPLATE), facts_of(THINKING)
SHORT = replace(PLAIN, context=102)
"""The prompt of 100 tokens and two more are all that it takes."""
TOOL_USE = {"type": "tool_use", "id": "toolu_0123abcd000", "name": "weather", "input": {"city": "Ulm"}}


def folded(sent: list[dict[str, Any]]) -> dict[str, Any]:
    """The message that a client makes of a stream's events; asserts their order."""
    assert [event["type"] for event in sent[:2]] == ["message_start", "ping"]
    assert [event["type"] for event in sent[-2:]] == ["message_delta", "message_stop"]
    message: dict[str, Any] = sent[0]["message"]
    inputs: list[str] = []
    opened: int | None = None
    for event in sent[2:-2]:
        match event["type"]:
            case "content_block_start":
                assert opened is None
                opened = event["index"]
                assert opened == len(message["content"])
                message["content"].append(event["content_block"])
                inputs.append("")
            case "content_block_delta":
                assert event["index"] == opened
                added = {key: value for key, value in event["delta"].items() if key != "type"}
                ((name, text),) = added.items()
                if name == "partial_json":
                    inputs[-1] += text
                else:
                    message["content"][-1][name] += text
            case "content_block_stop":
                assert event["index"] == opened
                opened = None
            case other:
                raise AssertionError(other)
    assert opened is None
    for block, text in zip(message["content"], inputs, strict=True):
        if text:
            block["input"] = orjson.loads(text)
    return {**message, **sent[-2]["delta"], "usage": {**message["usage"], **sent[-2]["usage"]}}


def test_text(plain: ModelFacts) -> None:
    assert replied(read(), SampleCompletion(plain, "Hello there.")) == {
        "id": "msg_0123abcd",
        "type": "message",
        "role": "assistant",
        "model": "tiny",
        "content": [{"type": "text", "text": "Hello there."}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": 100,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": len(SampleCompletion(plain, "Hello there.").token_ids),
            "output_tokens_details": {"thinking_tokens": 0},
            "service_tier": "standard",
        },
    }


def test_calls(plain: ModelFacts) -> None:
    reply = replied(read(tools=[WEATHER]), SampleCompletion(plain, f"I look.\n{CALL}\n{CALL}"))
    second = TOOL_USE | {"id": "toolu_0123abcd001"}
    assert [block["type"] for block in reply["content"]] == ["text", "tool_use", "tool_use"]
    assert reply["content"][1:] == [TOOL_USE, second]
    assert reply["stop_reason"] == "tool_use"


def test_a_call_without_arguments_has_an_empty_input(plain: ModelFacts) -> None:
    completion = SampleCompletion(plain, '<tool_call>\n{"name": "weather"}\n</tool_call>')
    assert [block.get("input") for block in replied(read(tools=[WEATHER]), completion)["content"]] == [{}]


def test_a_call_that_was_cut_off_is_none(plain: ModelFacts) -> None:
    cut = SampleCompletion(plain, "I look.\n" + CALL.partition("Ulm")[0], finish="length")
    reply = replied(read(tools=[WEATHER], max_tokens=len(cut.token_ids)), cut)
    assert [block["type"] for block in reply["content"]] == ["text"]
    assert reply["stop_reason"] == "max_tokens"


def test_thinking(thinker: ModelFacts) -> None:
    completion = SampleCompletion(thinker, "<think>Hm, well.</think>\n\nYes.")
    reply = replied(read(), completion)
    assert reply["content"] == [
        {"type": "thinking", "thinking": "Hm, well.", "signature": "unsigned"},
        {"type": "text", "text": "Yes."},
    ]
    assert folded(events(streamed(read(), completion))) == reply
    thought = len(thinker.tokenizer.encode("<think>Hm, well.</think>", add_special_tokens=False))
    assert reply["usage"]["output_tokens_details"]["thinking_tokens"] == thought


def test_thinking_may_be_omitted_but_not_that_it_was(thinker: ModelFacts) -> None:
    request = read(thinking={"type": "adaptive", "display": "omitted"})
    completion = SampleCompletion(thinker, "<think>Hm, well.</think>Yes.")
    assert replied(request, completion)["content"][0] == {"type": "thinking", "thinking": "", "signature": "unsigned"}
    assert b"Hm" not in streamed(request, completion)


@pytest.mark.parametrize(
    ("completion", "most", "reason", "sequence"),
    [
        (SampleCompletion(PLAIN, "ab"), 100, "end_turn", None),
        (SampleCompletion(PLAIN, "ab", stop="c"), 100, "stop_sequence", "c"),
        (SampleCompletion(PLAIN, "ab", finish="length"), 2, "max_tokens", None),
        (SampleCompletion(PLAIN, "ab", finish="length"), 100, "max_tokens", None),
        (SampleCompletion(SHORT, "ab", finish="length"), 100, "model_context_window_exceeded", None),
        (SampleCompletion(SHORT, "ab", finish="length"), 2, "max_tokens", None),
        (SampleCompletion(PLAIN, "ab", finish="deadline"), 100, "max_tokens", None),
        (SampleCompletion(PLAIN, "ab", finish="repetition"), 100, "max_tokens", None),
    ],
)
def test_why_it_ended(completion: SampleCompletion, most: int, reason: str, sequence: str | None) -> None:
    for message in (
        replied(read(max_tokens=most), completion),
        folded(events(streamed(read(max_tokens=most), completion))),
    ):
        assert (message["stop_reason"], message["stop_sequence"]) == (reason, sequence)


def test_tokens_of_the_prompt_are_in_one_part_each(plain: ModelFacts) -> None:
    completion = SampleCompletion(plain, "Yes.", cached=16, pins=(HeldPin(48, 3600.0), HeldPin(64, 300.0)))
    usage = replied(read(), completion)["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (
        36,
        16,
        48,
    )
    assert usage["cache_creation"] == {"ephemeral_5m_input_tokens": 16, "ephemeral_1h_input_tokens": 32}
    assert folded(events(streamed(read(), completion)))["usage"] == usage


@pytest.mark.parametrize(
    ("tier", "sent"), [("priority", "priority"), ("batch", "batch"), ("flex", "standard"), (None, "standard")]
)
def test_tiers_have_anthropics_names(plain: ModelFacts, tier: Any, sent: str) -> None:
    head = ReplyHead("1", 0, "tiny", tier)
    assert read().reply(head, [SampleCompletion(plain, "a").output], plain).usage.service_tier == sent


def test_no_tokens_asked_for_is_a_prompt_in_the_cache(plain: ModelFacts) -> None:
    request, completion = read(max_tokens=0), SampleCompletion(plain, "a", finish="length", pins=(HeldPin(64, 300.0),))
    assert request.params.max_tokens == 1
    for message in (replied(request, completion), folded(events(streamed(request, completion)))):
        assert message["content"] == []
        assert message["stop_reason"] == "max_tokens"
        assert message["usage"]["output_tokens"] == 0
        assert message["usage"]["cache_creation_input_tokens"] == 64


def test_diagnostics_say_that_the_reason_is_unknown(plain: ModelFacts) -> None:
    request = read(diagnostics={"previous_message_id": "msg_1"})
    unknown = {"cache_miss_reason": {"type": "unavailable"}}
    assert replied(request, SampleCompletion(plain, "a"))["diagnostics"] == unknown
    assert folded(events(streamed(request, SampleCompletion(plain, "a"))))["diagnostics"] == unknown


def test_extras_are_next_to_the_usage(plain: ModelFacts) -> None:
    sent = events(streamed(read(), SampleCompletion(plain, "a"), {"queue_s": 1}))
    assert [event.get("twofold") for event in sent[-2:]] == [{"queue_s": 1}, None]


@pytest.mark.parametrize(
    ("error", "kind"), [(WorkerError("Gone."), "api_error"), (BusyError("Full.", retry_after_s=1), "overloaded_error")]
)
def test_a_stream_that_cannot_go_on_says_so(plain: ModelFacts, error: Any, kind: str) -> None:
    streamer = read().streamer(HEAD, plain)
    streamer.open()
    (sent,) = events(streamer.fail(error, "req_1"))
    assert sent == {"type": "error", "error": {"type": kind, "message": str(error)}, "request_id": "req_1"}


def test_keep_alives_are_pings_once_the_message_has_started(plain: ModelFacts) -> None:
    streamer = read().streamer(HEAD, plain)
    assert streamer.open() == b""
    assert streamer.keep_alive == b": keep-alive\n\n"
    streamer.take(0, OutputDelta("r", 0, "a", (5,), cached=3))
    assert streamer.keep_alive == b'event: ping\ndata: {"type":"ping"}\n\n'


@pytest.mark.parametrize("progressed", [False, True])
def test_the_start_tells_the_cached_tokens(plain: ModelFacts, progressed: bool) -> None:
    """With the first token, or before it when the request is admitted; once, whatever follows."""
    streamer = read().streamer(HEAD, plain)
    prompt = sum(HEAD.prompt_tokens)
    waiting = RequestProgress("r", 0.1, 2, 0, 0, prompt)
    assert streamer.progress(waiting) == b""
    running = RequestProgress("r", 0.2, None, prompt - 1, prompt - 1, prompt)
    first = OutputDelta("r", 0, "a", (5,), cached=prompt - 1)
    sent = (streamer.progress(running) if progressed else b"") + streamer.take(0, first) + streamer.progress(running)
    usages = [event["message"]["usage"] for event in events(sent) if event["type"] == "message_start"]
    assert [(used["input_tokens"], used["cache_read_input_tokens"]) for used in usages] == [(1, prompt - 1)]


def test_white_space_is_no_block_but_belongs_to_the_text_behind_it(plain: ModelFacts) -> None:
    assert replied(read(), SampleCompletion(plain, " \n"))["content"] == []
    assert replied(read(), SampleCompletion(plain, "\n a"))["content"] == [{"type": "text", "text": "\n a"}]


PARTS = ["<think>", "</think>", CALL, "<tool_call>", "</tool_call>", "{", "}", '"', "\n", " ", "a", "b ", "ß世"]

ENDS = ["stop", "length"]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(PARTS), max_size=8), st.sampled_from([PLAIN, THINKER]), st.sampled_from(["stop", "length"])
)
def test_a_stream_has_the_same_message_as_a_whole_reply(parts: list[str], facts: ModelFacts, finish: Any) -> None:
    request, completion = read(tools=[WEATHER]), SampleCompletion(facts, "".join(parts) or "x", finish=finish)
    reply = replied(request, completion)
    sent = events(streamed(request, completion))
    begun = [event["content_block"]["type"] for event in sent if event["type"] == "content_block_start"]
    if begun == [block["type"] for block in reply["content"]]:  # else the last call was cut off
        assert folded(sent) == reply
    else:
        assert finish == "length"
        assert begun[:-1] == [block["type"] for block in reply["content"]]
