"""Accounting of real engine runs: bills of requests add up to the steps, and cached outputs equal the computed ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.core.params import SamplingParams
from twofold.core.report import RequestMetrics, StepReport
from twofold.core.request import EngineRequest, RequestOptions
from twofold.engine.llm import LLM
from twofold.engine.prompts import TokensPrompt
from twofold.host.settings import parse_toml
from twofold.observe.billing import PriceSheet, make_bill, total_of
from twofold.server.response_cache import pack, unpack

PROMPTS = [TokensPrompt(prompt_token_ids=list(range(5, 5 + length))) for length in (40, 7, 90, 23)]


@pytest.fixture(scope="module")
def llm(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> Iterator[LLM]:
    model = tiny_gguf(TinyOptions())
    made = LLM(str(model.path), max_num_seqs=4, kv_cache_memory_bytes=1 << 22, threads=1)
    yield made
    made.close()


class Steps:
    def __init__(self) -> None:
        self.seconds = 0.0
        self.requests: list[RequestMetrics] = []

    def on_step(self, report: StepReport) -> None:
        self.seconds += report.seconds

    def on_request(self, report: RequestMetrics) -> None:
        self.requests.append(report)


def test_requests_pay_for_the_steps_they_ran_in(llm: LLM) -> None:
    steps = Steps()
    llm.engine.observe(steps)
    llm.generate(PROMPTS, SamplingParams(n=2, seed=1, max_tokens=6))
    works = [work for report in steps.requests for work in (report.record.prefill, report.record.decode)]
    assert sum(work.machine_s for work in works) == pytest.approx(steps.seconds)
    assert sum(work.seconds for work in works) > 1.5 * steps.seconds
    sheet = PriceSheet.of(parse_toml("[default]\nper_hour = 3600"))
    bills = [make_bill([report], {}, sheet, "tiny", "default") for report in steps.requests]
    paid = total_of(bill.total for bill in bills if bill is not None)
    assert paid == pytest.approx(Decimal(steps.seconds), abs=Decimal("1e-7"))


def test_cached_outputs_equal_the_computed_ones(llm: LLM) -> None:
    params = SamplingParams(n=2, best_of=3, seed=1, max_tokens=8, logprobs=2, prompt_logprobs=1, temperature=2)
    made = llm.generate(PROMPTS, params)
    jobs = [EngineRequest(output.prompt_token_ids, params, RequestOptions(cache_salt="s")) for output in made]
    data = pack(made)
    assert data is not None
    found = unpack(data, jobs, "again")
    assert found is not None
    for before, after in zip(made, found, strict=True):
        assert (after.outputs, after.prompt_logprobs) == (before.outputs, before.prompt_logprobs)
        assert after.prompt_token_ids == before.prompt_token_ids
        assert after.metrics.output_tokens == before.metrics.output_tokens == 24
        assert after.cumulative_logprob == before.cumulative_logprob
