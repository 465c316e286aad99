"""Requests that are cut anywhere and go on with another engine give the same outputs as undisturbed ones."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.errors import ParameterError
from twofold.core.params import BeamSearchParams, RequestParams, SamplingParams, StructuredOutputsParams, ThinkingParams
from twofold.core.request import DeliveredCompletion, EngineRequest, PoolingParams, RequestOptions, ScoringParams
from twofold.engine.llm import LLM
from twofold.engine.loop import EngineClient
from twofold.engine.outputs import Logprobs, OutputDelta, RequestOutput
from twofold.fleet.resume import DeliveredRequest

TOOL = {"type": "object", "properties": {"name": {"enum": ["f", "g"]}, "arguments": {"type": "object"}}}
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]}
BASE = SamplingParams(seed=11, temperature=1.0, top_p=0.95, max_tokens=48, ignore_eos=True)
PROMPT = tuple((i * 37 + 11) % 250 for i in range(21))
CASES: dict[str, RequestParams] = {
    "sampled": BASE,
    "greedy": SamplingParams(temperature=0, max_tokens=40, ignore_eos=True),
    "end of sequence": SamplingParams(seed=5, temperature=2.0, max_tokens=300),
    "penalties": replace(BASE, repetition_penalty=1.3, presence_penalty=0.8, frequency_penalty=0.4),
    "stops": replace(BASE, stop=["e", "a"], min_tokens=12),
    "included stop": replace(BASE, stop=["th", "o"], min_tokens=20, include_stop_str_in_output=True),
    "stop tokens": replace(BASE, stop_token_ids=[101, 97, 32, 116], min_tokens=16),
    "min tokens": SamplingParams(seed=2, temperature=2.0, max_tokens=60, min_tokens=40),
    "logprobs": replace(BASE, logprobs=3),
    "prompt logprobs": replace(BASE, logprobs=1, prompt_logprobs=2),
    "several": replace(BASE, n=3, max_tokens=24, logprobs=1),
    "several with stops": replace(BASE, n=4, stop=["e"], logprobs=0, prompt_logprobs=1),
    "best of": replace(BASE, n=2, best_of=4, max_tokens=12),
    "bias": replace(BASE, logit_bias={97: 4.0}),
    "schema": replace(BASE, structured_outputs=StructuredOutputsParams(json=CITY), ignore_eos=False, logprobs=1),
    "tool": replace(BASE, structured_outputs=StructuredOutputsParams(json=TOOL), ignore_eos=False, max_tokens=40),
    "regex": replace(BASE, structured_outputs=StructuredOutputsParams(regex="[a-z]{5,40}"), ignore_eos=False),
    "choice": replace(BASE, structured_outputs=StructuredOutputsParams(choice=["the hat", "it"]), ignore_eos=False),
    "thinking": replace(BASE, thinking=ThinkingParams(start=(60, 61), end=(62, 63), budget=9)),
    "beams": BeamSearchParams(beam_width=3, max_tokens=10),
    "vector": PoolingParams("mean"),
    "scores": ScoringParams(2),
}
OPTIONS = {"prediction": RequestOptions(prediction=tuple(range(40, 80))), "none": RequestOptions(speculation=False)}


@pytest.fixture(scope="module")
def path(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> str:
    return str(tiny_gguf(TinyOptions()).path)


@pytest.fixture(scope="module")
def clients(path: str) -> Iterator[list[EngineClient]]:
    """Replicas that differ in what must not matter: threads, instruction set, prefix cache and speculation."""
    common = {"kv_cache_memory_bytes": 1 << 23, "swap_space_bytes": 0, "threads": 1}
    kinds: list[dict[str, object]] = [
        {},
        {"enable_prefix_caching": False},
        {"speculative_config": {"method": "suffix"}},
    ]
    llms = [LLM(path, **common, **kind) for kind in kinds]  # type: ignore[arg-type]
    yield [llm.client for llm in llms]
    for llm in llms:
        llm.close()


def deltas_of(client: EngineClient, request: EngineRequest, taken: int | None = None) -> list[OutputDelta]:
    """The deltas of a request; the first ``taken`` only, after which it is left."""
    deltas = []
    client.engine.check(request)
    stream = client.stream(request)
    for delta in stream:
        deltas.append(delta)
        if len(deltas) == taken:
            break
    stream.close()
    return deltas


def disturbed(
    clients: list[EngineClient], request: EngineRequest, chance: random.Random
) -> tuple[str, list[Logprobs | None], RequestOutput]:
    """A request that is cut up to three times. Returns what its deltas had of the first completion's text and of the
    prompt's log-probabilities, and its output."""
    delivered, begun, text = DeliveredRequest(request), request.delivered, ""
    scored: list[Logprobs | None] = []
    cuts = [chance.choice((1, 2, 3, 5, 8, 13, 21)) for _ in range(chance.randint(1, 3))]
    for number, cut in enumerate([*cuts, None]):
        asked = delivered.rest(f"try-{number}")
        begun = asked.delivered
        for delta in deltas_of(chance.choice(clients), asked, cut):
            text += delta.text if delta.index == 0 else ""
            if delta.scored is not None:
                scored += delta.scored.logprobs[len(scored) - delta.scored.start :]
            if delta.request is not None:
                return text, scored, delivered.whole(delta.request, begun)
            delivered.add(delta, time.perf_counter())
    raise AssertionError("it has no end")


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("case", CASES)
def test_a_cut_answer_equals_the_undisturbed_one(clients: list[EngineClient], case: str, options: str) -> None:
    request = EngineRequest(PROMPT, CASES[case], OPTIONS[options], request_id="whole", arrival=time.perf_counter())
    alone = deltas_of(clients[1], request)[-1].request
    assert alone is not None
    for seed in range(4):
        text, scored, output = disturbed(clients, request, random.Random(f"{case} {seed}"))
        assert output.outputs == alone.outputs
        assert output.prompt_logprobs == alone.prompt_logprobs
        assert tuple(scored) == (alone.prompt_logprobs or ())
        assert output.embedding == alone.embedding
        assert output.request_id == "whole"
        assert (output.prompt_token_ids, output.finished) == (PROMPT, True)
        mine, its = output.metrics, alone.metrics
        assert mine.finish_reasons == its.finish_reasons
        assert (mine.prompt_tokens, mine.output_tokens) == (its.prompt_tokens, its.output_tokens)
        assert min(mine.queue_s, mine.prefill_s, mine.decode_s) >= 0
        if output.outputs and not isinstance(request.params, BeamSearchParams) and case != "best of":
            assert text == alone.outputs[0].text


def test_texts_whose_characters_are_cut_stay_whole(clients: list[EngineClient]) -> None:
    """Tokens are bytes here, so most characters of this prompt's answer have several tokens."""
    params = SamplingParams(seed=3, temperature=3.0, max_tokens=64, ignore_eos=True)
    request = EngineRequest(tuple("grüße 日本".encode()), params, request_id="bytes", answered=2, arrival=0.0)
    alone = deltas_of(clients[0], request)[-1].request
    assert alone is not None
    for seed in range(8):
        text, _, output = disturbed(clients, request, random.Random(seed))
        assert output.outputs == alone.outputs
        assert text == alone.outputs[0].text


@pytest.mark.parametrize(
    "delivered",
    [
        (DeliveredCompletion((1,)), DeliveredCompletion((2,))),
        (DeliveredCompletion((1,), "stop"),),
        (DeliveredCompletion((100_000,)),),
        (DeliveredCompletion((1,) * 48),),
    ],
)
def test_delivered_tokens_are_checked(clients: list[EngineClient], delivered: tuple[DeliveredCompletion, ...]) -> None:
    with pytest.raises(ParameterError):
        clients[0].engine.check(EngineRequest(PROMPT, BASE, delivered=delivered))


def test_a_request_that_has_waited_once_has_no_queue_limit() -> None:
    request = EngineRequest(PROMPT, BASE, RequestOptions(queue_limit_s=1.0))
    assert DeliveredRequest(request).rest("next").options.queue_limit_s is None
