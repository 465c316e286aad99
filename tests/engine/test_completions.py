"""How completions end, and their text at the end."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.conftest import VOCAB, MakeLLM
from tests.engine.scripted import ScriptedForward
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.request import DeliveredCompletion
from twofold.core.step import PositionLogprobs, TokenEvent, TokenLogprob
from twofold.engine.outputs import CompletionOutput, OutputDelta, RequestOutput
from twofold.engine.request import SequenceCompletion
from twofold.text.tokenizers.tokenizer import Tokenizer

EOS = 2
PROMPT = {"prompt_token_ids": [10, 11, 12]}


class Saying:
    """Runs the script of ``text`` (byte by byte) and ``then`` through an LLM."""

    def __init__(self, make_llm: MakeLLM, tokenizer: Tokenizer) -> None:
        self._make, self._tokenizer = make_llm, tokenizer

    def byte_ids(self, text: str) -> list[int]:
        """One token for each byte, never a merged one."""
        return [3 + self._letters().index(letter) for letter in text.encode()]

    @staticmethod
    def _letters() -> list[int]:
        return list(range(256))

    def deltas(self, text: str, then: list[int] | None = None, **params: Any) -> list[OutputDelta]:
        script = [*self.byte_ids(text), *([EOS] if then is None else then)]
        llm = self._make(forward=ScriptedForward(script, 3, VOCAB))
        return list(llm.stream(PROMPT, SamplingParams(**{"temperature": 0, "max_tokens": 40, **params})))  # type: ignore[arg-type]

    def __call__(self, text: str, then: list[int] | None = None, **params: Any) -> CompletionOutput:
        deltas = self.deltas(text, then, **params)
        whole = deltas[-1].request
        assert whole is not None
        assert "".join(delta.text for delta in deltas) == whole.outputs[0].text
        assert sum((delta.token_ids for delta in deltas), ()) == whole.outputs[0].token_ids
        return whole.outputs[0]


@pytest.fixture
def say(make_llm: MakeLLM, tokenizer: Tokenizer) -> Saying:
    return Saying(make_llm, tokenizer)


def ending(output: CompletionOutput) -> tuple[str, object, object]:
    return output.text, output.finish_reason, output.stop_reason


def test_end_of_sequence(say: Saying) -> None:
    output = say("hello")
    assert ending(output) == ("hello", "stop", None)
    assert output.token_ids[-1] == EOS
    assert len(output.token_ids) == 6


def test_special_tokens_stay_in_the_text_on_request(say: Saying) -> None:
    assert say("hi", [1, *say.byte_ids("!"), EOS], skip_special_tokens=False).text == "hi<|im_start|>!"
    assert say("hi", [1, *say.byte_ids("!"), EOS]).text == "hi!"


LOOP = "well, " + "la di da " * 30 + "stop"
FOUND = len("well,") + 64
"""Tokens until the repetition of " la di da" is found."""


def looping(make_llm: MakeLLM, say: Saying, *, stop_loops: bool, **params: Any) -> RequestOutput:
    llm = make_llm(forward=ScriptedForward([*say.byte_ids(LOOP), EOS], 3, VOCAB), stop_loops=stop_loops, context=400)
    sampling = SamplingParams(**{"temperature": 0, "max_tokens": 300, **params})
    return llm.generate(PROMPT, sampling)[0]  # type: ignore[arg-type]


def test_a_completion_that_repeats_itself_is_named(make_llm: MakeLLM, say: Saying) -> None:
    output = looping(make_llm, say, stop_loops=False)
    assert ending(output.outputs[0]) == (LOOP, "stop", None)
    assert output.metrics.repeats == (9, 30)


def test_a_repetition_ends_a_completion_on_request(make_llm: MakeLLM, say: Saying) -> None:
    output = looping(make_llm, say, stop_loops=True)
    assert ending(output.outputs[0]) == (LOOP[:FOUND], "repetition", None)
    assert (output.metrics.repeats, output.metrics.finish_reasons) == ((9, 7), ("repetition",))
    late = looping(make_llm, say, stop_loops=True, min_tokens=100)
    assert len(late.outputs[0].token_ids) == 101


@pytest.mark.parametrize(
    "params", [{"ignore_eos": True}, {"structured_outputs": StructuredOutputsParams(regex=".*")}], ids=str
)
def test_what_must_go_on_is_not_ended(make_llm: MakeLLM, say: Saying, params: dict[str, Any]) -> None:
    output = looping(make_llm, say, stop_loops=True, max_tokens=200, **params)
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (200, "length")
    assert output.metrics.repeats == (9, 21)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12))
def test_the_end_of_a_repetition_does_not_depend_on_steps(tokenizer: Tokenizer, sizes: list[int]) -> None:
    """Several tokens of a step, as speculation gives them, end where single ones do; the rest is dropped."""
    tokens = [3 + byte for byte in LOOP.encode()]
    completion = SequenceCompletion("mine", 0, tokenizer, SamplingParams(max_tokens=400), stop_loops=True)
    for size in cycle(sizes):
        event, tokens = TokenEvent(0, tuple(tokens[:size]), (), ()), tokens[size:]
        completion.take(event, now=1.0)
        if completion.finish is not None:
            break
    output = completion.output()
    assert (len(output.token_ids), output.text, output.finish_reason) == (FOUND, LOOP[:FOUND], "repetition")
    resumed = SequenceCompletion("mine", 0, tokenizer, SamplingParams(max_tokens=400), stop_loops=True)
    resumed.restore(DeliveredCompletion(output.token_ids[:50]))
    resumed.take(TokenEvent(0, (*output.token_ids[50:], 9, 9), (), ()), now=1.0)
    assert (resumed.output(), resumed.repeats) == (output, completion.repeats)


def test_length(say: Saying) -> None:
    assert ending(say("hello", max_tokens=3)) == ("hel", "length", None)


def test_length_counts_before_the_context_ends(say: Saying) -> None:
    output = say("x" * 100, [], max_tokens=None)
    assert output.finish_reason == "length"
    assert len(output.token_ids) == 64 - 3


def test_max_tokens_beyond_the_context_is_clipped(say: Saying) -> None:
    output = say("x" * 100, [], max_tokens=1000)
    assert (output.finish_reason, len(output.token_ids)) == ("length", 61)


def test_end_of_sequence_at_the_last_token_is_a_stop(say: Saying) -> None:
    assert say("ab", max_tokens=3).finish_reason == "stop"


def test_ignore_eos(say: Saying) -> None:
    output = say("ab", [EOS, *say.byte_ids("cd")], ignore_eos=True, max_tokens=5)
    assert ending(output) == ("abcd", "length", None)


def test_stop_token(say: Saying) -> None:
    stop = say.byte_ids("l")[0]
    assert ending(say("hello", stop_token_ids=[stop])) == ("he", "stop", stop)
    assert ending(say("hello", stop_token_ids=[stop], include_stop_str_in_output=True)) == ("hel", "stop", stop)


def test_stop_string_across_tokens(say: Saying) -> None:
    output = say("one two three", stop="two")
    assert ending(output) == ("one ", "stop", "two")
    assert len(output.token_ids) == 7
    assert say("one two three", stop="two", include_stop_str_in_output=True).text == "one two"


def test_the_start_of_a_stop_string_never_leaves(say: Saying) -> None:
    deltas = say.deltas("a tw twofold", stop=["twofold"])
    assert "".join(delta.text for delta in deltas) == "a tw "
    assert [delta.text for delta in deltas][2:5] == ["", "", "tw "]


def test_a_false_start_leaves_at_the_end(say: Saying) -> None:
    assert ending(say("a two", stop="twofold")) == ("a two", "stop", None)
    assert ending(say("a two", stop="twofold", max_tokens=4)) == ("a tw", "length", None)


def test_stop_string_at_the_last_token_is_a_stop(say: Saying) -> None:
    assert ending(say("abc", stop="c", max_tokens=3)) == ("ab", "stop", "c")


def test_the_earliest_of_several_stop_strings(say: Saying) -> None:
    assert ending(say("abcdef", stop=["def", "bc"])) == ("a", "stop", "bc")


def test_min_tokens_holds_back_every_kind_of_stop(say: Saying) -> None:
    assert say("abc", stop="a", min_tokens=1, max_tokens=4).text == "abc"
    assert len(say("", [EOS, EOS], min_tokens=3, max_tokens=5).token_ids) >= 3
    stop = say.byte_ids("a")[0]
    assert stop not in say("aaaa", stop_token_ids=[stop], min_tokens=2, max_tokens=8).token_ids[:2]


def test_logit_bias_forces_and_forbids(say: Saying) -> None:
    (forced,) = say.byte_ids("z")
    assert say("ab", logit_bias={forced: 100}, max_tokens=3).text == "zzz"
    (forbidden,) = say.byte_ids("b")
    assert forbidden not in say("abb", logit_bias={forbidden: -100}, max_tokens=3).token_ids


def test_characters_of_several_tokens_leave_whole(say: Saying) -> None:
    deltas = say.deltas("é€😀")
    texts = [delta.text for delta in deltas]
    assert texts == ["", "é", "", "", "€", "", "", "", "😀", ""]


def test_half_a_character_at_the_end_is_replaced(say: Saying) -> None:
    assert ending(say("é€", max_tokens=3)) == ("é\ufffd", "length", None)


def test_without_text(say: Saying) -> None:
    output = say("hello", detokenize=False)
    assert ending(output) == ("", "stop", None)
    assert len(output.token_ids) == 6


def test_a_token_beyond_the_tokenizer_has_no_text(make_llm: MakeLLM) -> None:
    llm = make_llm(forward=ScriptedForward([301, 70, EOS], 3, vocab=310))
    output = llm.generate(PROMPT, SamplingParams(temperature=0, logprobs=1))[0].outputs[0]  # type: ignore[arg-type]
    assert output.token_ids == (301, 70, EOS)
    assert output.logprobs is not None
    assert output.logprobs[0][301].decoded_token == ""


def test_logprobs_have_text_and_add_up(say: Saying) -> None:
    output = say("hi", logprobs=2)
    assert output.logprobs is not None
    assert output.cumulative_logprob == pytest.approx(
        sum(position[token].logprob for position, token in zip(output.logprobs, output.token_ids, strict=True))
    )
    assert [
        position[token].decoded_token for position, token in zip(output.logprobs, output.token_ids, strict=True)
    ] == [
        "h",
        "i",
        "<|im_end|>",
    ]
    assert all(len(position) == 2 for position in output.logprobs)
    assert say("hi").logprobs is None


def test_logprobs_end_with_the_stop_string(say: Saying) -> None:
    output = say("abcd", stop="bc", logprobs=0)
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids) == 3


def test_an_event_of_several_tokens_counts_up_to_the_stop_string(tokenizer: Tokenizer) -> None:
    params = SamplingParams(stop="b", logprobs=0, max_tokens=9)
    answer = SequenceCompletion("mine", 0, tokenizer, params)
    tokens = tuple(3 + byte for byte in b"abc")
    logprobs = tuple(PositionLogprobs(TokenLogprob(token, -1.0, 1)) for token in tokens)
    delta = answer.take(TokenEvent(0, tokens, logprobs, ()), now=2.0)
    assert (delta.text, delta.token_ids, delta.stop_reason) == ("a", tokens[:2], "b")
    output = answer.output()
    assert output.logprobs is not None
    assert (len(output.logprobs), output.cumulative_logprob, answer.times) == (2, -2.0, [2.0, 2.0])
