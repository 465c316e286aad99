from __future__ import annotations

import json
from typing import Any

import pytest

from tests.bench.metrics.samples import record, sample, steady
from twofold.bench.load.base import PromptMessage
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import MeasurementRule, Window
from twofold.bench.metrics.summary import Concurrency, Summary, summarise
from twofold.bench.record import RequestSample
from twofold.core.errors import ParameterError


def _kinds(summary: Summary) -> set[str]:
    return {note.kind for note in summary.notes}


def test_a_rule_chooses_by_when_requests_are_due() -> None:
    samples = steady(10, 1.0, 0.5)
    assert len(MeasurementRule().measured(record(samples, 9.0))) == 10
    measured = MeasurementRule(warmup_s=2.0, cooldown_s=3.0).measured(record(samples, 10.0))
    assert [each.ask.due_s for each in measured] == [2.0, 3.0, 4.0, 5.0, 6.0]
    assert MeasurementRule(8.0, 8.0).measured(record(samples, 10.0)) == ()


def test_a_rule_in_words() -> None:
    assert MeasurementRule().words(60) == "every request is measured"
    assert MeasurementRule(10, 5).words(60) == "only requests due from 10 s on and before 55 s are measured"
    assert MeasurementRule(0, 5).words(60) == "only requests due before 55 s are measured"
    with pytest.raises(ParameterError, match="warmup"):
        MeasurementRule(-1)


def test_rates_of_a_server_that_keeps_up() -> None:
    rates = summarise(record(steady(100, 0.1, 0.5), 10.0)).rates
    assert rates.asked is not None
    assert rates.achieved is not None
    assert rates.steady is not None
    assert rates.asked.requests_per_s == pytest.approx(10.0)
    assert rates.asked.total_tokens_per_s == pytest.approx(10 * (8 + 4))
    last = 9.9 + 0.5 + 0.3
    assert [rates.achieved.from_s, rates.achieved.until_s] == pytest.approx([0.0, last])
    assert rates.achieved.requests_per_s == pytest.approx(100 / last)
    assert rates.achieved.output_tokens_per_s == pytest.approx(400 / last)
    assert (rates.steady.from_s, rates.steady.until_s) == (0.0, 10.0)
    assert rates.steady.requests_per_s == pytest.approx(9.3, abs=0.11)


def test_after_the_warm_up_the_steady_rate_is_the_rate() -> None:
    rates = summarise(record(steady(200, 0.1, 0.5), 20.0), MeasurementRule(warmup_s=5.0, cooldown_s=5.0)).rates
    assert rates.steady is not None
    assert rates.steady.requests_per_s == pytest.approx(10.0, abs=0.11)
    assert rates.steady.output_tokens_per_s == pytest.approx(40.0, abs=0.41)


def test_requests_that_were_open() -> None:
    samples = [sample(0.0, [2.0]), sample(1.0, [3.0]), sample(3.0, [4.0])]
    found = Concurrency.of(samples, Window(0.0, 4.0))
    assert (found.mean, found.max) == (1.25, 2)
    assert Concurrency.of([], Window(0.0, 0.0)) == Concurrency(None, 0)


def test_a_frozen_server_shows_from_when_requests_were_due() -> None:
    """At most one request is open, and the server freezes from 2 s to 7 s."""
    samples, free = [], 0.0
    for at in range(100):
        due = at * 0.1
        started = max(due, free)
        done = started + 0.05
        free = 7.0 if 2.0 <= done < 7.0 else done
        samples.append(sample(due, [free], started=started, index=at))
    latency = summarise(record(samples, 10.0)).latency
    assert latency.ttft_s.p95 is not None
    assert latency.ttft_sent_s.p95 is not None
    assert latency.ttft_s.p95 > 4.0
    assert latency.ttft_sent_s.p95 < 0.06


def test_counts_of_every_kind() -> None:
    samples = [
        sample(
            0.0, [1.0, 2.0], usage=2, status=200, response={"finish": "length", "prompt_tokens": 8, "cached_tokens": 4}
        ),
        sample(0.0, [1.0], usage=4, status=200, response={"finish": "stop", "streamed": False, "prompt_tokens": 9}),
        sample(0.0, [], ended=1.0, status=200, usage=0, response={"pings": 2, "empty": 1}),
        sample(0.0, [], outcome="refused", status=429, error="slow down"),
        sample(0.0, [], outcome="refused", status=429, error="slow down"),
        sample(0.0, [], outcome="broken", error="the connection was refused"),
    ]
    summary = summarise(record(samples, 1.0))
    requests, tokens = summary.requests, summary.tokens
    assert dict(requests.outcomes) == {"ok": 3, "refused": 2, "failed": 0, "broken": 1, "late": 0, "unfinished": 0}
    assert dict(requests.statuses) == {"200": 3, "429": 2}
    assert dict(requests.finishes) == {"length": 1, "stop": 1}
    assert [(error.error, error.requests) for error in requests.errors] == [
        ("slow down", 2),
        ("the connection was refused", 1),
    ]
    assert (requests.whole, requests.empty, summary.itl.pings, summary.itl.empty) == (1, 1, 2, 1)
    assert (tokens.prompt.counted, tokens.prompt.equal, tokens.prompt.more) == (2, 1, 1)
    assert (tokens.output.counted, tokens.output.equal, tokens.output.fewer) == (3, 1, 2)
    assert (tokens.cached_told, tokens.cached_share) == (1, 0.5)
    assert {"whole", "empty", "ended_early", "inexact_prompts", "few_requests"} <= _kinds(summary)


def test_prompts_without_a_requested_length_are_not_compared() -> None:
    told = {"prompt_tokens": 99}
    later = sample(0.0, [1.0], response=told)
    texts = sample(0.0, [1.0], response=told)
    ask = {"due_s": 0.0, "input_tokens": 8, "output_tokens": 1}
    later.ask = type(later.ask)(0, **ask, history=(PromptMessage("user", "a"),))  # type: ignore[arg-type]
    texts.ask = type(texts.ask)(1, **ask, messages=(PromptMessage("user", "a"),))  # type: ignore[arg-type]
    assert summarise(record([later, texts], 1.0)).tokens.prompt.counted == 0


def test_nothing_measured_says_so() -> None:
    summary = summarise(record([], 0.0), objectives=Objectives(ttft=1.0))
    assert (summary.latency.ttft_s.n, summary.rates.asked, summary.rates.achieved) == (0, None, None)
    assert _kinds(summary) == {"nothing_measured"}
    assert "null" in json.dumps(summary.to_json(), allow_nan=False)


def test_a_stopped_run_warns_of_excluded_requests() -> None:
    samples = [*steady(3, 1.0, 0.5), sample(3.0, [], outcome="unfinished")]
    stopped = summarise(record(samples, 60.0, interrupted=True, wall_s=4.0), objectives=Objectives(ttft=2.0))
    assert "interrupted" in _kinds(stopped)
    assert (stopped.latency.ttft_s.n, stopped.latency.ttft_s.failed) == (3, 0)
    assert stopped.goodput is not None
    assert stopped.goodput.judged == 3
    assert stopped.rates.asked is not None
    assert stopped.rates.asked.until_s < 4.0
    drained = summarise(record(samples, 4.0))
    assert "unfinished" in _kinds(drained)
    assert drained.latency.ttft_s.failed == 1


@pytest.mark.parametrize(
    ("client", "kind"),
    [
        ({"wall_s": 10.0, "cpu_s": 8.5}, "client_busy"),
        ({"lag_p99_s": 0.004}, "client_lag"),
        ({"lag_p99_s": 0.004, "stamps": "client"}, "client_lag"),
    ],
)
def test_a_client_that_may_be_the_bottleneck(client: dict[str, Any], kind: str) -> None:
    assert kind in _kinds(summarise(record(steady(3, 1.0, 0.5), 3.0, **client)))


def test_waiting_in_the_client_is_a_warning() -> None:
    samples = [sample(0.0, [1.5], started=1.0, merged=1)]
    assert {"schedule_delay", "merged"} <= _kinds(summarise(record(samples, 1.0)))


def test_a_sound_run_has_no_notes() -> None:
    samples: list[RequestSample] = steady(3000, 0.01, 0.5)
    summary = summarise(record(samples, 30.0, wall_s=30.0, cpu_s=3.0), objectives=Objectives.parse("ttft=1s,tpot=1s"))
    assert summary.notes == ()
    assert summary.goodput is not None
    assert summary.goodput.attainment == 1.0


def test_json_has_stable_names() -> None:
    summary = summarise(record(steady(2, 1.0, 0.5), 2.0), objectives=Objectives(ttft=1.0))
    document = summary.to_json()
    assert list(document) == [
        "measured",
        "requests",
        "latency",
        "itl",
        "rates",
        "concurrency",
        "goodput",
        "mlperf",
        "tokens",
        "client",
        "notes",
    ]
    assert document["latency"]["ttft_s"]["p99"] == 0.5
    assert document["goodput"]["objectives"] == {"ttft": 1.0, "tpot": None, "itl": None, "e2e": None}
    assert json.loads(json.dumps(document, allow_nan=False)) == document
