"""Chunks with nothing but text have the bytes of the objects that declare them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import orjson
from hypothesis import example, given
from hypothesis import strategies as st

from twofold.api.base import ReplyHead
from twofold.api.body import encode
from twofold.api.completion import CompletionReader
from twofold.api.openai.bodies import StreamOptions
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.replies import TextChoice
from twofold.api.openai.streams import (
    ChatChunk,
    ChatChunkChoice,
    ChatDelta,
    ChatStreamer,
    CompletionChunk,
    CompletionStreamer,
)
from twofold.core.params import SamplingParams
from twofold.core.timeline import TokensMade
from twofold.engine.outputs import OutputDelta
from twofold.text.parsers.base import PlainParser
from twofold.text.parsers.thinking import ThinkingParser

TEXT = st.text(st.characters(codec="utf-8"), min_size=1)
TEXTS = st.lists(TEXT, min_size=1, max_size=4)
MODELS = st.one_of(TEXT, st.just('""'), st.just('"content":""'))
FACTS: Any = SimpleNamespace(fingerprint="twofold-1")


def expected(chunk: Any) -> bytes:
    return b"data: %b\n\n" % encode(chunk)


@given(TEXTS, MODELS, st.integers(0, 2), st.booleans())
@example(['""', '\\"', '"content":""', "\x00\u2028é😀"], '""', 2, True)
def test_chunks_of_a_chat(texts: list[str], model: str, index: int, usage: bool) -> None:
    options = StreamOptions(include_usage=usage)
    request = ChatRequest.read({"messages": [{"role": "user", "content": "a"}], "n": 3, "stream": True})
    request.stream_options = options
    head, params = ReplyHead("x", 1, model, "default"), SamplingParams(n=3)
    streamer = ChatStreamer(head, FACTS, request, params, [CompletionReader(PlainParser()) for _ in range(3)])
    end: dict[str, Any] = {"usage": None} if usage else {}
    for text in texts:
        choice = ChatChunkChoice(index=index, delta=ChatDelta(content=text))
        chunk = ChatChunk(
            id="chatcmpl-x",
            created=1,
            model=model,
            system_fingerprint="twofold-1",
            service_tier="default",
            choices=[choice],
            **end,
        )
        assert streamer.take(0, OutputDelta("r", index, text, (1,))) == expected(chunk)


@given(TEXTS, MODELS, st.integers(0, 2), st.integers(0, 1), st.booleans())
@example(['""', '\\"', '"text":""', "\x00\u2028é😀"], '""', 2, 1, True)
def test_chunks_of_completions(texts: list[str], model: str, index: int, job: int, usage: bool) -> None:
    request = CompletionRequest.read({"prompt": ["a", "b"], "n": 3, "stream": True})
    request.stream_options = StreamOptions(include_usage=usage)
    streamer = CompletionStreamer(
        ReplyHead("x", 1, model), FACTS, request, SamplingParams(n=3), ("a", "b"), echo=False, prompt_only=False
    )
    end: dict[str, Any] = {"usage": None} if usage else {}
    for text in texts:
        choice = TextChoice(index=3 * job + index, text=text)
        chunk = CompletionChunk(
            id="cmpl-x", created=1, model=model, system_fingerprint="twofold-1", choices=[choice], **end
        )
        assert streamer.take(job, OutputDelta("r", index, text, (1,))) == expected(chunk)
    assert streamer.take(job, OutputDelta("r", index, "", (1,))) == b""


TOKENS = st.lists(st.tuples(st.integers(0, 299), st.sampled_from("dsg")), max_size=5)
PIECES = st.sampled_from(["a", "", "<thi", "nk>", "<think>", "</think>", " b", "</", "é😀", "<"])


@given(st.lists(st.tuples(st.integers(0, 2), TOKENS, PIECES), max_size=30), st.booleans())
def test_each_token_of_a_chat_comes_with_its_time_step_and_origin(
    made: list[tuple[int, list[tuple[int, str]], str]], usage: bool
) -> None:
    """Whatever text a parser withholds, and of whichever choice; without tokens, the texts are the same."""
    body = {"messages": [{"role": "user", "content": "a"}], "n": 3, "stream": True}
    if usage:
        body["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    deltas = []
    for number, (index, tokens, text) in enumerate(made):
        letters = "".join(letter for _, letter in tokens)
        how = TokensMade(number / 7, number, letters) if tokens else None
        deltas.append(OutputDelta("r", index, text, tuple(token for token, _ in tokens), made=how))
    deltas += [OutputDelta("r", index, "", (), finish_reason="stop") for index in range(3)]
    plain = _streamed(body, deltas)
    timed = _streamed({**body, "twofold": {"tokens": True}}, deltas)
    for index in range(3):
        mine = [chunk for chunk in timed if chunk["choices"][0]["index"] == index]
        own = [(delta, delta.made) for delta in deltas if delta.index == index]
        found = [
            (token, at, chunk["twofold"]["step"], letter)
            for chunk in mine
            if "twofold" in chunk
            for token, at, letter in zip(
                chunk["choices"][0]["token_ids"], chunk["twofold"]["t_ms"], chunk["twofold"]["from"], strict=True
            )
        ]
        assert found == [
            (token, round(how.at_s * 1000, 3), how.step, letter)
            for delta, how in own
            if how is not None
            for token, letter in zip(delta.token_ids, how.origins, strict=True)
        ]
        for field in ("content", "reasoning_content"):
            same = [
                "".join(
                    each["choices"][0]["delta"].get(field, "")
                    for each in chunks
                    if each["choices"][0]["index"] == index
                )
                for chunks in (plain, timed)
            ]
            assert same[0] == same[1]
    assert not any("twofold" in chunk for chunk in plain)


def _streamed(body: dict[str, Any], deltas: list[OutputDelta]) -> list[dict[str, Any]]:
    request = ChatRequest.read(body)
    parsers = [ThinkingParser("<think>", "</think>", opened=False, then=PlainParser()) for _ in range(3)]
    readers = [CompletionReader(parser) for parser in parsers]
    head = ReplyHead("x", 1, "m", prompts=[(5,) * 4])
    streamer = ChatStreamer(head, FACTS, request, SamplingParams(n=3), readers, timed=request.timed)
    events = b"".join(streamer.take(0, delta) for delta in deltas).split(b"\n\n")
    return [orjson.loads(event.removeprefix(b"data: ")) for event in events if event]
