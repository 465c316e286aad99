"""Whole runs on a tiny model: what is told in which order, the report, the table, and the command."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.backends.cpu.machine import MachineProbe
from twofold.bench.phases.bench import MeasuredModel, run
from twofold.bench.phases.cases import Case, Decode, Mixed, Prefill, Prefix, Sizes
from twofold.bench.phases.ceilings import Ceilings
from twofold.bench.phases.report import PhaseReport, Row, SkippedCase, StartTimes, TablePrinter
from twofold.cli.bench import engine as command
from twofold.cli.options import ModelOptions
from twofold.core.errors import ContextLengthError, ParameterError
from twofold.core.limits import MachineLimits, ReadSpeed
from twofold.engine.config import EngineOptions
from twofold.planner.predict.phase import PhaseLimit

MACHINE = MachineLimits("made up", "avx2", 2, (ReadSpeed(1 << 30, 1e11),), 1e12, 1e12, "2026-01-01T00:00:00+00:00")
SIZES = Sizes(input_tokens=(8, 70), context=(24,), batch=(1, 3), output_tokens=4, rounds=2)


@pytest.fixture(scope="module")
def tiny(tiny_gguf: Callable[[TinyOptions], TinyModel]) -> Path:
    return tiny_gguf(TinyOptions(context=128)).path


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> list[MachineLimits]:
    """What the machine is measured to do when all is done: its ceilings, unless a test puts something else in."""
    now = [MACHINE]
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path_factory.getbasetemp() / "phases-cache"))
    monkeypatch.setattr(MachineProbe, "best", lambda _self: MACHINE)
    monkeypatch.setattr(MachineProbe, "now", lambda _self: now[0])
    return now


@dataclass
class Recorder(TablePrinter):
    """Everything that was told, in order; it wants no more after ``most`` rows."""

    most: int = 1 << 30
    told: list[object] = field(default_factory=list)

    def opened(self, ceilings: Ceilings, name: str) -> None:
        self.told.append((ceilings, name))

    def started(self, start: StartTimes) -> None:
        self.told.append(start)

    def expected(self, case: Case, limit: PhaseLimit) -> None:
        self.told.append((case, limit))

    def found(self, row: Row, limit: PhaseLimit) -> None:
        assert (row.case, limit) == self.told[-1]
        self.told.append(row)

    def skipped(self, skipped: SkippedCase) -> None:
        self.told.append(skipped)

    def raised(self, ceilings: Ceilings) -> None:
        self.told.append(("raised", ceilings))

    def busy(self, pace: float) -> None:
        self.told.append(("busy", pace))

    def stop(self) -> bool:
        return len([one for one in self.told if hasattr(one, "tok_s")]) >= self.most


def measured(path: Path, recorder: Recorder, sizes: Sizes = SIZES, **options: Any) -> PhaseReport:
    return run(MeasuredModel(path, "tiny"), EngineOptions(**options), sizes, recorder, recorder.stop)


def test_every_case_is_measured_after_its_limit_was_told(tiny: Path) -> None:
    recorder = Recorder()
    report = measured(tiny, recorder)
    cases = [Prefill(8), Prefill(70), Prefix(70), Decode(1, 24, 4), Decode(3, 24, 4), Mixed(3, 24, 8), Mixed(3, 24, 70)]
    assert [row.case for row in report.rows] == cases
    assert isinstance(recorder.told[1], StartTimes)
    assert len(recorder.told) == 2 + 2 * len(cases)
    assert not report.interrupted
    assert report.pace == 1.0
    assert report.config.context == 71  # the longest prompt, and a token
    assert report.config.limits.sequences == 4


def test_the_report_is_plain_data_of_a_stable_schema(tiny: Path) -> None:
    found = json.loads(json.dumps(measured(tiny, Recorder()).to_json()))
    assert found["schema"] == "twofold.phases/1"
    assert list(found) == [
        *("schema", "version", "model", "machine", "engine", "rounds", "start"),
        *("prefill", "prefix", "decode", "mixed", "pace", "skipped", "interrupted"),
    ]
    common = {"seconds", "limit", "tok_s", "step"}
    assert found["prefill"][0].keys() == common | {"tokens", "step_count"}
    assert found["prefix"][0].keys() == common | {"tokens", "new", "miss", "cached_tokens"}
    assert found["decode"][0].keys() == common | {"batch", "context", "steps", "p99_s", "step_count"}
    assert found["mixed"][0].keys() == common | {
        *("batch", "context", "tokens", "alone", "slower", "ttft", "step_count"),
    }
    row = found["decode"][1]
    assert row["step_count"] == 8
    assert row["limit"]["share"] == pytest.approx(row["limit"]["seconds"] / row["seconds"]["median"])
    parts = ("host_s", "batch_s", "model_s", "draw_s")
    assert row["step"]["seconds"] == pytest.approx(sum(row["step"][part] for part in parts))
    assert all(row["step"][part] > 0 for part in parts)


def test_a_stop_keeps_what_was_found(tiny: Path) -> None:
    recorder = Recorder(most=3)
    report = measured(tiny, recorder)
    assert [row.case.phase for row in report.rows] == ["prefill", "prefill", "prefix"]
    assert report.interrupted
    assert report.pace is None
    assert recorder.told[-1] is report.rows[-1]
    assert report.to_json()["interrupted"] is True


def test_what_does_not_fit_is_left_out_with_a_reason(tiny: Path) -> None:
    recorder = Recorder()
    report = measured(
        tiny, recorder, Sizes(input_tokens=(8, 200), context=(24,), batch=(1,), output_tokens=4, rounds=1)
    )
    assert [one.case for one in report.skipped] == [Prefill(200), Prefix(200), Mixed(1, 24, 200)]
    assert recorder.told[-3:] == report.skipped
    assert report.config.context == 24 + Mixed(1, 24, 8).max_output(512, 1)  # the longest that fits
    assert report.to_json()["skipped"][0] == {
        "phase": "prefill",
        "tokens": 200,
        "why": "it takes 201 tokens of context, and the model has 128",
    }


def test_a_context_that_was_asked_for_is_kept(tiny: Path) -> None:
    report = measured(tiny, Recorder(), max_model_len=64)
    assert report.config.context == 64
    assert report.skipped[0] == SkippedCase(Prefill(70), "it takes 71 tokens of context, and max_model_len is 64")


def test_a_run_of_nothing_is_refused(tiny: Path) -> None:
    sizes = Sizes(input_tokens=(200,), context=(200,), batch=(1,))
    with pytest.raises(ContextLengthError, match="it takes 201 tokens of context"):
        measured(tiny, Recorder(), sizes)


def test_a_machine_that_can_do_more_raises_its_ceilings(tiny: Path, machine: list[MachineLimits]) -> None:
    machine[0] = MachineLimits("made up", "avx2", 2, MACHINE.reads, 2e12, 5e11, MACHINE.measured)
    recorder = Recorder()
    report = measured(tiny, recorder, Sizes(input_tokens=(8,), context=(24,), batch=(1,), output_tokens=2, rounds=1))
    assert report.ceilings.machine.int8_macs_per_s == 2e12
    assert recorder.told[-2:] == [("raised", report.ceilings), ("busy", 0.5)]
    assert report.pace == 0.5


def test_without_a_prefix_cache_there_is_no_prefix(tiny: Path) -> None:
    report = measured(tiny, Recorder(), enable_prefix_caching=False)
    assert report.to_json()["prefix"] == []
    assert not report.config.options.enable_prefix_caching


def test_the_table_has_the_limit_before_what_came_of_it(tiny: Path) -> None:
    text: list[str] = []
    printer = TablePrinter(text.append)
    run(MeasuredModel(tiny, "tiny"), EngineOptions(), SIZES, printer, lambda: False)
    printer.close()
    table = "".join(text)
    assert table.endswith("\n")
    titles = re.findall(r"^(prefill|prefix|decode|mixed): ", table, re.MULTILINE)
    assert titles == ["prefill", "prefix", "decode", "mixed"]
    row = next(piece for piece in text if "3 × 24 tokens" in piece)
    assert not row.endswith("\n")  # it waits for its measurement
    assert re.search(r"\n    P99 .*; model .*, host .*, batch .*, draw .*; beside the model ", table)
    assert re.search(r"× of the .* without the prompt; its TTFT .* in 1 step, \d+\.\d\d× of alone\n", table)
    assert max(map(len, table.splitlines())) <= 120


def test_a_line_that_was_begun_is_ended() -> None:
    text: list[str] = []
    printer = TablePrinter(text.append)
    printer.expected(Prefill(8), PhaseLimit(1e-3, "memory"))
    printer.close()
    printer.close()
    assert "".join(text).count("\n") == 4  # an empty line, the title, the columns, the case
    assert text[-1] == "\n"


FLAGS: dict[str, Any] = {"input_tokens": "8", "context": "24", "batch": "1,2", "output_tokens": 3, "rounds": 1}


def test_the_command_prints_a_table(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.engine(**FLAGS, model=ModelOptions(model=str(tiny))) == 0
    out = capsys.readouterr().out
    assert out.startswith("machine   made up, 2 threads")
    assert "2 × 24 + 8 tokens" in out


def test_the_command_prints_json_and_nothing_else(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.engine(**FLAGS, json=True, model=ModelOptions(model=str(tiny))) == 0
    assert len(json.loads(capsys.readouterr().out)["decode"]) == 2


def test_a_stopped_command_tells_what_there_is(
    tiny: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_probe: MachineProbe) -> MachineLimits:
        signal.raise_signal(signal.SIGINT)
        return MACHINE

    monkeypatch.setattr(MachineProbe, "best", interrupted)
    assert command.engine(**FLAGS, json=True, model=ModelOptions(model=str(tiny))) == 130
    found = json.loads(capsys.readouterr().out)
    assert found["interrupted"]
    assert found["start"] is None
    assert found["model"]["name"] == tiny.stem


def test_a_draft_model_has_its_limit_and_its_part_of_the_memory(
    tiny: Path, tiny_gguf: Callable[[TinyOptions], TinyModel], capsys: pytest.CaptureFixture[str]
) -> None:
    draft = tiny_gguf(TinyOptions(context=128, layers=1, tied=False)).path
    given = json.dumps({"method": "draft_model", "model": str(draft)})
    memory = 8 << 20
    found = []
    for config in (None, given):
        model = ModelOptions(model=str(tiny), speculative_config=config, kv_cache_memory_bytes=memory)
        assert command.engine(**FLAGS, json=True, model=model) == 0
        found.append(json.loads(capsys.readouterr().out))
    plain, drafted = found
    assert plain["model"]["draft"] is None
    sizes = drafted["model"]["draft"]
    layer = plain["model"]["kv_bytes_per_token"] // 2  # the target has two layers
    assert sizes["kv_bytes_per_token"] == layer
    assert 0 < sizes["weight_bytes"] < plain["model"]["weight_bytes"]
    assert sizes["pass_s"] > sizes["weight_bytes"] / MACHINE.reads[0].bytes_per_s
    block = 16 * layer
    assert plain["engine"]["kv_blocks"] == memory // (2 * block)
    assert drafted["engine"]["kv_blocks"] == memory // (3 * block)
    assert command.engine(**FLAGS, model=ModelOptions(model=str(tiny), speculative_config=given)) == 0
    assert re.search(
        r"^draft +[0-9.]+ MB of weights a pass, at least .*; 128 more bytes of keys",
        capsys.readouterr().out,
        re.MULTILINE,
    )


@pytest.mark.parametrize(
    "config", ['{"method": "suffix"}', '{"method": "draft_model", "model": "m", "num_speculative_tokens": 4}']
)
def test_options_of_drafts_that_change_no_measured_step_are_refused(config: str) -> None:
    with pytest.raises(ParameterError, match="has no effect"):
        command.engine(model=ModelOptions(model="/nowhere.gguf", speculative_config=config))


def test_impossible_sizes_are_refused_before_a_model_is_looked_for() -> None:
    with pytest.raises(ParameterError, match="batch must be numbers"):
        command.engine(batch="many", model=ModelOptions(model="/nowhere.gguf"))
