from __future__ import annotations

import json
import math
from array import array
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.report.runs import completed, document, failed, mixed, record, response
from twofold.bench.metrics.requests import MeasurementRule
from twofold.bench.record import UNKNOWN, RecordedResponse, RequestSample
from twofold.bench.report.document import (
    chunk_tokens,
    gaps_us,
    json_schema,
    machine_of_this,
    main,
    moments_of,
    public_url,
    read,
    read_file,
    schema_file,
)
from twofold.core.errors import ParameterError

SCHEMA_FILE = Path(__file__).parents[3] / "docs" / "bench.schema.json"


def test_a_document_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = document(mixed())
    written.write(tmp_path / "bench.json")
    assert read_file(tmp_path / "bench.json") == written
    assert [path.name for path in tmp_path.iterdir()] == ["bench.json"]


def test_a_request_has_its_moments_figures_and_counts() -> None:
    (request,) = document(record([completed(7, 2.0, ttft_s=0.25, gaps=(0.02, 0.04))])).runs[0].requests
    assert (request.index, request.outcome, request.status, request.request_id) == (7, "ok", 200, "r7")
    assert (request.due_s, request.started_s, request.sent_s) == (2.0, 2.001, 2.002)
    assert (request.first_s, request.last_s, request.ended_s) == (2.25, 2.31, 2.311)
    assert (request.ttft_s, request.ttft_sent_s, request.e2e_s) == (0.25, 0.249, 0.31)
    assert request.tpot_s == pytest.approx(0.03)
    assert (request.prompt_tokens, request.cached_tokens, request.output_tokens, request.shared_tokens) == (
        64,
        16,
        3,
        16,
    )
    assert request.gaps_us == array("q", [20_000, 40_000])
    assert request.chunk_tokens == 1


def test_failures_are_null_in_json_and_infinite_when_read() -> None:
    samples = [completed(0, 0.0), failed(1, 1.0), failed(2, 2.0, "unfinished"), completed(3, 3.0, gaps=())]
    run = read(document(record(samples)).to_json()).runs[0]
    assert [request.ttft_s for request in run.requests] == [0.1, None, None, 0.1]
    assert run.figures("ttft_s") == [0.1, math.inf, math.inf, 0.1]
    assert run.figures("tpot_s")[3] is None


def test_open_requests_of_a_stopped_run_are_not_infinite() -> None:
    run = document(record([failed(0, 0.0, "unfinished"), failed(1, 0.0)], interrupted=True)).runs[0]
    assert run.figures("e2e_s") == [None, math.inf]


def test_requests_are_in_the_order_of_due_times_and_marked_if_measured() -> None:
    samples = [completed(0, 3.0), completed(1, 1.0), completed(2, 2.0)]
    run = document(record(samples), rule=MeasurementRule(warmup_s=2.0)).runs[0]
    assert [(request.index, request.measured) for request in run.requests] == [(1, False), (2, True), (0, True)]
    assert len(run.figures("ttft_s")) == 2


def test_chunks_can_be_left_out() -> None:
    (request,) = document(record([completed(0, 0.0)]), chunks=False).runs[0].requests
    assert (request.gaps_us, request.chunk_tokens, request.chunks) == (None, None, 3)


@settings(max_examples=40)
@given(st.floats(0, 1e4), st.lists(st.floats(0, 100), max_size=50))
def test_moments_come_back_to_the_microsecond(first_s: float, gaps: list[float]) -> None:
    given = response(first_s, gaps)
    sample = RequestSample(completed(0, 0.0).ask, given, "ok", 0.0, 0.0, given.moments[-1])
    (request,) = read(document(record([sample])).to_json()).runs[0].requests
    assert list(moments_of(request)) == pytest.approx(list(given.moments), abs=1.1e-6)


def test_gaps_are_never_negative() -> None:
    assert list(gaps_us(RecordedResponse(array("d", [1.0, 0.5, 2.0])))) == [0, 1_000_000]
    assert list(gaps_us(RecordedResponse())) == []


@pytest.mark.parametrize(
    ("tokens", "told"), [([], None), ([2, 2], 2), ([2, 1], [2, 1]), ([1, UNKNOWN], None), ([UNKNOWN], None)]
)
def test_equal_token_counts_of_chunks_are_one_number(tokens: list[int], told: object) -> None:
    assert chunk_tokens(RecordedResponse(tokens=array("i", tokens))) == told


def test_texts_of_a_server_are_cut_and_encodable() -> None:
    sample = failed(0, 0.0, error="\ud800" + "x" * 10_000)
    (request,) = read(document(record([sample])).to_json()).runs[0].requests
    assert request.error == "?" + "x" * 499


def test_secrets_are_removed_from_urls() -> None:
    assert public_url("https://user:pass@host:8000/v1?key=1#part") == "https://host:8000/v1"


def test_the_machine_is_described() -> None:
    machine = machine_of_this()
    assert machine.usable_threads > 0
    assert machine.memory_bytes > 0


def changed(**fields: Any) -> str:
    return json.dumps({**json.loads(document(mixed(4)).to_json()), **fields})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not valid JSON"),
        ("{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        ("[1]", "not a document of twofold bench"),
        ("{}", "not a document of twofold bench"),
        ('{"schema": 5}', "not a document of twofold bench"),
        ('{"schema": "twofold.phases/1"}', "not a document of twofold bench"),
        (changed(schema="twofold.bench/2"), "only twofold.bench/1 is supported"),
        (changed(surprise=1), "surprise"),
        (changed(runs=None), "runs"),
        ("[" * 100_000, "no"),
    ],
)
def test_other_files_are_refused_in_words(text: str | bytes, words: str) -> None:
    with pytest.raises(ParameterError, match=words) as caught:
        read(text)
    assert caught.value.hint


@pytest.mark.parametrize("gaps", [["a"], [1.5], [2**70], "x", {}])
def test_gaps_are_whole_microseconds(gaps: object) -> None:
    data = json.loads(document(mixed(1)).to_json())
    data["runs"][0]["requests"][0]["gaps_us"] = gaps
    with pytest.raises(ParameterError, match="gaps_us"):
        read(json.dumps(data))


def test_an_error_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text("{}")
    with pytest.raises(ParameterError, match=r"other\.json: This is not a document"):
        read_file(tmp_path / "other.json")
    with pytest.raises(ParameterError, match=r"missing\.json cannot be read"):
        read_file(tmp_path / "missing.json")


def test_documents_hold_to_the_json_schema() -> None:
    validator = jsonschema_rs.validator_for(json_schema())
    for made in (document(mixed()), document(mixed(), chunks=False), document(record([])), document()):
        validator.validate(json.loads(made.to_json()))
    with pytest.raises(jsonschema_rs.ValidationError):
        validator.validate(json.loads(changed(surprise=1)))


def test_the_schema_file_is_fresh(tmp_path: Path) -> None:
    assert SCHEMA_FILE.read_bytes() == schema_file(), (
        "run python -m twofold.bench.report.document docs/bench.schema.json"
    )
    assert main([str(tmp_path / "schema.json")]) == 0
    assert (tmp_path / "schema.json").read_bytes() == schema_file()
    assert main([]) == 2


def test_no_completion_is_in_a_document() -> None:
    sample = completed(0, 0.0)
    sample.response.texts[:] = ["canary", "canary", "canary"]
    assert b"canary" not in document(record([sample])).to_json()
