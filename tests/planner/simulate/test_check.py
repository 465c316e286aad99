"""A document of ``twofold bench`` is replayed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.planner.simulate.support import linear, setting_with
from twofold.core.errors import FormatError
from twofold.fleet.routing.router import RoundRobin
from twofold.planner.simulate.check import check, read_bench
from twofold.planner.simulate.exact import ExactReplica
from twofold.planner.simulate.fast.replica import FastReplica
from twofold.planner.simulate.fleet import simulate
from twofold.planner.simulate.jobs import IndependentJobs, SimulatedJob

SETTING = setting_with(sequences=8, rows=256, context=4000)


def measured(slower: float = 1.0) -> dict[str, Any]:
    """A bench document of a server whose times are those of the simulation, ``slower`` times as long."""
    jobs = [SimulatedJob(number, 0.05 * number, 100 + 7 * number % 90, 20, stream=number) for number in range(60)]
    found = simulate(IndependentJobs(jobs), [ExactReplica(SETTING, linear)], RoundRobin()).jobs
    requests = [
        {
            "index": number,
            "outcome": "ok",
            "due_s": due,
            "ttft_s": slower * (first - due),
            "tpot_s": slower * (last - first) / 19,
            "prompt_tokens": prompt,
            "output_tokens": 20,
            "cached_tokens": 0,
            "shared_tokens": 0,
        }
        for number, due, first, last, prompt in zip(
            found.index, found.due_s, found.first_s, found.last_s, found.prompt, strict=True
        )
    ]
    failed = {"index": 60, "outcome": "failed", "due_s": 3.0, "ttft_s": None, "tpot_s": None}
    run = {"load": {"kind": "open", "concurrency": None}, "requests": [*requests, failed]}
    return {"schema": "twofold.bench/1", "target": {"model": "m"}, "runs": [run]}


def written(document: object, folder: Path) -> Path:
    path = folder / "bench.json"
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("kind", [ExactReplica, FastReplica])
def test_a_simulation_of_itself_is_exact(kind: type[ExactReplica] | type[FastReplica], tmp_path: Path) -> None:
    _, (run,) = read_bench(written(measured(), tmp_path))
    found = check(run, kind(SETTING, linear))
    assert [(each.measure, each.percentile) for each in found] == [
        ("ttft", "p50"),
        ("ttft", "p99"),
        ("tpot", "p50"),
        ("tpot", "p99"),
    ]
    assert all(abs(each.error) < 1e-6 for each in found)
    assert run.left_out == 1


def test_the_error_is_relative_to_the_measurement(tmp_path: Path) -> None:
    _, (run,) = read_bench(written(measured(slower=1.25), tmp_path))
    assert all(each.error == pytest.approx(-0.2) for each in check(run, FastReplica(SETTING, linear)))


def test_cached_tokens_are_found_again(tmp_path: Path) -> None:
    document = measured()
    for request in document["runs"][0]["requests"][:-1]:
        request["cached_tokens"] = 64
    _, (run,) = read_bench(written(document, tmp_path))
    replica = FastReplica(SETTING, linear)
    check(run, replica)
    assert replica.work.prefill_rows < sum(job.prompt for job in run.jobs) - 50 * 64


@pytest.mark.parametrize(
    "document",
    [
        {"schema": "other"},
        [],
        {"schema": "twofold.bench/1"},
        {"schema": "twofold.bench/1", "runs": [1]},
        {"schema": "twofold.bench/1", "runs": [{}]},
        {"schema": "twofold.bench/1", "runs": [{"requests": []}]},
        {"schema": "twofold.bench/1", "runs": [{"requests": [1]}]},
    ],
)
def test_other_documents_are_refused(document: object, tmp_path: Path) -> None:
    with pytest.raises(FormatError) as caught:
        read_bench(written(document, tmp_path))
    assert caught.value.hint


def test_a_wrong_field_of_a_document_is_named(tmp_path: Path) -> None:
    document = measured()
    document["runs"][0]["requests"][7]["due_s"] = "soon"
    with pytest.raises(FormatError, match=r"requests\[7\]: the field 'due_s' is .*must be a number"):
        read_bench(written(document, tmp_path))
