"""Metrics: their names, the values they count, and the bounds of their labels."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.observe.served import failed, report, served, snapshot, step
from tests.support.clock import VirtualClock
from twofold.core.errors import ParameterError
from twofold.core.report import DraftCounts
from twofold.observe.metrics.replicas import ReplicaFigures
from twofold.observe.metrics.requests import Objective
from twofold.observe.metrics.server import ServerMetrics
from twofold.observe.served import FetchedBlocks, ServedRoute

VLLM = {
    "num_requests_running": "gauge",
    "num_requests_waiting": "gauge",
    "kv_cache_usage_perc": "gauge",
    "prompt_tokens": "counter",
    "generation_tokens": "counter",
    "prompt_tokens_cached": "counter",
    "prefix_cache_queries": "counter",
    "prefix_cache_hits": "counter",
    "num_preemptions": "counter",
    "spec_decode_num_drafts": "counter",
    "spec_decode_num_draft_tokens": "counter",
    "spec_decode_num_accepted_tokens": "counter",
    "spec_decode_num_accepted_tokens_per_pos": "counter",
    "request_success": "counter",
    "admission_rejections": "counter",
    "time_to_first_token_seconds": "histogram",
    "inter_token_latency_seconds": "histogram",
    "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram",
    "request_queue_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram",
    "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram",
    "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram",
    "iteration_tokens_total": "histogram",
}
"""What dashboards made for vLLM read."""


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock(1_000.0)


@pytest.fixture
def metrics(clock: VirtualClock) -> ServerMetrics:
    return ServerMetrics(clock=clock)


class Scrape:
    """A page as Prometheus understands it."""

    def __init__(self, metrics: ServerMetrics) -> None:
        body = asyncio.run(metrics.read()).body.decode()
        self.families = {family.name: family for family in text_string_to_metric_families(body)}

    def names(self, **labels: str) -> set[str]:
        """The names of the series that bear these labels."""
        samples = (sample for family in self.families.values() for sample in family.samples)
        return {sample.name for sample in samples if labels.items() <= sample.labels.items()}

    def samples(self, name: str, **labels: str) -> Iterator[Sample]:
        for family in self.families.values():
            for sample in family.samples:
                if sample.name == name and labels.items() <= sample.labels.items():
                    yield sample

    def __call__(self, name: str, **labels: str) -> float:
        """The only series that bears these labels."""
        (sample,) = self.samples(name, **labels)
        return float(sample.value)


def test_vllms_names_are_there_with_its_kinds_and_labels(metrics: ServerMetrics) -> None:
    metrics.on_step("small", step())
    metrics.on_snapshot("small", snapshot())
    metrics.on_served(served())
    page = Scrape(metrics)
    for name, kind in VLLM.items():
        family = page.families[f"vllm:{name}"]
        assert family.type == kind
        assert all(sample.labels["model_name"] == "small" for sample in family.samples)
        if name != "admission_rejections":
            assert all(sample.labels["engine"] == "0" for sample in family.samples)


def test_a_request_is_counted_as_its_report_says(metrics: ServerMetrics) -> None:
    metrics.on_served(served(reasoning_tokens=5))
    page = Scrape(metrics)
    assert page("vllm:prompt_tokens_total") == 20
    assert page("vllm:prompt_tokens_cached_total") == 16
    assert page("vllm:prompt_tokens_by_source_total", source="local_compute") == 4
    assert page("vllm:generation_tokens_total") == 21
    assert page("twofold:reasoning_tokens_total") == 5
    assert page("vllm:request_success_total", finished_reason="stop") == 1
    assert page("vllm:request_success_total", finished_reason="length") == 0
    assert page("vllm:request_prompt_tokens_sum") == 20
    assert page("vllm:request_num_preemptions_sum") == 1
    assert page("vllm:request_params_max_tokens_sum") == 64
    assert page("twofold:http_requests_total", endpoint="/v1/chat/completions", status="200") == 1
    assert page("twofold:cost_total", tenant="acme", tier="default", currency="USD") == 0.002
    assert page("twofold:tenant_tokens_total", tenant="acme", kind="fresh") == 4
    assert page("twofold:stall_seconds_total", cause="preempted") == 0.05


def test_errors_and_fetches_of_routes_are_counted_by_replica(metrics: ServerMetrics) -> None:
    fetched = FetchedBlocks(0, 2, 32, 4096, 0.01)
    routes = (
        ServedRoute(1, "least predicted TTFT", 0, 0.16, -0.2, fetched),
        ServedRoute(0, "its turn", None, None, None),
    )
    metrics.on_served(replace(served(), routes=routes))
    page = Scrape(metrics)
    assert page("twofold:route_prediction_error_sum", engine="1") == pytest.approx(0.2)
    assert page("twofold:route_prediction_error_count", engine="1") == 1
    assert not list(page.samples("twofold:route_prediction_error_count", engine="0"))
    assert page("twofold:fetched_bytes_total", engine="1") == 4096


def test_replicas_are_those_of_now_and_not_for_tenants(metrics: ServerMetrics, clock: VirtualClock) -> None:
    found = [ReplicaFigures("small", 0, "", "ready", 3), ReplicaFigures("small", 1, "attic", "draining", 0)]
    metrics.replicas.read = lambda: found
    page = Scrape(metrics)
    assert page("twofold:replicas", engine="0", node="", state="ready") == 1
    assert page("twofold:replicas", engine="1", node="attic", state="draining") == 1
    assert page("twofold:replica_requests", engine="0", node="") == 3
    assert "attic" not in asyncio.run(metrics.read(tenant="acme")).body.decode()
    found.pop()
    clock.advance(2.0)
    assert [sample.labels["engine"] for sample in Scrape(metrics).samples("twofold:replicas")] == ["0"]


def test_times_are_those_of_each_phase(metrics: ServerMetrics) -> None:
    metrics.on_served(served())
    page = Scrape(metrics)
    assert page("vllm:request_queue_time_seconds_sum") == pytest.approx(0.1)
    assert page("vllm:request_prefill_time_seconds_sum") == pytest.approx(0.2)
    assert page("vllm:request_decode_time_seconds_sum") == pytest.approx(0.4)
    assert page("vllm:request_inference_time_seconds_sum") == pytest.approx(0.6)
    assert page("vllm:request_time_per_output_token_seconds_sum") == pytest.approx(0.02)
    assert page("vllm:e2e_request_latency_seconds_sum") == pytest.approx(0.75)
    assert page("vllm:inter_token_latency_seconds_count") == 20
    assert page("vllm:inter_token_latency_seconds_bucket", le="0.01") == 0
    assert page("vllm:inter_token_latency_seconds_bucket", le="0.025") == 20


@pytest.mark.parametrize(("stream", "ttft"), [(True, 0.31), (False, 0.3)])
def test_the_first_token_of_a_whole_answer_is_the_engines(metrics: ServerMetrics, stream: bool, ttft: float) -> None:
    metrics.on_served(served(stream=stream, first_token_s=0.31 if stream else 0.75))
    assert Scrape(metrics)("vllm:time_to_first_token_seconds_sum") == pytest.approx(ttft)


def test_answers_of_one_prompt_are_decoded_side_by_side(metrics: ServerMetrics) -> None:
    one = report(finish_reasons=("stop", "stop", "length", "stop"))
    four = replace(one, token_times=one.token_times * 4)
    metrics.on_served(served(reports=(four,)))
    page = Scrape(metrics)
    assert page("vllm:request_time_per_output_token_seconds_sum") == pytest.approx(0.02)
    assert page("vllm:request_max_num_generation_tokens_sum") == 21
    assert page("vllm:request_success_total", finished_reason="length") == 1


def test_a_request_that_never_ran_has_only_a_queue_phase(metrics: ServerMetrics) -> None:
    waited = report(admitted=None, first_token=None, last_token=None, output_tokens=0, finish_reasons=("abort",))
    metrics.on_served(served(status=499, reports=(waited,), first_token_s=None, gaps_s=[], limits_s={}))
    page = Scrape(metrics)
    assert page("vllm:request_queue_time_seconds_count") == 1
    assert not list(page.samples("vllm:request_prefill_time_seconds_count"))
    assert page("vllm:request_success_total", finished_reason="abort") == 1


@pytest.mark.parametrize(
    ("status", "error", "reason"),
    [(429, "QuotaError", "quota"), (503, "BusyError", "busy"), (529, "BusyError", "busy")],
)
def test_refusals_are_not_failures(metrics: ServerMetrics, status: int, error: str, reason: str) -> None:
    metrics.on_snapshot("small", snapshot())
    metrics.on_served(failed(status, error))
    page = Scrape(metrics)
    assert page("vllm:admission_rejections_total", reason=reason) == 1
    assert page("vllm:request_success_total", finished_reason="error") == 0


def test_a_crash_is_an_error(metrics: ServerMetrics) -> None:
    metrics.on_snapshot("small", snapshot())
    metrics.on_served(failed(503, "WorkerError"))
    page = Scrape(metrics)
    assert page("vllm:request_success_total", finished_reason="error") == 1
    assert page("twofold:request_errors_total", dialect="openai", error="WorkerError") == 1


def test_requests_without_a_model_are_counted(metrics: ServerMetrics) -> None:
    metrics.on_served(failed(200, "", endpoint="/v1/models", model=""))
    for _ in range(2):
        metrics.on_served(failed(401, "invalid_api_key", endpoint="", model=""))
    page = Scrape(metrics)
    assert page("twofold:http_requests_total", endpoint="/v1/models", status="200") == 1
    assert page("twofold:http_requests_total", endpoint="", status="401") == 2
    assert page("twofold:slo_met_total", tier="default") == 0


def test_unknown_models_create_no_series(metrics: ServerMetrics) -> None:
    for i in range(100):
        metrics.on_served(failed(404, "ModelNotFoundError", model=f"canary-{i}"))
        metrics.on_served(failed(503, "BusyError", model=f"canary-{i}"))
    assert b"canary" not in asyncio.run(metrics.read()).body
    assert Scrape(metrics)("twofold:request_errors_total", error="ModelNotFoundError") == 100


def test_a_model_is_known_before_its_first_request(metrics: ServerMetrics) -> None:
    metrics.on_snapshot("small", snapshot())
    assert Scrape(metrics)("vllm:prompt_tokens_total", model_name="small") == 0


def test_cached_answers_are_counted_and_not_timed(metrics: ServerMetrics) -> None:
    metrics.on_served(served(reports=(), cache_asked=True, cached_answer=True, limits_s={}))
    metrics.on_served(served(cache_asked=True))
    page = Scrape(metrics)
    assert page("twofold:response_cache_requests_total", result="hit") == 1
    assert page("twofold:response_cache_requests_total", result="miss") == 1
    assert page("vllm:e2e_request_latency_seconds_count") == 1


def test_labels_that_callers_choose_are_bounded(metrics: ServerMetrics) -> None:
    for i in range(500):
        metrics.on_served(served(tenant=f"tenant-{i}", endpoint=f"/{i}", error=f"word-{i}"))
    page = Scrape(metrics)
    assert len(list(page.samples("twofold:cost_total"))) == 101
    assert page("twofold:tenant_requests_total", tenant="other") == 400
    assert len(list(page.samples("twofold:http_requests_total"))) == 65
    assert len(list(page.samples("twofold:request_errors_total"))) == 65


def test_steps_are_counted_by_phase(metrics: ServerMetrics) -> None:
    metrics.on_step("small", step())
    metrics.on_step("small", step(prefill_rows=0, predicted_s=None))
    page = Scrape(metrics)
    assert page("vllm:iteration_tokens_total_sum") == 26
    assert page("twofold:rows_total", phase="decode") == 6
    assert page("twofold:rows_total", phase="prefill") == 20
    assert page("twofold:step_seconds_count", phase="mixed") == 1
    assert page("twofold:engine_seconds_total", part="host") == pytest.approx(0.004)
    assert page("twofold:predicted_step_seconds_total") == pytest.approx(0.02)
    assert page("twofold:mispredicted_step_seconds_total") == pytest.approx(0.002)


def test_snapshots_show_the_cache(metrics: ServerMetrics) -> None:
    metrics.on_snapshot("small", snapshot())
    page = Scrape(metrics)
    assert page("vllm:kv_cache_usage_perc") == 0.1
    assert page("vllm:cache_config_info", block_size="16", num_gpu_blocks="100") == 1
    assert page("twofold:kv_blocks", state="cached") == 30
    assert page("twofold:cache_pin_tokens_total", ttl="5m", event="expired") == 32
    assert page("twofold:step_prediction_error") == 0.04


@pytest.mark.parametrize("told", [True, False])
def test_counters_do_not_fall_when_an_engine_restarts(metrics: ServerMetrics, told: bool) -> None:
    metrics.on_snapshot("small", snapshot())
    if told:
        metrics.on_restart("small")
    metrics.on_snapshot("small", snapshot(queries=50, hits=10, pins={}, prediction_error=None))
    metrics.on_snapshot("small", snapshot(queries=60, hits=10, pins={}, prediction_error=None))
    page = Scrape(metrics)
    assert page("vllm:prefix_cache_queries_total") == 1060
    assert page("vllm:prefix_cache_hits_total") == 410
    assert page("twofold:cache_pin_tokens_total", event="written") == 64
    assert page("twofold:engine_restarts_total") == told
    assert not list(page.samples("twofold:step_prediction_error"))


def test_all_gauges_of_a_replica_end_with_it(metrics: ServerMetrics, clock: VirtualClock) -> None:
    for number in (1, 2):
        metrics.on_snapshot("small", snapshot(), number)
    before = Scrape(metrics).names(engine="2")
    assert {"vllm:num_requests_running", "twofold:kv_blocks", "vllm:cache_config_info"} <= before
    metrics.on_leave("small", 2)
    clock.advance(1)
    page = Scrape(metrics)
    assert page.names(engine="2") == {name for name in before if name.endswith("_total")}
    assert page("vllm:num_requests_running", engine="1") == snapshot().running
    metrics.on_snapshot("small", snapshot(queries=50), 2)  # a new replica with its number
    clock.advance(1)
    assert Scrape(metrics)("vllm:prefix_cache_queries_total", engine="2") == 1050


def test_drafts_are_counted_by_position(metrics: ServerMetrics) -> None:
    counts = DraftCounts()
    for drafted, accepted in ((3, 2), (0, 0), (5, 1), (2, 0)):
        counts.add(drafted, accepted)
    assert counts == DraftCounts(3, 10, 3, [2, 1, 0, 0, 0])
    metrics.on_snapshot("small", snapshot(drafts=counts))
    metrics.on_restart("small")
    metrics.on_snapshot("small", snapshot(drafts=DraftCounts(1, 2, 1, [1, 0])))
    page = Scrape(metrics)
    name = "vllm:spec_decode_num_"
    assert [page(f"{name}{what}_total") for what in ("drafts", "draft_tokens", "accepted_tokens")] == [4, 12, 4]
    positions = {
        sample.labels["position"]: sample.value for sample in page.samples(f"{name}accepted_tokens_per_pos_total")
    }
    assert positions == {"0": 3, "1": 1, "2": 0, "3": 0, "4": 0}


def test_counts_after_a_restart_are_added_even_if_larger_than_before(
    metrics: ServerMetrics, clock: VirtualClock
) -> None:
    metrics.on_snapshot("small", snapshot(queries=50))
    metrics.on_restart("small")
    assert Scrape(metrics)("vllm:num_requests_running") == 0
    clock.advance(1)
    metrics.on_snapshot("small", snapshot(queries=70))
    assert Scrape(metrics)("vllm:prefix_cache_queries_total", model_name="small") == 120


def test_sizes_of_the_cache_that_are_no_longer_true_are_dropped(metrics: ServerMetrics) -> None:
    metrics.on_snapshot("small", snapshot())
    metrics.on_snapshot("small", snapshot(block_size=32))
    (sample,) = Scrape(metrics).samples("vllm:cache_config_info")
    assert sample.labels["block_size"] == "32"


@pytest.mark.parametrize(
    ("changes", "missed"),
    [
        ({}, set()),
        ({"first_token_s": 0.6}, {"ttft"}),
        ({"reports": (report(last_token=5001.4),)}, {"tpot"}),
        ({"duration_s": 9.0, "first_token_s": 0.6}, {"ttft", "e2e"}),
        ({"status": 503, "error": "BusyError", "reports": ()}, {"failed"}),
    ],
)
def test_goodput_counts_who_met_the_objective(changes: dict[str, Any], missed: set[str], clock: VirtualClock) -> None:
    metrics = ServerMetrics({"default": Objective(ttft_s=0.5, tpot_s=0.05, e2e_s=5)}, clock=clock)
    metrics.on_served(served(**changes))
    page = Scrape(metrics)
    assert page("twofold:slo_met_total", tier="default") == (not missed)
    assert page("twofold:slo_missed_total", tier="default") == bool(missed)
    assert {sample.labels["measure"] for sample in page.samples("twofold:slo_missed_by_total")} == missed
    assert page("twofold:slo_seconds", tier="default", measure="ttft") == 0.5


@pytest.mark.parametrize("status", [400, 404, 429, 499])
def test_goodput_does_not_judge_what_callers_did(metrics: ServerMetrics, status: int) -> None:
    metrics.on_served(failed(status, "word"))
    page = Scrape(metrics)
    assert page("twofold:slo_met_total", tier="default") == 0
    assert page("twofold:slo_missed_total", tier="default") == 0


def test_impossible_objectives_are_refused() -> None:
    with pytest.raises(ParameterError, match="ttft_s"):
        Objective(ttft_s=0)
    with pytest.raises(ParameterError, match="no service tier 'gold'"):
        ServerMetrics({"gold": Objective()})


def test_recent_gauges_forget(metrics: ServerMetrics, clock: VirtualClock) -> None:
    metrics.on_served(served())
    page = Scrape(metrics)
    for measure, exact in (("ttft", 0.31), ("tpot", 0.02), ("itl", 0.02), ("e2e", 0.75), ("queue", 0.1)):
        for quantile in ("0.5", "0.9", "0.95", "0.99", "0.999"):
            found = page("twofold:recent_latency_seconds", measure=measure, quantile=quantile)
            assert found == pytest.approx(exact, rel=0.0101)
    assert page("twofold:recent_latency_values", measure="itl") == 20
    assert page("twofold:roofline_share", phase="prefill") == pytest.approx(0.5)
    assert page("twofold:roofline_share", phase="decode") == pytest.approx(0.75)
    clock.advance(301)
    page = Scrape(metrics)
    assert page("twofold:recent_latency_values", measure="itl") == 0
    assert not list(page.samples("twofold:recent_latency_seconds"))
    assert not list(page.samples("twofold:roofline_share"))
    assert page("twofold:phase_limit_seconds_total", phase="decode") == pytest.approx(0.3)


def test_pages_contain_no_text_of_callers(metrics: ServerMetrics) -> None:
    metrics.on_served(served(request_id="req_canary", key="canary", traceparent="canary"))
    assert b"canary" not in asyncio.run(metrics.read()).body
