"""All kinds of loads: the sent requests, their times, and the document."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.stub.live import LiveStub
from tests.bench.stub.script import Script
from tests.cli.bench.conftest import Bench


@pytest.mark.parametrize("arrivals", ["poisson", "constant", "gamma"])
def test_a_rate_is_an_open_loop(bench: Bench, arrivals: str) -> None:
    (run,) = bench.found("--rate", 60, "--duration", 0.5, "--arrivals", arrivals)["runs"]
    assert run["load"]["kind"] == "open"
    assert run["load"]["arrivals"]["kind"] == arrivals
    assert run["duration_s"] == 0.5
    outcomes = run["summary"]["requests"]["outcomes"]
    assert outcomes["ok"] == run["summary"]["requests"]["measured"] > 0


def test_a_constant_rate_sends_an_exact_number(bench: Bench) -> None:
    summary = bench.summary("--rate", 40, "--duration", 0.5, "--arrivals", "constant")
    assert summary["requests"]["sent"] == 20
    assert summary["rates"]["asked"]["requests_per_s"] == pytest.approx(40)
    assert summary["rates"]["asked"]["output_tokens_per_s"] == pytest.approx(240)


def test_a_concurrency_is_a_closed_loop(bench: Bench) -> None:
    (run,) = bench.found("--concurrency", 3, "--requests", 9)["runs"]
    assert run["load"]["kind"] == "closed"
    assert run["summary"]["requests"]["sent"] == 9
    assert run["summary"]["concurrency"]["max"] == 3


def test_clients_begin_along_a_ramp(bench: Bench, stub: LiveStub) -> None:
    bench.found("--concurrency", 2, "--requests", 2, "--ramp", 0.4)
    arrived = sorted(truth.arrived for truth in stub.truths().values())
    assert arrived[-1] - arrived[-2] == pytest.approx(0.2, abs=0.1)


def test_a_rate_with_a_cap_lets_requests_wait_at_the_client(bench: Bench) -> None:
    held = Script(first_s=0.05)
    summary = bench.summary("--rate", 200, "--requests", 12, "--concurrency", 2, "--output-tokens", 1, script=held)
    assert summary["concurrency"]["max"] == 2
    assert summary["latency"]["schedule_delay_s"]["max"] > 0.1
    assert summary["latency"]["ttft_s"]["max"] > summary["latency"]["ttft_sent_s"]["max"] + 0.1
    assert "schedule_delay" in {note["kind"] for note in summary["notes"]}


@pytest.mark.parametrize("endpoint", ["chat", "completions", "messages"])
def test_each_endpoint_gets_exact_lengths(bench: Bench, endpoint: str) -> None:
    summary = bench.summary("--endpoint", endpoint, "--concurrency", 2, "--requests", 4)
    assert summary["requests"]["outcomes"]["ok"] == 4
    assert summary["tokens"]["prompt"]["equal"] == 4
    assert summary["tokens"]["output"]["equal"] == 4
    assert summary["latency"]["tpot_s"]["n"] == 4


def test_responses_without_streams(bench: Bench) -> None:
    summary = bench.summary("--no-stream", "--concurrency", 2, "--requests", 4)
    assert summary["requests"]["whole"] == 4
    assert summary["latency"]["tpot_s"]["n"] == 0
    assert summary["latency"]["ttft_s"]["p50"] == summary["latency"]["e2e_s"]["p50"]


def test_lengths_are_random(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "drawn.json"
    lengths = ("--input-tokens", "16-64", "--output-tokens", "normal:8,3")
    assert bench("--concurrency", 4, "--requests", 24, *lengths, "-o", path, "--quiet").code == 0
    requests = json.loads(path.read_text())["runs"][0]["requests"]
    inputs, outputs = ({each[name] for each in requests} for name in ("asked_input_tokens", "asked_output_tokens"))
    assert len(inputs) > 5
    assert inputs <= set(range(16, 65))
    assert len(outputs) > 3
    assert all(each["prompt_tokens"] == each["asked_input_tokens"] for each in requests)


def test_prompts_longer_than_requested_are_a_warning(bench: Bench) -> None:
    """The stub's chat template has 5 tokens, and every prompt begins with the same word."""
    summary = bench.summary("--concurrency", 2, "--requests", 4, "--input-tokens", 3)
    notes = {note["kind"]: note["text"] for note in summary["notes"]}
    assert notes["short_prompts"] == "4 of 4 prompts are longer than requested: 7 tokens is the minimum here"


def test_prompts_begin_alike_in_groups(bench: Bench) -> None:
    (run,) = bench.found("--concurrency", 2, "--requests", 4, "--shared-prefix", 0.5, "--prefix-groups", 2)["runs"]
    assert run["load"]["shared"]["groups"] == 2


@pytest.mark.parametrize("opens", [("--rate", 20), ("--concurrency", 2)], ids=["by a rate", "held"])
def test_sessions_repeat_their_conversation(bench: Bench, tmp_path: Path, opens: tuple[object, ...]) -> None:
    path = tmp_path / "sessions.json"
    turns = ("--turns", 3, "--think-time", "0.01", "--requests", 3)
    assert bench(*opens, *turns, "-o", path, "--quiet").code == 0
    (run,) = json.loads(path.read_text())["runs"]
    assert run["load"]["kind"] == "sessions"
    by_session: dict[int, list[int]] = {}
    for each in sorted(run["requests"], key=lambda each: each["due_s"]):
        by_session.setdefault(each["session"], []).append(each["prompt_tokens"])
    assert len(by_session) == 3
    for prompts in by_session.values():
        assert len(prompts) == 3
        assert prompts == sorted(set(prompts))


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:00:00.{tenths}000000,{20 + tenths},{3 + tenths}\n" for tenths in range(3)
)
MOONCAKE = "".join(
    json.dumps({"timestamp": 50 * place, "input_length": 40, "output_length": 4, "hash_ids": [0, 1 + place]}) + "\n"
    for place in range(3)
)
OWN = (
    '{"at_s": 0.0, "input_tokens": 30, "output_tokens": 4, "shared": [[7, 10]]}\n'
    '{"at_s": 0.1, "prompt": "Why is the sky blue?", "output_tokens": 4}\n'
    '{"at_s": 0.1, "session": 3, "input_tokens": 30, "output_tokens": 4}\n'
    '{"after_s": 0.1, "session": 3, "turn": 1, "input_tokens": 20, "output_tokens": 4}\n'
)


@pytest.mark.parametrize(
    ("name", "text", "flags", "requests"),
    [
        ("azure.csv", AZURE, (), 3),
        ("mooncake.jsonl", MOONCAKE, ("--block-tokens", 32), 3),
        ("own.jsonl", OWN, (), 4),
    ],
    ids=["azure", "mooncake", "own"],
)
def test_traces_are_replayed(
    bench: Bench, tmp_path: Path, name: str, text: str, flags: tuple[object, ...], requests: int
) -> None:
    path = tmp_path / name
    path.write_text(text)
    (run,) = bench.found("--trace", path, *flags)["runs"]
    assert run["summary"]["requests"]["outcomes"]["ok"] == requests
    assert run["summary"]["tokens"]["prompt"]["fewer"] == run["summary"]["tokens"]["prompt"]["more"] == 0
    assert run["load"]["kind"] == "trace"


def test_a_trace_is_scaled_in_time_and_length(bench: Bench, tmp_path: Path) -> None:
    trace, path = tmp_path / "own.jsonl", tmp_path / "found.json"
    trace.write_text(
        "".join(json.dumps({"at_s": 2.0 * at, "input_tokens": 20, "output_tokens": 4}) + "\n" for at in range(3))
    )
    scales = ("--time-scale", 20, "--input-scale", 2, "--output-scale", 0.5)
    assert bench("--trace", trace, *scales, "-o", path, "--quiet").code == 0
    requests = json.loads(path.read_text())["runs"][0]["requests"]
    assert [each["due_s"] for each in requests] == pytest.approx([0.0, 0.1, 0.2])
    assert {(each["asked_input_tokens"], each["asked_output_tokens"]) for each in requests} == {(40, 2)}


def test_a_run_is_written_as_a_trace_and_replayed(bench: Bench, tmp_path: Path) -> None:
    trace, first, second = (tmp_path / name for name in ("run.jsonl", "first.json", "second.json"))
    assert bench("--rate", 40, "--requests", 6, "-o", trace, "-o", first, "--quiet").code == 0
    assert bench("--trace", trace, "-o", second, "--quiet").code == 0
    before, after = (
        [(each["due_s"], each["asked_input_tokens"]) for each in json.loads(path.read_text())["runs"][0]["requests"]]
        for path in (first, second)
    )
    assert [tokens for _, tokens in before] == [tokens for _, tokens in after]
    start = before[0][0]  # a replay begins with the first request
    assert [due for due, _ in after] == pytest.approx([due - start for due, _ in before], abs=1e-5)


def test_a_sweep_over_rates(bench: Bench) -> None:
    document = bench.found("--rates", "20,40", "--duration", 0.3, "--slo", "ttft=1s")
    assert document["sweep"]["rates"] == [20, 40]
    assert [run["load"]["arrivals"]["rate"] for run in document["runs"]] == [20, 40]
    assert all(run["summary"]["goodput"]["attainment"] == 1 for run in document["runs"])


def test_a_sweep_over_clients(bench: Bench) -> None:
    document = bench.found("--concurrencies", "1..4x2", "--requests", 6)
    assert [run["load"]["concurrency"] for run in document["runs"]] == [1, 2, 4]
    assert [run["summary"]["concurrency"]["max"] for run in document["runs"]] == [1, 2, 4]


def test_the_highest_rate_that_meets_objectives(bench: Bench, stub: LiveStub) -> None:
    """The stub serves one request at a time in 20 ms, so it sustains 50 evenly spaced requests a second."""
    stub.rules(capacity=1)
    evenly = ("--arrivals", "constant", "--output-tokens", 1, "--duration", 1)
    document = bench.found("--slo", "ttft=60ms", "--precision", 0.3, *evenly, script=Script(first_s=0.02))
    found = document["search"]
    assert 25 < found["rate"] < 60
    assert len(document["runs"]) == sum(len(trial["runs"]) for trial in found["trials"])
    assert {trial["passed"] for trial in found["trials"]} == {True, False}


def test_warm_up_and_cool_down_exclude_requests(bench: Bench) -> None:
    flags = ("--rate", 20, "--duration", 1, "--arrivals", "constant", "--warmup", 0.3, "--cooldown", 0.3)
    summary = bench.summary(*flags)
    assert summary["requests"]["sent"] == 20
    assert summary["requests"]["measured"] == 8
    assert summary["measured"]["words"] == "only requests due from 0.3 s on and before 0.7 s are measured"
