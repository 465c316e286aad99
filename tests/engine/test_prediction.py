"""Drafts from a client's prediction: what they change, and how they are counted."""

from __future__ import annotations

import pytest

from tests.engine.conftest import MakeLLM
from tests.engine.drafts import use
from tests.engine.scheduler.test_speculation import FixedTimes
from twofold.core.params import SamplingParams
from twofold.core.record import SequenceRecord
from twofold.core.request import RequestOptions
from twofold.engine.llm import LLM
from twofold.engine.outputs import RequestOutput
from twofold.engine.prompts import TokensPrompt
from twofold.engine.scheduler.speculation import Speculator

PROMPT: TokensPrompt = {"prompt_token_ids": [5, 6, 7, 8]}
TOKENS = 40
OTHER = tuple(range(200, 200 + TOKENS))
"""Tokens that the completions of these tests do not have in this order."""


@pytest.fixture
def llm(make_llm: MakeLLM) -> LLM:
    """An engine to which a row always costs a hundredth of a step."""
    made = make_llm(context=128, blocks=400)
    use(made, Speculator(FixedTimes(0.01), 31))
    return made


def run(llm: LLM, prediction: tuple[int, ...] = (), *, speculation: bool = True, n: int = 1) -> RequestOutput:
    """A completion with a cache salt of its own, so that it learns nothing from others."""
    params = SamplingParams(max_tokens=TOKENS, seed=3, ignore_eos=True, n=n)
    salt = f"{len(prediction)} {hash(prediction)} {n}"
    options = RequestOptions(speculation=speculation, prediction=prediction, cache_salt=salt)
    return llm.generate(PROMPT, params, options=options)[0]


def counts(record: SequenceRecord) -> tuple[int, int]:
    """Accepted and rejected tokens of the prediction."""
    return record.predicted_accepted, record.predicted - record.predicted_accepted


def test_a_true_prediction_is_accepted_as_a_whole(llm: LLM) -> None:
    plain = run(llm, speculation=False)
    found = run(llm, plain.outputs[0].token_ids)
    accepted, rejected = counts(found.metrics.record)
    assert found.outputs == plain.outputs
    assert rejected == 0
    assert found.metrics.record.decode.steps == TOKENS - 1 - accepted <= 2
    assert found.metrics.record.saved_s > 0


def test_a_wrong_prediction_is_rejected_as_a_whole(llm: LLM) -> None:
    plain = run(llm, speculation=False)
    found = run(llm, OTHER)
    accepted, rejected = counts(found.metrics.record)
    assert found.outputs == plain.outputs
    assert accepted == 0 < rejected
    assert found.metrics.record.decode.steps == TOKENS - 1 - found.metrics.record.accepted


def test_half_of_a_prediction_is_accepted(llm: LLM) -> None:
    plain = run(llm, speculation=False)
    right = TOKENS // 2
    found = run(llm, plain.outputs[0].token_ids[:right] + OTHER)
    accepted, rejected = counts(found.metrics.record)
    assert found.outputs == plain.outputs
    assert right - 3 <= accepted < right
    assert rejected > 0


def test_a_proposal_ends_with_the_prediction(llm: LLM) -> None:
    """In the index the prompt follows the prediction."""
    ids = run(llm, speculation=False).outputs[0].token_ids
    record = run(llm, ids[:6]).metrics.record
    assert counts(record) == (5, 0)


def test_the_first_token_counts_as_found(llm: LLM) -> None:
    """It was sampled with the prompt, so drafts start at the second one; or resume there if the first is another."""
    ids = run(llm, speculation=False).outputs[0].token_ids
    record = run(llm, (OTHER[0], *ids[1:])).metrics.record
    assert counts(record) == (TOKENS - 1 - record.decode.steps, 0)


def test_all_completions_of_a_prompt_have_the_prediction(llm: LLM) -> None:
    one = run(llm, speculation=False, n=3)
    found = run(llm, one.outputs[1].token_ids, n=3)
    record = found.metrics.record
    assert found.outputs == one.outputs
    assert record.predicted_accepted > TOKENS // 2
    assert record.predicted > record.predicted_accepted


def test_counts_are_the_sums_of_the_records(llm: LLM) -> None:
    ids = run(llm, speculation=False).outputs[0].token_ids
    records = [run(llm, prediction).metrics.record for prediction in ((), ids, OTHER, ids[:9] + OTHER)]
    counts = llm.engine.scheduler.drafts
    assert counts.drafted == sum(record.drafted for record in records) > 0
    assert counts.accepted == sum(record.accepted for record in records) == sum(counts.positions)
    assert len(counts.positions) <= 31
    assert list(counts.positions) == sorted(counts.positions, reverse=True)
    assert 0 < counts.drafts <= sum(record.decode.steps for record in records)


def test_without_speculation_nothing_is_counted(llm: LLM) -> None:
    record = run(llm, speculation=False).metrics.record
    assert (record.drafted, record.accepted, record.predicted, record.saved_s) == (0, 0, 0, 0.0)
    assert llm.engine.scheduler.drafts.drafts == 0
