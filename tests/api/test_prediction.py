"""Speculation in request bodies: OpenAI's Predicted Outputs, ``speculation``, and what usage says of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.api.completions import data_of
from tests.engine.conftest import MakeLLM
from tests.engine.drafts import use
from tests.engine.scheduler.test_speculation import FixedTimes
from twofold.api.base import ModelFacts, ReplyHead
from twofold.api.openai.chat import ChatRequest
from twofold.api.openai.completions import CompletionRequest
from twofold.api.openai.errors import error_reply
from twofold.api.openai.responses.request import ResponsesRequest
from twofold.core.errors import ContextLengthError, ParameterError
from twofold.core.request import RequestOptions
from twofold.engine.llm import LLM
from twofold.engine.scheduler.speculation import Speculator
from twofold.text.parsers.format import CompletionFormat
from twofold.text.tokenizers.tokenizer import Tokenizer

Make = Callable[..., Any]
TEXT = "<s>def add(a, b)</s>"
"""With what looks like control tokens, which are plain text in a prediction."""
CONTEXT = 128
LETTERS = "bcdfghjklmnpqrstvwxyz"


@pytest.fixture(scope="module")
def model(tokenizer: Tokenizer) -> ModelFacts:
    return ModelFacts(tokenizer, CompletionFormat.of(tokenizer), CONTEXT, 8)


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.read({"messages": [{"role": "user", "content": "hello"}], **fields})


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.read({"prompt": "hello", **fields})


def response(**fields: Any) -> ResponsesRequest:
    return ResponsesRequest.read({"input": "hello", **fields})


def options_of(make: Make, model: ModelFacts, **fields: Any) -> RequestOptions:
    (job,) = make(**fields).prepare(model)
    options: RequestOptions = job.options
    return options


def predicted(content: object) -> dict[str, Any]:
    return {"prediction": {"type": "content", "content": content}}


@pytest.mark.parametrize("make", [chat, completion])
def test_a_prediction_becomes_tokens_without_control_tokens(make: Make, model: ModelFacts) -> None:
    parts = [{"type": "text", "text": TEXT[:7]}, {"type": "text", "text": TEXT[7:]}]
    for content in (TEXT, parts):
        tokens = options_of(make, model, **predicted(content)).prediction
        assert model.tokenizer.decode(tokens, skip_special_tokens=False) == TEXT
        assert not set(tokens) & model.tokenizer.special_ids
    for nothing in ({}, {"prediction": None}, predicted(""), predicted([])):
        assert options_of(make, model, **nothing).prediction == ()


@pytest.mark.parametrize(
    ("prediction", "field"),
    [
        ("text", "prediction"),
        ({}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "file", "content": "a"}, "prediction.type"),
        ({"type": "content", "content": None}, "prediction.content"),
        ({"type": "content", "content": 5}, "prediction.content"),
        ({"type": "content", "content": ["a"]}, "prediction.content[0]"),
        ({"type": "content", "content": [{"type": "image_url", "text": "a"}]}, "prediction.content[0].type"),
        ({"type": "content", "content": [{"type": "text"}]}, "prediction.content[0].text"),
        ({"type": "content", "content": "a", "length": 5}, "prediction.length"),
    ],
)
@pytest.mark.parametrize("make", [chat, completion])
def test_impossible_predictions_are_refused_by_name(make: Make, prediction: object, field: str) -> None:
    with pytest.raises(ParameterError) as caught:
        make(prediction=prediction)
    assert caught.value.param == field


def test_a_prediction_that_cannot_fit_is_refused(model: ModelFacts) -> None:
    assert len(options_of(chat, model, **predicted("x" * CONTEXT)).prediction) == CONTEXT
    for length in (CONTEXT + 1, 1 << 20):
        with pytest.raises(ContextLengthError, match=r"The prediction has .*context of 128") as caught:
            chat(**predicted("x" * length)).prepare(model)
        assert caught.value.hint is not None
        assert "Shorten the prediction" in caught.value.hint
        assert data_of(error_reply(caught.value))["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("make", [chat, completion, response])
def test_a_request_can_switch_speculation_off(make: Make, model: ModelFacts) -> None:
    assert options_of(make, model) == RequestOptions()
    assert options_of(make, model, speculation=False, cache_salt="s") == RequestOptions(
        speculation=False, cache_salt="s"
    )
    wrong: list[object] = [1, "false", []]
    for value in wrong:
        with pytest.raises(ParameterError) as caught:
            make(speculation=value)
        assert caught.value.param == "speculation"


def test_a_prediction_needs_speculation() -> None:
    with pytest.raises(ParameterError, match="speculation") as caught:
        chat(speculation=False, **predicted("a"))
    assert caught.value.param == "prediction"


@pytest.fixture
def llm(make_llm: MakeLLM) -> LLM:
    """An engine to which a row always costs a hundredth of a step."""
    made = make_llm(context=CONTEXT, blocks=400)
    use(made, Speculator(FixedTimes(0.01), 31))
    return made


@pytest.mark.parametrize("make", [chat, completion])
@pytest.mark.parametrize("n", [1, 3])
def test_usage_counts_what_the_engine_drafted(make: Make, llm: LLM, model: ModelFacts, n: int) -> None:
    tokens = 40
    letters = {str(model.tokenizer.encode(letter, add_special_tokens=False)[-1]): 100 for letter in LETTERS}

    def usage_of(**fields: Any) -> tuple[str, dict[str, Any]]:
        request = make(logit_bias=letters, max_tokens=tokens, seed=3, ignore_eos=True, n=n, **fields)
        (job,) = request.prepare(model)
        output = llm.generate({"prompt_token_ids": job.token_ids}, job.params, options=job.options)[0]
        usage = data_of(request.reply(ReplyHead("1", 0, "m"), [output], model))["usage"]
        record = output.metrics.record
        accepted, rejected = (
            usage["completion_tokens_details"][f"{kind}_prediction_tokens"] for kind in ("accepted", "rejected")
        )
        assert usage["completion_tokens"] == n * tokens
        assert (accepted, accepted + rejected) == (record.predicted_accepted, record.predicted)
        assert (accepted <= record.accepted, rejected <= record.drafted - record.accepted) == (True, True)
        return output.outputs[0].text, usage["completion_tokens_details"]

    text, details = usage_of(speculation=False)
    assert details == {"reasoning_tokens": 0, "accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
    assert len(text) == tokens
    predictions = (text, text[: tokens // 2] + "A" * (tokens // 2), "A" * tokens)
    found = [usage_of(cache_salt=str(i), **predicted(given)) for i, given in enumerate(predictions)]
    assert [same for same, _ in found] == [text] * 3
    true, half, wrong = (details["accepted_prediction_tokens"] for _, details in found)
    assert true > half > wrong == 0
    if n == 1:
        assert true >= tokens - 3
        assert found[0][1]["rejected_prediction_tokens"] == 0
    assert all(details["rejected_prediction_tokens"] for _, details in found[1:])
