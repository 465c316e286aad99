"""Structured outputs through the whole engine: beside others, with stops, log-probabilities and tight limits."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import MakeLLM, MakeLoaded
from twofold.core.errors import ParameterError
from twofold.core.params import SamplingParams, StructuredOutputsParams
from twofold.core.record import WaitReason
from twofold.engine.async_llm import AsyncLLM
from twofold.engine.llm import LLM
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import TokensPrompt
from twofold.fleet.service import snapshot

PROMPT: TokensPrompt = {"prompt_token_ids": [40, 41, 42]}
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "maximum": 200, "minimum": 0},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}


def params(form: dict[str, Any], **more: Any) -> SamplingParams:
    return SamplingParams(structured_outputs=StructuredOutputsParams(**form), **{"max_tokens": 60, **more})


def check_person(text: str) -> None:
    person = json.loads(text)
    assert set(person) == {"name", "age"}
    assert isinstance(person["name"], str)
    assert 0 <= person["age"] <= 200


def test_the_snapshot_counts_masks_that_a_limit_narrows(make_llm: MakeLLM) -> None:
    llm = make_llm(seqs=6, rows=24)
    llm.generate(PROMPT, params({"choice": ["yes", "no"]}, max_tokens=60))
    assert snapshot(llm.engine).masks_narrowed == 0
    output = llm.generate(PROMPT, params({"regex": "[ab]+c"}, max_tokens=2))[0]
    assert 0 < snapshot(llm.engine).masks_narrowed <= len(output.outputs[0].token_ids)


def text_of(output: RequestOutput) -> str:
    return output.outputs[0].text


def test_completions_run_together_all_match_their_forms(make_llm: MakeLLM) -> None:
    """Logits are random, so only the constraint makes the outputs match their forms."""
    llm = make_llm(seqs=6, rows=24)
    forms: list[tuple[dict[str, Any], Callable[[str], object]]] = [
        ({"json": PERSON}, check_person),
        ({"regex": r"[a-f]{2,5}-\d\d"}, lambda text: re.fullmatch(r"[a-f]{2,5}-\d\d", text) or pytest.fail(text)),
        ({"choice": ["yes", "no", "maybe"]}, lambda text: text in {"yes", "no", "maybe"} or pytest.fail(text)),
        ({"json_object": True}, json.loads),
        ({"grammar": 'start: "a" ("b" | "c")* "d"'}, lambda text: re.fullmatch("a[bc]*d", text) or pytest.fail(text)),
    ]
    chosen = [forms[i % len(forms)] for i in range(20)]
    outputs = llm.generate([PROMPT] * 20, [params(form, seed=i) for i, (form, _) in enumerate(chosen)])
    for output, (_, check) in zip(outputs, chosen, strict=True):
        check(text_of(output))
        assert output.outputs[0].finish_reason in {"stop", "length"}
    alone = [make_llm().generate(PROMPT, params(form, seed=i))[0] for i, (form, _) in enumerate(chosen)]
    assert [output.outputs for output in alone] == [output.outputs for output in outputs]


@pytest.mark.parametrize("limit", [24, 27, 32, 40])
def test_a_tight_limit_shortens_the_output_and_sets_the_finish_reason(make_llm: MakeLLM, limit: int) -> None:
    outputs = make_llm().generate([PROMPT] * 8, [params({"json": PERSON}, seed=i, max_tokens=limit) for i in range(8)])
    for output in outputs:
        check_person(text_of(output))
        assert len(output.outputs[0].token_ids) <= limit
    if limit == 24:
        assert "length" in {output.outputs[0].finish_reason for output in outputs}


def test_a_limit_below_the_shortest_output_is_an_error(make_llm: MakeLLM) -> None:
    llm = make_llm()
    with pytest.raises(ParameterError, match="needs at least 19 tokens") as caught:
        llm.generate(PROMPT, params({"json": PERSON}, max_tokens=3))
    assert caught.value.param == "max_tokens"
    assert llm.generate(PROMPT, SamplingParams(max_tokens=2))[0].finished


@pytest.mark.parametrize(
    "form",
    [
        {"json": {"type": "nonsense"}},
        {"json": "{"},
        {"regex": "(("},
        {"grammar": "start: missing"},
        {"json": {"minimum": "x"}},
    ],
)
def test_an_impossible_form_fails_only_its_request(make_llm: MakeLLM, form: dict[str, Any]) -> None:
    llm = make_llm()
    with pytest.raises(ParameterError) as caught:
        llm.generate([PROMPT, PROMPT], [SamplingParams(max_tokens=4), params(form)])
    assert caught.value.param.startswith("structured_outputs")
    assert caught.value.hint
    llm.engine.check_idle()
    assert llm.generate(PROMPT, SamplingParams(max_tokens=4))[0].finished


def test_forms_with_logprobs_several_completions_and_a_stop_string(make_llm: MakeLLM) -> None:
    wanted = params({"regex": "[ab]{3,9}x"}, seed=5, n=3, logprobs=2)
    output = make_llm().generate(PROMPT, wanted)[0]
    assert all(re.fullmatch("[ab]{3,9}x", answer.text) for answer in output.outputs)
    assert all(len(answer.logprobs or ()) == len(answer.token_ids) for answer in output.outputs)
    stopped = make_llm().generate(PROMPT, params({"regex": "[ab]{3,9}x"}, seed=5, stop="b"))[0].outputs[0]
    assert stopped.stop_reason == "b"
    assert set(stopped.text) <= {"a"}


@pytest.mark.parametrize("wrong", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_parameters_that_contradict_a_form_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match="Structured output"):
        params({"json_object": True}, **wrong)


def test_compiling_delays_no_other_request_and_is_recorded(make_loaded: MakeLoaded) -> None:
    async def ask() -> RequestOutput:
        llm = AsyncLLM.from_loaded(make_loaded())
        try:
            deltas = [delta async for delta in llm.generate(PROMPT, params({"json": PERSON}, seed=1))]
            with pytest.raises(ParameterError):
                await anext(llm.generate(PROMPT, params({"regex": "(("})))
            await llm.check_idle()
        finally:
            await llm.close()
        assert deltas[-1].request is not None
        return deltas[-1].request

    output = asyncio.run(ask())
    check_person(text_of(output))
    assert output.report.record.stalls[WaitReason.GRAMMAR] > 0


@pytest.mark.model
def test_the_default_model_fills_in_a_form(default_model: Path) -> None:
    prompt = "Ada Lovelace was 36 years old. As JSON: "
    with LLM(default_model, max_model_len=512) as llm:
        outputs = llm.generate(
            [prompt] * 6, [params({"json": PERSON}, seed=i, max_tokens=20 + 4 * i) for i in range(6)]
        )
    for output in outputs:
        check_person(text_of(output))
