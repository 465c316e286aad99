"""Features of a serving engine beside sampling: best of several, prefixes, deadlines, floods, embeddings, scores."""

from __future__ import annotations

import numpy as np
import pytest

from tests.engine.conftest import VOCAB, MakeLLM
from tests.engine.mock import hash_logits
from tests.support.clock import VirtualClock
from twofold.core.errors import ContextLengthError, ParameterError, ResourceError
from twofold.core.params import SamplingParams
from twofold.core.record import WaitReason
from twofold.core.report import RequestMetrics, StepReport
from twofold.core.request import CachePin, EngineRequest, RequestOptions
from twofold.engine.config import EngineOptions
from twofold.engine.prompts import TokensPrompt

PROMPT: TokensPrompt = {"prompt_token_ids": list(range(20, 41))}
GREEDY = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


def test_best_of_keeps_the_most_likely(make_llm: MakeLLM) -> None:
    everything = make_llm().generate(PROMPT, SamplingParams(n=6, seed=1, max_tokens=5, logprobs=0))[0].outputs
    best = make_llm().generate(PROMPT, SamplingParams(n=2, best_of=6, seed=1, max_tokens=5))[0].outputs
    means = {a.token_ids: (a.cumulative_logprob or 0.0) / len(a.token_ids) for a in everything}
    assert [a.token_ids for a in best] == sorted(means, key=lambda tokens: -means[tokens])[:2]
    assert [a.index for a in best] == [0, 1]
    assert all(a.logprobs is None for a in best)


def test_best_of_sends_nothing_before_the_end(make_llm: MakeLLM) -> None:
    deltas = list(make_llm().stream(PROMPT, SamplingParams(n=2, best_of=4, seed=1, max_tokens=5)))
    assert [delta.index for delta in deltas] == [0, 1]
    assert deltas[-1].request is not None
    assert [delta.text for delta in deltas] == [answer.text for answer in deltas[-1].request.outputs]


def test_completions_of_one_prompt_share_its_blocks(make_llm: MakeLLM) -> None:
    llm = make_llm(caching=False)
    output = llm.generate(PROMPT, SamplingParams(n=5, seed=1, max_tokens=4))[0]
    assert output.report.record.prefill.rows == 21 + 4


def test_a_prefix_is_found_again(make_llm: MakeLLM) -> None:
    llm = make_llm()
    first = llm.generate(PROMPT, GREEDY)[0]
    second = llm.generate(PROMPT, GREEDY)[0]
    assert (first.metrics.cached_tokens, second.metrics.cached_tokens) == (0, 20)
    assert first.outputs == second.outputs
    assert second.report.cached_tokens == 20


def test_prompts_with_another_salt_find_no_prefix(make_llm: MakeLLM) -> None:
    llm = make_llm()
    llm.generate(PROMPT, GREEDY, options=RequestOptions(cache_salt="a"))
    assert llm.generate(PROMPT, GREEDY, options=RequestOptions(cache_salt="b"))[0].metrics.cached_tokens == 0
    assert llm.generate(PROMPT, GREEDY, options=RequestOptions(cache_salt="a"))[0].metrics.cached_tokens == 20


def test_a_pinned_prefix_outlives_a_flood_of_others(make_llm: MakeLLM) -> None:
    clock = VirtualClock()
    llm = make_llm(blocks=24, clock=clock)
    llm.generate(PROMPT, GREEDY, options=RequestOptions(cache_pins=(CachePin(tokens=16),)))
    for start in range(8):
        llm.generate({"prompt_token_ids": [100 + start] * 40}, GREEDY)
    assert llm.generate(PROMPT, GREEDY)[0].metrics.cached_tokens >= 16
    clock.advance(301)
    for start in range(8):
        llm.generate({"prompt_token_ids": [100 + start] * 40}, GREEDY)
    assert llm.generate(PROMPT, GREEDY)[0].metrics.cached_tokens < 16


def test_a_deadline_returns_the_output_so_far(make_llm: MakeLLM) -> None:
    clock = VirtualClock()
    llm = make_llm(clock=clock)
    llm.engine.add(EngineRequest((5, 6, 7), GREEDY, RequestOptions(deadline_s=1.0)))
    llm.engine.step()
    clock.advance(2.0)
    deltas = llm.engine.step()
    assert deltas[-1].request is not None
    answer = deltas[-1].request.outputs[0]
    assert answer.finish_reason == "deadline"
    assert len(answer.token_ids) == 1


def test_a_flood_is_refused_request_by_request(make_llm: MakeLLM) -> None:
    llm = make_llm(max_waiting=10)
    prompt = (5, 6, 7)
    ids = [llm.engine.add(EngineRequest(prompt, GREEDY)) for _ in range(10)]
    with pytest.raises(ResourceError, match="queued"):
        llm.engine.add(EngineRequest(prompt, GREEDY))
    with pytest.raises(ResourceError, match="queued"):
        llm.engine.add(EngineRequest(prompt, SamplingParams(n=3)))
    finished = set()
    while llm.engine.has_work:
        finished |= {delta.request_id for delta in llm.engine.step() if delta.request is not None}
    assert finished == set(ids)


def test_a_request_larger_than_the_cache_fails_alone(make_llm: MakeLLM) -> None:
    llm = make_llm(blocks=8)
    with pytest.raises(ContextLengthError) as caught:
        llm.generate({"prompt_token_ids": [1] * 50}, SamplingParams(max_tokens=10))
    assert caught.value.hint is not None
    assert llm.generate(PROMPT, GREEDY)[0].finished


def test_scores_are_those_of_the_logits(make_llm: MakeLLM) -> None:
    output = make_llm(rows=8, seqs=4).score(PROMPT, alternatives=1)[0]
    tokens = list(output.prompt_token_ids)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    total = 0.0
    for place in range(1, len(tokens)):
        logits = hash_logits(np.array(tokens[:place]), VOCAB).astype(np.float64)
        exact = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        position = output.prompt_logprobs[place]
        assert position is not None
        assert position[tokens[place]].logprob == pytest.approx(exact[tokens[place]], abs=1e-5)
        total += exact[tokens[place]]
    assert output.cumulative_logprob == pytest.approx(total, abs=1e-4)
    assert output.outputs[0].token_ids == ()
    assert output.outputs[0].finish_reason == "length"


def test_a_target_with_a_fixed_budget_is_refused(make_llm: MakeLLM) -> None:
    llm = make_llm()
    with pytest.raises(ParameterError, match="cannot keep a TPOT target"):
        llm.generate(PROMPT, GREEDY, options=RequestOptions(tpot_target_s=0.1))
    with pytest.raises(ParameterError, match="cannot keep a TPOT target"):
        EngineOptions(token_budget="fixed", tpot_target_ms=20)


def test_an_unknown_pooling_is_an_error(make_llm: MakeLLM) -> None:
    with pytest.raises(ParameterError, match="mean or last"):
        make_llm().embed(PROMPT, pooling="meen")  # type: ignore[arg-type]


class Listener:
    def __init__(self) -> None:
        self.steps: list[StepReport] = []
        self.requests: list[RequestMetrics] = []

    def on_step(self, report: StepReport) -> None:
        self.steps.append(report)

    def on_request(self, report: RequestMetrics) -> None:
        self.requests.append(report)


def test_an_observer_receives_every_step_and_request(make_llm: MakeLLM) -> None:
    llm, listener = make_llm(seqs=4, rows=16), Listener()
    llm.engine.observe(listener)
    outputs = llm.generate([PROMPT] * 6, SamplingParams(seed=2, max_tokens=4))
    assert [report.number for report in listener.steps] == list(range(len(listener.steps)))
    rows = sum(report.decode_rows + report.prefill_rows for report in listener.steps)
    record = [report.record for report in listener.requests]
    assert rows == sum(one.prefill.rows + one.decode.rows for one in record)
    assert {report.request_id for report in listener.requests} == {output.request_id for output in outputs}
    assert sum(report.output_tokens for report in listener.requests) == 24
    assert all(report.number == 0 or report.host_s >= 0 for report in listener.steps)


def test_time_in_the_queue_has_a_cause(make_llm: MakeLLM) -> None:
    clock = VirtualClock()
    llm = make_llm(seqs=1, clock=clock)
    for _ in range(2):
        llm.engine.add(EngineRequest((5, 6, 7), GREEDY))
    reports = []
    while llm.engine.has_work:
        clock.advance(0.25)
        reports += [delta.request.report for delta in llm.engine.step() if delta.request is not None]
    assert reports[1].record.stalls[WaitReason.TURN] == pytest.approx(reports[1].queue_s)
    assert reports[1].queue_s >= 1.0
