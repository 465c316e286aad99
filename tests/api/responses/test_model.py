"""Responses of a real model: its own template, its own tokens, and streams from the engine's deltas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response

from tests.api.completions import data_of
from tests.api.responses.conftest import HEAD, WEATHER, read
from twofold.api.base import ModelFacts
from twofold.api.openai.responses.request import ResponsesRequest
from twofold.core.params import SamplingParams
from twofold.engine.llm import LLM
from twofold.engine.outputs import RequestOutput
from twofold.text.parsers.format import CompletionFormat

pytestmark = pytest.mark.model
CONTEXT = 1024


@pytest.fixture(scope="module")
def llm(default_model: Path) -> Iterator[LLM]:
    with LLM(model=str(default_model), max_model_len=CONTEXT) as llm:
        yield llm


@pytest.fixture(scope="module")
def smollm(llm: LLM) -> ModelFacts:
    tokenizer = llm.get_tokenizer()
    return ModelFacts(tokenizer, CompletionFormat.of(tokenizer), CONTEXT, 576)


def completed(llm: LLM, facts: ModelFacts, request: ResponsesRequest) -> tuple[dict[str, Any], RequestOutput]:
    (job,) = request.prepare(facts)
    assert isinstance(job.params, SamplingParams)
    prompt = {"prompt_token_ids": job.token_ids}
    (output,) = llm.generate([prompt], job.params, options=job.options)  # type: ignore[list-item]
    return data_of(request.reply(HEAD, [output], facts)), output


def test_a_short_response(llm: LLM, smollm: ModelFacts) -> None:
    reply, output = completed(llm, smollm, read(input="Say hello.", temperature=0, max_output_tokens=12))
    response = Response.model_validate(reply, strict=True)
    assert response.output_text == output.outputs[0].text != ""
    assert response.usage is not None
    assert response.usage.output_tokens == len(output.outputs[0].token_ids)
    assert response.usage.input_tokens == len(output.prompt_token_ids)


def test_a_call_that_must_be_made(llm: LLM, smollm: ModelFacts) -> None:
    request = read(input="The weather in Ulm?", tools=[WEATHER], tool_choice="required", temperature=0)
    reply, _ = completed(llm, smollm, request)
    calls = [item for item in reply["output"] if item["type"] == "function_call"]
    assert calls
    assert all(set(json.loads(call["arguments"])) == {"city"} for call in calls)


def test_a_form(llm: LLM, smollm: ModelFacts) -> None:
    form = {"type": "json_schema", "name": "city", "schema": {**WEATHER["parameters"], "additionalProperties": False}}
    request = read(input="Name a city.", text={"format": form}, temperature=0, max_output_tokens=60)
    reply, _ = completed(llm, smollm, request)
    assert set(json.loads(reply["output"][0]["content"][0]["text"])) == {"city"}
