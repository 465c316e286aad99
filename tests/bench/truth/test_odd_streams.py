"""Unusual streams of real servers: each has the right outcome, figures and counts."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.stub.live import LiveStub
from tests.bench.stub.script import Script, Step, at
from tests.bench.truth.runs import CLOSE_S, Play, Row, Run, at_best, play
from twofold.bench.client.loop import ClientOptions
from twofold.bench.endpoints.endpoint import EndpointOptions
from twofold.bench.load.base import Outcome
from twofold.bench.metrics.requests import request_figures
from twofold.bench.metrics.summary import summarise
from twofold.bench.record import UNKNOWN, RequestSample

ENDPOINTS: Final = ("chat", "completions", "messages")
OPENAI: Final = ("chat", "completions")
WHOLE: Final = Script(first_s=0.05, stream=False)

each_endpoint = pytest.mark.parametrize("endpoint", ENDPOINTS)
each_of_openai = pytest.mark.parametrize("endpoint", OPENAI)


def one(stub: LiveStub, script: Script, *, endpoint: str = "chat", output_tokens: int = 4) -> Row:
    (row,) = play(stub, [Play(script, output_tokens=output_tokens)], endpoint=endpoint).rows
    return row


@each_of_openai
@pytest.mark.parametrize("told", ["ids", "usage"])
def test_chunks_with_token_counts(stub: LiveStub, endpoint: str, told: str) -> None:
    script = Script(tokens=3, gap_s=0.005, told="ids" if told == "ids" else "usage")
    sample = one(stub, script, endpoint=endpoint, output_tokens=7).sample
    assert (sample.outcome, list(sample.response.tokens), sample.output_tokens) == ("ok", [3, 3, 1], 7)


@each_endpoint
def test_chunks_without_token_counts_use_the_usage(stub: LiveStub, endpoint: str) -> None:
    run = play(stub, [Play(Script(tokens=3, gap_s=0.005), output_tokens=7)], endpoint=endpoint)
    response = run.rows[0].sample.response
    assert list(response.tokens) == [UNKNOWN] * 3
    assert (response.completion_tokens, response.prompt_tokens) == (7, prompt(endpoint))
    assert summarise(run.record).itl.assumed_share == 1.0


@each_of_openai
def test_a_response_without_usage_counts_its_chunks(stub: LiveStub, endpoint: str) -> None:
    run = play(stub, [Play(Script(usage=False, gap_s=0.005), output_tokens=5)], endpoint=endpoint)
    (figures,) = request_figures(run.record)
    assert run.rows[0].sample.response.completion_tokens is None
    assert (figures.outcome, figures.output_tokens) == ("ok", 5)


@each_endpoint
def test_empty_chunks_and_keep_alives_are_no_output(stub: LiveStub, endpoint: str) -> None:
    steps = (Step(0.0, "ping"), Step(0.02, "empty"), Step(0.04), Step(0.05, "ping"), Step(0.06, "empty"), Step(0.08))

    def check() -> None:
        stub.rules()
        row = one(stub, Script(steps=steps), endpoint=endpoint)
        response = row.sample.response
        assert (row.sample.outcome, len(response.moments), response.empty, response.pings) == ("ok", 2, 2, 2)
        assert row.first.error(response.moments[0]) < CLOSE_S
        assert row.last.error(response.moments[1]) < CLOSE_S

    at_best(check)


@each_endpoint
def test_an_error_in_the_middle_fails_the_request(stub: LiveStub, endpoint: str) -> None:
    script = Script(steps=(Step(0.0), Step(0.01, "error", text="out of memory")), done=False, usage=False)
    run = play(stub, [Play(script)], endpoint=endpoint)
    sample = run.rows[0].sample
    assert (sample.outcome, sample.status, len(sample.response.moments)) == ("failed", 200, 1)
    assert "out of memory" in (sample.error or "")
    assert request_figures(run.record)[0].ttft_s == math.inf


@each_endpoint
@pytest.mark.parametrize(
    ("status", "outcome"),
    [(429, "refused"), (503, "refused"), (529, "refused"), (500, "failed"), (401, "failed"), (404, "failed")],
)
def test_refusals_and_failures(stub: LiveStub, endpoint: str, status: int, outcome: Outcome) -> None:
    run = play(stub, [Play(Script(status=status))], endpoint=endpoint)
    sample = run.rows[0].sample
    assert (sample.outcome, sample.status, sample.first_s) == (outcome, status, None)
    assert "as the script says" in (sample.error or "")
    summary = summarise(run.record)
    assert summary.requests.outcomes[outcome] == 1
    assert summary.requests.statuses == {str(status): 1}
    assert (summary.latency.ttft_s.failed, summary.latency.ttft_s.p50) == (1, math.inf)


@pytest.mark.parametrize("body", ["", "<html>Bad gateway</html>", '{"error":', '["no"]', "\x00\xff"])
def test_errors_with_unusual_bodies(stub: LiveStub, body: str) -> None:
    sample = one(stub, Script(status=502, body=body)).sample
    assert (sample.outcome, sample.status) == ("failed", 502)
    assert sample.error


@each_endpoint
@pytest.mark.parametrize("how", ["cut", "reset"])
def test_a_connection_that_ends_in_the_middle_breaks_the_completion(stub: LiveStub, endpoint: str, how: str) -> None:
    end = Step(0.02, "cut" if how == "cut" else "reset")
    sample = one(stub, Script(steps=(Step(0.0), end)), endpoint=endpoint).sample
    assert (sample.outcome, sample.status, len(sample.response.moments)) == ("broken", 200, 1)
    assert sample.error


def test_a_connection_that_ends_without_a_response_breaks_the_request(stub: LiveStub) -> None:
    sample = one(stub, Script(steps=(Step(0.02, "cut"),))).sample
    assert (sample.outcome, sample.status, sample.first_s) == ("broken", None, None)


@each_endpoint
def test_a_stream_that_ends_before_its_completion_is_broken(stub: LiveStub, endpoint: str) -> None:
    sample = one(stub, Script(done=False), endpoint=endpoint).sample
    assert (sample.outcome, len(sample.response.moments)) == ("broken", 4)


@each_endpoint
@pytest.mark.parametrize("garbage", ["data: {\n\n", "data: 7\n\n", "data: \x00\n\n"])
def test_invalid_events_break_the_completion(stub: LiveStub, endpoint: str, garbage: str) -> None:
    sample = one(stub, Script(steps=(Step(0.0), Step(0.01, "raw", 0, garbage))), endpoint=endpoint).sample
    assert sample.outcome == "broken"
    assert sample.error


@each_endpoint
@pytest.mark.parametrize("asked", [True, False], ids=["though asked", "as asked"])
@pytest.mark.parametrize("script", [WHOLE, replace(WHOLE, framing="close")], ids=["sized", "until close"])
def test_responses_without_a_stream(stub: LiveStub, endpoint: str, script: Script, asked: bool) -> None:
    options = EndpointOptions("stub", stream=asked)

    def check() -> None:
        stub.rules()
        run = play(stub, [Play(script, output_tokens=6)], endpoint=endpoint, options=options)
        row = run.rows[0]
        response = row.sample.response
        assert (row.sample.outcome, response.streamed, response.text) == ("ok", False, " w" * 6)
        assert (len(response.moments), row.sample.output_tokens) == (1, 6)
        assert row.first.error(response.moments[0]) < CLOSE_S
        assert request_figures(run.record)[0].tpot_s is None
        assert summarise(run.record).requests.whole == 1

    at_best(check)


@each_endpoint
def test_a_slow_head_is_no_output(stub: LiveStub, endpoint: str) -> None:
    script = Script(head_s=0.02, steps=at(0.08, 0.09))

    def check() -> None:
        stub.rules()
        row = one(stub, script, endpoint=endpoint)
        assert row.sample.outcome == "ok"
        assert row.first.error(row.sample.response.moments[0]) < CLOSE_S

    at_best(check)


def test_a_head_that_comes_byte_by_byte(stub: LiveStub) -> None:
    row = one(stub, Script(piece_bytes=1, piece_gap_s=0.00002))
    assert (row.sample.outcome, row.sample.response.text) == ("ok", " w" * 4)


@each_endpoint
def test_events_of_one_write_share_its_moment_and_are_counted(stub: LiveStub, endpoint: str) -> None:
    run = play(stub, [Play(Script(steps=(*at(0.0, 0.0, 0.0), *at(0.05, 0.05))))], endpoint=endpoint)
    sample = run.rows[0].sample
    moments = sample.response.moments
    assert (len(moments), len(set(moments)), sample.merged) == (5, 2, 3)
    assert summarise(run.record).itl.merged == 3


@each_endpoint
def test_other_framings_of_the_same_response(stub: LiveStub, endpoint: str) -> None:
    scripts = [
        Script(framing="close"),
        Script(newline="\r\n"),
        Script(newline="\r"),
        Script(early_hints=True),
        Script(hang_up=True),
        Script(chunk_bytes=1),
        Script(tail_s=0.01),
    ]
    run = play(stub, [Play(script, due_s=0.01 * index) for index, script in enumerate(scripts)], endpoint=endpoint)
    assert [row.sample.outcome for row in run.rows] == ["ok"] * len(scripts)
    assert {row.sample.response.text for row in run.rows} == {" w" * 8}
    assert {row.sample.output_tokens for row in run.rows} == {8}


def test_requests_on_connections_that_the_server_closed_are_sent_again(stub: LiveStub) -> None:
    plays = [Play(Script(hang_up=index % 2 == 0), due_s=0.02 * index) for index in range(10)]
    run = play(stub, plays)
    assert {row.sample.outcome for row in run.rows} == {"ok"}


def test_connections_are_kept_or_not_as_asked(stub: LiveStub) -> None:
    plays = [Play(Script(), due_s=0.03 * index) for index in range(5)]
    one_by_one = play(stub, plays, max_open=1)  # two at once need two connections
    assert len({row.truth.connection for row in one_by_one.rows}) == 1
    stub.rules()
    run = play(stub, plays, max_open=1, client=ClientOptions(reuse_connections=False))
    assert len({row.truth.connection for row in run.rows}) == 5


def test_too_slow_a_request_is_late_and_the_others_do_not_wait_for_it(stub: LiveStub) -> None:
    plays = [Play(Script(first_s=5.0)), Play(Script(), due_s=0.01)]
    run = play(stub, plays, client=ClientOptions(request_timeout_s=2.0))
    assert [sample.outcome for sample in in_order(run)] == ["late", "ok"]
    assert summarise(run.record).latency.ttft_s.failed == 1


def test_requests_open_after_the_drain_period_are_unfinished(stub: LiveStub) -> None:
    plays = [Play(Script(steps=(Step(0.0), Step(5.0)))), Play(Script(), due_s=0.01)]
    run = play(stub, plays, client=ClientOptions(drain_s=1.5))
    assert [sample.outcome for sample in in_order(run)] == ["unfinished", "ok"]
    assert len(in_order(run)[0].response.moments) == 1


def test_one_that_fails_does_not_disturb_the_figures_of_others(stub: LiveStub) -> None:
    plays = [Play(Script(status=500 if index == 7 else 200), due_s=0.005 * index) for index in range(10)]
    latency = summarise(play(stub, plays).record).latency
    assert (latency.ttft_s.n, latency.ttft_s.failed) == (10, 1)
    assert latency.ttft_s.p90 is not None
    assert latency.ttft_s.p90 < math.inf
    assert latency.ttft_s.p95 == math.inf


@settings(max_examples=25, deadline=None)
@given(
    endpoint=st.sampled_from(ENDPOINTS),
    newline=st.sampled_from(["\n", "\r\n"]),
    chunk_bytes=st.none() | st.integers(1, 300),
    piece_bytes=st.integers(5, 400),
    moments=st.lists(st.integers(0, 4), min_size=1, max_size=6),
)
def test_the_response_does_not_depend_on_the_split_of_bytes(
    running_stub: LiveStub,
    endpoint: str,
    newline: str,
    chunk_bytes: int | None,
    piece_bytes: int,
    moments: list[int],
) -> None:
    steps = tuple(Step(moment * 0.002, "text", 1 + place % 3) for place, moment in enumerate(sorted(moments)))
    whole = Script(steps=steps)
    split = replace(whole, newline=newline, chunk_bytes=chunk_bytes, piece_bytes=piece_bytes, piece_gap_s=0.0001)

    running_stub.rules()
    plain, cut = play(running_stub, [Play(whole), Play(split)], endpoint=endpoint).rows
    assert (plain.sample.outcome, cut.sample.outcome) == ("ok", "ok")
    assert cut.sample.response.texts == plain.sample.response.texts
    assert cut.sample.output_tokens == plain.sample.output_tokens
    for place, moment in enumerate(cut.sample.response.moments):
        assert moment > cut.chunk(place).least - CLOSE_S, "before it was sent"


@each_endpoint
@pytest.mark.parametrize("chunk_bytes", [None, 7, 64])
def test_a_split_event_has_the_time_of_its_last_byte(stub: LiveStub, endpoint: str, chunk_bytes: int | None) -> None:
    script = Script(steps=at(0.02, 0.06, 0.1), chunk_bytes=chunk_bytes, piece_bytes=60, piece_gap_s=0.003)

    def check() -> None:
        stub.rules()
        row = one(stub, script, endpoint=endpoint)
        for place, moment in enumerate(row.sample.response.moments):
            assert row.chunk(place).error(moment) < CLOSE_S

    at_best(check)


def prompt(endpoint: str) -> int:
    """Tokens of the prompt that every play here has, as the stub counts them."""
    return 7 if endpoint == "completions" else 12


def in_order(run: Run) -> list[RequestSample]:
    return sorted(run.record.samples, key=lambda sample: sample.ask.index)
