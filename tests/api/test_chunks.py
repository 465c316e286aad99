"""Chunks with nothing but text have the bytes of the objects that declare them."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from twofold.api.base import ReplyHead
from twofold.api.body import encode
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
from twofold.engine.outputs import OutputDelta
from twofold.text.parsers.base import PlainParser

TEXT = st.text(st.characters(codec="utf-8"), min_size=1)
TEXTS = st.lists(TEXT, min_size=1, max_size=4)
MODELS = st.one_of(TEXT, st.just('""'), st.just('"content":""'))
UNUSED: Any = None


def expected(chunk: Any) -> bytes:
    return b"data: %b\n\n" % encode(chunk)


@given(TEXTS, MODELS, st.integers(0, 2), st.booleans())
@example(['""', '\\"', '"content":""', "\x00\u2028é😀"], '""', 2, True)
def test_chunks_of_a_chat(texts: list[str], model: str, index: int, usage: bool) -> None:
    options = StreamOptions(include_usage=usage)
    request = ChatRequest.read({"messages": [{"role": "user", "content": "a"}], "n": 3, "stream": True})
    request.stream_options = options
    head, params = ReplyHead("x", 1, model, "default"), SamplingParams(n=3)
    streamer = ChatStreamer(head, UNUSED, request, params, [PlainParser() for _ in range(3)])
    end: dict[str, Any] = {"usage": None} if usage else {}
    for text in texts:
        choice = ChatChunkChoice(index=index, delta=ChatDelta(content=text))
        chunk = ChatChunk(id="chatcmpl-x", created=1, model=model, service_tier="default", choices=[choice], **end)
        assert streamer.take(0, OutputDelta("r", index, text, (1,))) == expected(chunk)


@given(TEXTS, MODELS, st.integers(0, 2), st.integers(0, 1), st.booleans())
@example(['""', '\\"', '"text":""', "\x00\u2028é😀"], '""', 2, 1, True)
def test_chunks_of_completions(texts: list[str], model: str, index: int, job: int, usage: bool) -> None:
    request = CompletionRequest.read({"prompt": ["a", "b"], "n": 3, "stream": True})
    request.stream_options = StreamOptions(include_usage=usage)
    streamer = CompletionStreamer(ReplyHead("x", 1, model), UNUSED, request, SamplingParams(n=3), ())
    end: dict[str, Any] = {"usage": None} if usage else {}
    for text in texts:
        choice = TextChoice(index=3 * job + index, text=text)
        chunk = CompletionChunk(id="cmpl-x", created=1, model=model, choices=[choice], **end)
        assert streamer.take(job, OutputDelta("r", index, text, (1,))) == expected(chunk)
    assert streamer.take(job, OutputDelta("r", index, "", (1,))) == b""
