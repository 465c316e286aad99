"""A simulated run as a live stream: it has each step and each sequence of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pytest

from twofold.cli.main import main

SCENARIO: Final = ["simulate", "--model", "llama-3-8b", "--hardware", "h100", "--rate", "20", "--requests", "40"]
MORE: Final = ["--exact", "--input-tokens", "300", "--output-tokens", "40", "--max-num-seqs", "8", "--json"]


def test_a_stream_has_every_step_and_sequence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SCENARIO, *MORE]) == 0
    before = json.loads(capsys.readouterr().out)
    file = tmp_path / "run.jsonl"
    assert main([*SCENARIO, *MORE, "--live", str(file)]) == 0
    assert json.loads(capsys.readouterr().out)["figures"] == before["figures"]  # recording changes nothing
    hello, *others = [json.loads(line) for line in file.read_text().splitlines()]
    ticks = [each for each in others if each["event"] == "tick"]
    assert hello["event"] == "hello"
    assert hello["data"]["schema"] == "twofold.live/1"
    assert hello["data"]["engine"]["slots"] == 8
    assert hello["data"]["machine"]["bytes_per_s"] == 3.35e12
    steps = {name: [value for tick in ticks for value in tick["data"]["steps"][name]] for name in ("prefill", "decode")}
    assert sum(steps["prefill"]) == 40 * 300
    assert sum(steps["decode"]) == 40 * 39
    events: list[list[Any]] = [event for tick in ticks for event in tick["data"]["lanes"]]
    assert [len({e[0] for e in events if e[1] == kind}) for kind in "+af."] == [40] * 4
    assert {e[4] for e in events if e[1] == "."} == {40}
    assert {e[3] for e in events if e[1] == "a"} == set(range(8))
    pictures = [each["data"] for each in others if each["event"] == "blocks"]
    told = [each["data"] for each in others if each["event"] == "lately"]
    assert len(pictures) == len(told) - 1 >= 2
    latencies, figures = told[-1]["all"], before["figures"]
    for measure in ("ttft", "tpot", "e2e", "queue"):
        for at, quantile in ((0, "p50"), (1, "p99")):
            assert latencies[measure][at] == pytest.approx(figures[measure][quantile], rel=0.05, abs=2e-5)
        assert latencies[measure][2] == 40
    assert latencies["itl"][2] == 40 * 39
    assert told[-1]["tiers"]["default"] == latencies
    assert sum(count for _, count in pictures[0]["groups"][0]["held"]) > 0
    times = [tick["data"]["t"] for tick in ticks]
    assert times == sorted(times)
    assert ticks[-1]["data"]["queue"] == [0, 0]


@pytest.mark.parametrize("flags", [[], ["--exact", "--replicas", "2"]])
def test_only_one_real_scheduler_can_be_recorded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str]
) -> None:
    assert main([*SCENARIO, *flags, "--live", str(tmp_path / "x.jsonl")]) == 2
    assert "the steps of one engine" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
