"""The client with scripted servers: every request ends, and its sample has the outcome."""

from __future__ import annotations

import time

import pytest

from tests.bench.client.support import (
    LAST,
    STREAM,
    PlainLoad,
    Talk,
    asked,
    chunk,
    each,
    only,
    paced,
    streamed,
    whole,
)
from twofold.bench.client.loop import ClientOptions


def test_a_stream_is_recorded_with_its_times() -> None:
    record = asked(lambda talk, _: paced(talk, 0.03, 0.02, 0.01), PlainLoad((0.05,)))
    sample = only(record)
    assert (sample.outcome, sample.error, sample.status, sample.response.text) == ("ok", None, 200, "xxx")
    assert sample.started_s is not None
    assert sample.sent_s is not None
    assert sample.ended_s is not None
    assert sample.connect_s is not None
    first, second, third = sample.response.moments
    assert 0.05 <= sample.started_s <= sample.sent_s < first < second < third <= sample.ended_s
    assert first - sample.sent_s > 0.03
    assert second - first > 0.019
    assert (sample.merged, sample.response.streamed, record.interrupted) == (0, True, False)
    assert record.duration_s == sample.sent_s
    assert record.client.events == 3
    assert abs(record.began_unix - time.time()) < 60


@pytest.mark.parametrize("texts", ["a", "ab", "abc"])
def test_chunks_that_were_read_together_are_counted(texts: str) -> None:
    assert only(asked(each(streamed(*texts)), PlainLoad((0.0,)))).merged == len(texts) - 1


def test_pings_and_empty_events_are_counted() -> None:
    response = STREAM + chunk(b": ping\n\ndata: \n\ndata: a\n\n: ping\n\n") + chunk(b"data: [DONE]\n\n") + LAST
    record = asked(each(response), PlainLoad((0.0,)))
    recorded = only(record).response
    assert (recorded.pings, recorded.empty, recorded.text) == (2, 1, "a")
    assert record.client.events == 4


def test_a_response_without_a_stream() -> None:
    sample = only(asked(each(whole(200, b"hello", "x-request-id: r7")), PlainLoad((0.0,))))
    assert (sample.outcome, sample.response.text, sample.response.streamed) == ("ok", "hello", False)
    assert sample.request_id == "r7"


def test_a_stream_without_its_content_type() -> None:
    response = streamed("a", "b").replace(b"text/event-stream", b"text/plain")
    sample = only(asked(each(response), PlainLoad((0.0,))))
    assert (sample.outcome, sample.response.text, sample.response.streamed) == ("ok", "ab", True)


@pytest.mark.parametrize(
    ("response", "outcome", "error"),
    [
        (whole(429, b"too many"), "refused", "too many"),
        (whole(503, b""), "refused", "The server responded with status 503."),
        (whole(529, b"busy"), "refused", "busy"),
        (whole(500, b"oh"), "failed", "oh"),
        (whole(401, b"no key"), "failed", "no key"),
        (whole(307, b""), "failed", "The server redirects the request, but names no target (status 307)."),
        (
            whole(302, b"", "location: https://a/login"),
            "failed",
            "The server redirects the request to https://a/login (status 302).",
        ),
        (streamed("a", "!oh"), "failed", "oh"),
        (streamed("a", "?"), "broken", "The response does not match its API: has a question mark"),
        (streamed("a").replace(b"[DONE]", b"[done]"), "broken", "The stream ended before the completion was finished."),
        (b"SSH-2.0-OpenSSH_9.6\r\n", "broken", "The server did not send an HTTP/1.1 response."),
        (
            whole(200, b"x", "content-encoding: gzip"),
            "broken",
            "The server sent a compressed body",
        ),
        (whole(200, b"\xff"), "broken", "The response does not match its API: "),
    ],
)
def test_responses_that_are_no_completions(response: bytes, outcome: str, error: str) -> None:
    sample = only(asked(each(response), PlainLoad((0.0,))))
    assert sample.outcome == outcome
    assert sample.error is not None
    assert sample.error.startswith(error)
    assert sample.ended_s is not None


@pytest.mark.parametrize("reset", [False, True])
def test_a_connection_that_is_cut(reset: bool) -> None:
    def serve(talk: Talk, _number: int) -> None:
        talk.request()
        talk.send(STREAM + chunk(b"data: a\n\n"))
        time.sleep(0.02)
        if reset:
            talk.reset()

    sample = only(asked(serve, PlainLoad((0.0,))))
    assert (sample.outcome, sample.response.text, sample.status) == ("broken", "a", 200)
    assert sample.error is not None
    assert ("reset the connection" if reset else "ended before the response") in sample.error


def test_a_completion_that_was_complete_before_the_connection_was_cut_counts() -> None:
    def serve(talk: Talk, _number: int) -> None:
        talk.request()
        talk.send(STREAM + chunk(b"data: a\n\ndata: [DONE]\n\n"))

    assert only(asked(serve, PlainLoad((0.0,)))).outcome == "ok"


def test_a_stream_that_ends_with_the_connection() -> None:
    def serve(talk: Talk, _number: int) -> None:
        talk.request()
        talk.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: a\n\ndata: [DONE]")

    sample = only(asked(serve, PlainLoad((0.0,))))
    assert (sample.outcome, sample.response.text) == ("ok", "a")


def test_connections_are_used_again() -> None:
    numbers = []

    def serve(talk: Talk, number: int) -> None:
        while talk.request() is not None:
            numbers.append(number)
            talk.send(streamed("a"))

    load = PlainLoad((0.0, 0.05, 0.1), max_open=1)
    assert [sample.connect_s is None for sample in asked(serve, load).samples] == [False, True, True]
    assert numbers == [1, 1, 1]  # connection 0 was the look whether the server is there
    asked(serve, load, ClientOptions(reuse_connections=False))
    assert numbers[3:] == [1, 2, 3]


def test_a_connection_that_the_server_closed_is_not_reused() -> None:
    def serve(talk: Talk, _number: int) -> None:
        talk.request()
        talk.send(streamed("a"))

    assert [sample.outcome for sample in asked(serve, PlainLoad((0.0, 0.1))).samples] == ["ok", "ok"]


def test_a_request_without_response_on_a_reused_connection_is_sent_again() -> None:
    indexes = []

    def serve(talk: Talk, number: int) -> None:
        for turn in range(2):
            told = talk.request()
            if told is None:
                return
            indexes.append((number, told[1]["index"]))
            if (number, turn) == (1, 1):
                talk.reset()  # a server whose patience with an idle connection ended just then
                return
            talk.send(streamed("a"))

    first, second = asked(serve, PlainLoad((0.0, 0.1), max_open=1)).samples
    # connection 0 is the look whether the server is there
    assert indexes == [(1, 0), (1, 1), (2, 1)]
    assert (first.outcome, second.outcome) == ("ok", "ok")
    assert second.connect_s is not None
    assert second.sent_s is not None
    assert second.started_s is not None
    assert second.sent_s > second.started_s


def test_a_new_connection_that_breaks_is_not_tried_again() -> None:
    numbers = []

    def serve(talk: Talk, number: int) -> None:
        if talk.request() is not None:
            numbers.append(number)

    sample = only(asked(serve, PlainLoad((0.0,))))
    assert (sample.outcome, sample.status, numbers) == ("broken", None, [1])


def test_a_large_request_that_is_read_slowly() -> None:
    sizes = []

    def serve(talk: Talk, _number: int) -> None:
        time.sleep(0.1)
        told = talk.request()
        if told is not None:
            sizes.append(len(told[1]["pad"]))
            talk.send(streamed("a"))

    sample = only(asked(serve, PlainLoad((0.0,), pad=8_000_000)))
    assert (sample.outcome, sizes) == ("ok", [8_000_000])
    assert sample.sent_s is not None
    assert sample.sent_s > 0.1


def test_a_refusal_before_all_of_the_request_was_read() -> None:
    def serve(talk: Talk, _number: int) -> None:
        talk._more()
        talk.send(whole(413, b"too large", "connection: close"))

    sample = only(asked(serve, PlainLoad((0.0,), pad=30_000_000)))
    assert (sample.outcome, sample.error) == ("failed", "too large")
