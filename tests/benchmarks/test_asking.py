"""A server is asked for completions of full length: tried on the stub, which answers as a request's fields say."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from benchmarks.http.asking import ListedLoad, ask, ask_all, of_tokens
from benchmarks.http.processes import Recipe, Serving
from benchmarks.worker import WorkerError
from tests.bench.stub.live import LiveStub, stub_server
from tests.bench.stub.script import Script
from twofold.bench.load.base import Ask


@pytest.fixture(scope="module")
def stub() -> Iterator[LiveStub]:
    with stub_server() as live:
        yield live


def serving(stub: LiveStub, script: Script | None = None) -> Serving:
    """The stub, as a server whose recipe says how every request is answered."""
    fields = {"model": "stub"} | ({} if script is None else script.fields)
    return Serving(Recipe("stub", (), "/health", fields), stub.url, 0)


def test_prompts_of_ids_have_answers_of_full_length(stub: LiveStub) -> None:
    record = ask_all(serving(stub), of_tokens([[5, 6, 7], [8, 9]], 4))
    assert [sample.output_tokens for sample in record.samples] == [4, 4]


def test_a_server_need_not_tell_how_long_an_answer_is(stub: LiveStub) -> None:
    (sample,) = ask_all(serving(stub, Script(usage=False)), ListedLoad(Ask(0, 0.0, 1, 4))).samples
    assert (sample.output_tokens, len(sample.response.moments)) == (None, 4)


def test_each_request_has_a_connection_of_its_own(stub: LiveStub) -> None:
    record = ask_all(serving(stub), ListedLoad(Ask(0, 0.0, 1, 1), Ask(1, 0.1, 1, 1)))
    assert all(sample.connect_s is not None for sample in record.samples)


def test_a_short_answer_is_an_error_that_names_the_server(stub: LiveStub) -> None:
    with pytest.raises(WorkerError, match="stub gave 4 of 9 tokens"):
        ask_all(serving(stub), ListedLoad(Ask(0, 0.0, 1, 4), Ask(1, 0.0, 1, 9, fields={"max_tokens": 4})))


@pytest.mark.parametrize(
    ("script", "why"),
    [(Script(status=503, body="busy"), "busy"), (Script(done=False), "before the completion was finished")],
)
def test_what_is_no_whole_answer_is_an_error_that_says_why(stub: LiveStub, script: Script, why: str) -> None:
    with pytest.raises(WorkerError, match=why):
        ask_all(serving(stub, script), ListedLoad(Ask(0, 0.0, 1, 4)))


def test_what_is_open_too_long_is_given_up(stub: LiveStub) -> None:
    began = time.monotonic()
    (sample,) = ask(serving(stub, Script(first_s=0.0, gap_s=60.0)), ListedLoad(Ask(0, 0.0, 1, 4)), drain_s=0.2).samples
    assert time.monotonic() - began < 30.0
    assert (sample.outcome, len(sample.response.moments)) == ("unfinished", 1)
