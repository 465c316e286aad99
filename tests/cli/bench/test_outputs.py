"""The outputs of a benchmark: files, terminal, and secrets that are in none of them."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from tests.bench.stub.live import LiveStub
from tests.bench.stub.script import Script, Step
from tests.cli.bench.conftest import Bench
from tests.cli.conftest import Command, Result
from twofold.bench.report.document import read_file

SUFFIXES = (".json", ".csv", ".html", ".jsonl")
LOAD = ("--rate", 40, "--requests", 12)


def written(bench: Bench, folder: Path, *arguments: object) -> tuple[Result, list[Path]]:
    """One bench that writes every kind of file."""
    paths = [folder / f"found{suffix}" for suffix in SUFFIXES]
    outputs = [part for path in paths for part in ("-o", path)]
    return bench(*LOAD, *arguments, *outputs), paths


def test_every_kind_of_file_is_written(bench: Bench, tmp_path: Path) -> None:
    result, (document, table, page, trace) = written(bench, tmp_path)
    assert result.code == 0
    assert all(f"Wrote {path}." in result.err for path in (document, table, page, trace))
    (run,) = read_file(document).runs
    assert len(run.requests) == 12
    assert all(request.gaps_us is not None and len(request.gaps_us) == 5 for request in run.requests)
    with table.open() as file:
        assert [int(row["index"]) for row in csv.DictReader(file)] == list(range(12))
    assert page.read_text().startswith("<!doctype html>")
    assert len(trace.read_text().splitlines()) == 12


def test_the_table_has_the_results(bench: Bench) -> None:
    result = bench(*LOAD, "--slo", "ttft=1s,tpot=1s")
    assert "12 of 12 requests succeeded." in result.out
    for word in (
        "TTFT",
        "TTFT from send",
        "schedule delay",
        "TPOT",
        "ITL, gaps",
        "E2E",
        "offered",
        "achieved",
        "goodput",
    ):
        assert word in result.out
    assert "completed" in result.err


def test_quiet_shows_no_progress(bench: Bench) -> None:
    assert bench(*LOAD, "--quiet").err == ""


def test_json_has_no_single_requests(bench: Bench) -> None:
    document = bench.found(*LOAD)
    assert document["schema"] == "twofold.bench/1"
    assert document["runs"][0]["requests"] == []
    assert document["target"]["model"] == "stub"


def test_chunks_may_be_left_out(bench: Bench, tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    assert bench(*LOAD, "--no-chunks", "-o", path, "--quiet").code == 0
    (run,) = read_file(path).runs
    assert all(request.gaps_us is None and request.chunks == 6 for request in run.requests)


def test_a_result_is_shown_again_and_compared(bench: Bench, twofold: Command, tmp_path: Path) -> None:
    _, (document, *_) = written(bench, tmp_path)
    shown = twofold("bench", "report", document)
    assert shown.code == 0
    assert "12 of 12 requests succeeded." in shown.out
    compared = twofold("bench", "compare", document, document)
    assert compared.code == 0
    assert "TTFT" in compared.out


def test_a_report_has_a_known_file_type(bench: Bench, twofold: Command, tmp_path: Path) -> None:
    _, (document, *_) = written(bench, tmp_path)
    for name in ("found.txt", "other.jsonl"):
        refused = twofold("bench", "report", document, "-o", tmp_path / name)
        assert refused.code == 2
        assert ".json, .csv or .html" in refused.err
        assert not (tmp_path / name).exists()


def test_load_points_of_only_one_result_are_listed(bench: Bench, twofold: Command, tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.json"
    sweep = ("--arrivals", "constant", "--duration", 0.6, "--quiet")
    assert bench("--rates", "20,40", *sweep, "-o", one).code == 0
    assert bench("--rates", "40,80", *sweep, "-o", two).code == 0
    compared = twofold("bench", "compare", one, two)
    assert "Only in one result: rate 20" in compared.out
    assert "Only in one result: rate 80" in compared.out


def test_secrets_and_texts_are_in_no_output(bench: Bench, stub: LiveStub, tmp_path: Path) -> None:
    canaries = (key, header, field, text) = ("sk-canary-key", "canary-header", "canary-field", "canary-answer")
    stub.rules(key=key)
    script = Script(steps=(Step(0.01, text=text), Step(0.02, tokens=5)))
    body = json.dumps({**script.fields, "user": field})
    secrets = ("--api-key", key, "--header", f"X-Team: {header}", "--extra-body", body)
    result, paths = written(bench, tmp_path, *secrets)
    assert "12 of 12 requests succeeded." in result.out
    told = [result.out, result.err, *(path.read_text() for path in paths)]
    for canary in canaries:
        assert not any(canary in each for each in told), canary


def test_secrets_are_in_no_error(bench: Bench, stub: LiveStub) -> None:
    stub.rules(key="another")
    result = bench(*LOAD, "--api-key", "sk-canary-key", "--header", "X-Team: canary-header")
    assert result.code == 2
    assert "canary" not in result.out + result.err


def test_equal_seeds_repeat_requests_and_others_do_not(bench: Bench, tmp_path: Path) -> None:
    drawn = ("--rate", 100, "--requests", 10, "--input-tokens", "16-64", "--quiet")

    def asked(name: str, *seed: object) -> tuple[list[tuple[Any, ...]], Any]:
        path = tmp_path / name
        assert bench(*drawn, *seed, "-o", path).code == 0
        document = json.loads(path.read_text())
        requests = document["runs"][0]["requests"]
        names = ("due_s", "asked_input_tokens", "asked_output_tokens")
        return [tuple(each[name] for name in names) for each in requests], document["target"]["details"]["prompts"]

    first, again, other = asked("a.json", "--seed", 7), asked("b.json", "--seed", 7), asked("c.json", "--seed", 8)
    assert first == again
    assert first[0] != other[0]
    free, anew = asked("d.json"), asked("e.json")
    assert free[0] == anew[0]
    assert free[1]["seed"] != anew[1]["seed"]
