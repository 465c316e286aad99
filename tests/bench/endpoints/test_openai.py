"""Reading chats and completions from servers of different makers."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.endpoints.streams import DONE, chunk, piece, read, read_whole
from twofold.bench.endpoints.endpoint import OpenAIReader
from twofold.bench.record import UNKNOWN, RecordedResponse

USAGE = {
    "prompt_tokens": 12,
    "completion_tokens": 3,
    "total_tokens": 15,
    "prompt_tokens_details": {"cached_tokens": 8},
    "completion_tokens_details": {"reasoning_tokens": 1},
}


def test_a_chat_as_openai_streams_it() -> None:
    response = read(
        "chat",
        chunk({"role": "assistant", "content": ""}, usage=None),
        chunk({"content": "Hel"}, usage=None),
        chunk({"content": "lo"}, usage=None),
        chunk({}, "stop", usage=None),
        {"choices": [], "usage": USAGE},
        DONE,
    )
    assert response.text == "Hello"
    assert list(response.moments) == [2.0, 3.0]
    assert list(response.tokens) == [UNKNOWN, UNKNOWN]
    assert [len(text) for text in response.texts] == [3, 2]
    assert (response.prompt_tokens, response.cached_tokens, response.completion_tokens) == (12, 8, 3)
    assert (response.reasoning_tokens, response.finish, response.done, response.empty) == (1, "stop", True, 0)


def test_a_completion() -> None:
    response = read("completions", piece("a"), piece(" b"), piece("", "length"), {"choices": [], "usage": USAGE}, DONE)
    assert (response.text, response.finish, response.done, response.empty) == ("a b", "length", True, 0)
    assert list(response.moments) == [1.0, 2.0]


def test_a_finish_reason_is_enough_and_its_event_may_hold_output() -> None:
    response = read("chat", chunk({"content": "all"}, "stop", usage=USAGE))
    assert (response.text, response.done, response.completion_tokens) == ("all", True, 3)
    assert not read("chat", chunk({"content": "not all"})).done


def test_thoughts_calls_and_refusals_are_output_but_no_text() -> None:
    call = {"index": 0, "id": "x", "function": {"name": "look", "arguments": ""}}
    response = read(
        "chat",
        chunk({"reasoning_content": "hmm", "content": None}),
        chunk({"reasoning": "so", "reasoning_content": "so"}),
        chunk({"tool_calls": [call]}),
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": '{"a'}}]}),
        chunk({"refusal": "no"}),
        chunk({"content": "yes"}),
    )
    assert len(response.moments) == 6
    assert response.text == "yes"


def test_content_may_be_a_list_of_parts() -> None:
    """As Mistral's reasoning models write it, streamed and whole: thoughts are output, but no text."""

    def thought(text: str) -> dict[str, object]:
        return {"type": "thinking", "thinking": [{"type": "text", "text": text}]}

    def said(text: str) -> dict[str, object]:
        return {"type": "text", "text": text}

    response = read(
        "chat",
        chunk({"role": "assistant", "content": []}),
        chunk({"content": [thought("hm")]}),
        chunk({"content": [said("Yes"), said(",")]}),
        chunk({"content": " sir."}, "stop"),
    )
    assert [len(text) for text in response.texts] == [0, 4, 5]
    assert (response.text, response.done, response.empty) == ("Yes, sir.", True, 0)
    message = {"role": "assistant", "content": [thought("hm"), said("Yes"), 5, None, "!"]}
    whole = read_whole("chat", {"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE})
    assert (whole.text, list(whole.tokens)) == ("Yes!", [3])
    deep: object = "x"
    for _ in range(100):
        deep = [{"type": "thinking", "thinking": deep}]
    assert len(read("chat", chunk({"content": deep})).moments) == 1


def test_empty_events_are_those_that_could_hold_output() -> None:
    nothing: dict[str, object] = {"choices": [], "prompt_filter_results": []}
    response = read("chat", nothing, chunk({"role": "assistant"}), chunk({"content": ""}), chunk({}), chunk({}, "stop"))
    assert (response.empty, len(response.moments)) == (2, 0)


def test_token_ids_count_without_text() -> None:
    response = read("chat", chunk({"content": "ab"}, token_ids=[5, 6]), chunk({"content": ""}, token_ids=[7]))
    assert list(response.tokens) == [2, 1]
    assert list(response.moments) == [1.0, 2.0]


def test_log_probabilities_count_tokens() -> None:
    chat = read("chat", chunk({"content": "ab"}, logprobs={"content": [{"token": "a"}, {"token": "b"}]}))
    text = read("completions", piece("abc", logprobs={"tokens": ["a", "b", "c"]}))
    assert list(chat.tokens) == [2]
    assert list(text.tokens) == [3]


def test_a_growing_usage_counts_tokens() -> None:
    grown = [{"prompt_tokens": 12, "completion_tokens": count} for count in (0, 1, 4, 5)]
    response = read(
        "chat",
        chunk({"role": "assistant", "content": ""}, usage=grown[0]),
        chunk({"content": "a"}, usage=grown[1]),
        chunk({"content": "bcd"}, usage=grown[2]),
        chunk({}, "stop", usage=grown[3]),
        {"choices": [], "usage": grown[3]},
        DONE,
    )
    assert list(response.tokens) == [1, 3, 1]


def test_a_usage_only_at_the_end_does_not_count_tokens_of_events() -> None:
    response = read("chat", chunk({"content": "a"}), chunk({"content": "b"}, "stop", usage=USAGE))
    assert list(response.tokens) == [UNKNOWN, UNKNOWN]
    assert response.completion_tokens == 3


def test_further_choices_are_output_too() -> None:
    both = {"choices": [{"index": 0, "delta": {"content": "a"}}, {"index": 1, "delta": {"content": "bc"}}]}
    response = read("chat", both, {"choices": [{"index": 1, "delta": {"content": "d"}}]})
    assert response.texts == ["abc", "d"]


@pytest.mark.parametrize(
    ("event", "said"),
    [
        ({"error": {"message": "out of memory", "type": "server_error"}}, "out of memory"),
        ({"error": "overloaded", "error_type": "overloaded"}, "overloaded"),
        ({"object": "error", "message": "bad", "code": 500}, "bad"),
        ({"error": {"message": "later"}, "choices": [{"delta": {"content": ""}, "finish_reason": "error"}]}, "later"),
        ({"error": {"code": 7}}, "the server reports an error without a message"),
    ],
)
def test_errors_in_the_middle(event: dict[str, object], said: str) -> None:
    response = read("chat", chunk({"content": "a"}), event, DONE)
    assert response.error == said


def test_a_whole_chat() -> None:
    message = {"role": "assistant", "content": "Hello", "reasoning_content": "hm"}
    response = read_whole("chat", {"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE})
    assert (response.text, response.streamed, response.done, response.finish) == ("Hello", False, True, "stop")
    assert (list(response.moments), list(response.tokens)) == ([5.0], [3])


def test_a_whole_completion_without_usage() -> None:
    response = read_whole("completions", {"choices": [{"text": "abc", "finish_reason": "length"}]})
    assert (response.text, list(response.tokens), response.completion_tokens) == ("abc", [UNKNOWN], None)


def test_a_whole_response_may_be_an_error_or_empty() -> None:
    assert read_whole("chat", {"error": {"message": "no"}}).error == "no"
    with pytest.raises(ValueError, match="choices"):
        read_whole("chat", {"hello": 1})


def test_json_that_orjson_rejects() -> None:
    response = read(
        "chat", b'{"choices":[{"delta":{"content":"\\ud83d"},"logprobs":{"content":[{"logprob":-Infinity}]}}]}'
    )
    assert (response.text, list(response.tokens)) == ("?", [1])


@pytest.mark.parametrize("data", [b"", b"{", b"[1]", b"null", b'{"choices":[1]}', b"[" * 100_000, b"\xff\xfe"])
def test_an_invalid_event_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError):
        read("chat", data)


NAMES = (
    *("choices", "delta", "message", "text", "content", "usage", "error", "logprobs", "token_ids", "tool_calls"),
    *("function", "type", "completion_tokens", "prompt_tokens", "prompt_tokens_details", "finish_reason"),
    *("arguments", "reasoning"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(said=JSON, whole=st.booleans())
def test_any_json_is_read_or_refused(said: object, whole: bool) -> None:
    reader = OpenAIReader(RecordedResponse())
    data = json.dumps(said).encode()
    with contextlib.suppress(ValueError):
        reader.whole(data, 1.0) if whole else reader.event(None, data, 1.0)
