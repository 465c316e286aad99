"""``twofold doctor --calibrate``: the printed calibration."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.tiny import TinyModel, TinyOptions
from twofold.cli.doctor import doctor
from twofold.planner.calibrate import run
from twofold.planner.calibrate.run import Calibration, CalibrationSubject
from twofold.planner.machines.machine import Cited
from twofold.planner.predict.constants import CPU


@pytest.fixture
def model(
    tiny_gguf: Callable[[TinyOptions], TinyModel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[float], str]:
    """Makes a model whose calibration has the given error."""
    monkeypatch.setenv("TWOFOLD_CACHE", str(tmp_path))
    path = tiny_gguf(TinyOptions()).path

    def calibrated(error: float) -> str:
        constants = replace(CPU, error=Cited(error, "held out"))
        subject = CalibrationSubject("a processor", "avx2", 2, "tiny-1-abc")
        found = Calibration(subject, constants, 1, 2e10, {"fp32": 1e11}, 205, 19, 31.0, "2026-01-01T00:00:00+00:00")
        monkeypatch.setattr(run, "calibrate", lambda *_, **__: found)
        return str(path)

    return calibrated


def test_constants_are_printed_with_an_error(model: Callable[[float], str], capsys: pytest.CaptureFixture[str]) -> None:
    doctor(calibrate=True, model=model(0.061))
    text = capsys.readouterr().out
    assert "80% of the memory bandwidth of 20.0 GB/s" in text
    assert "6.1% on held-out probes" in text
    assert "205 steps of 19 probes in 31 s" in text
    assert "busy" not in text


def test_a_large_error_has_a_hint(model: Callable[[float], str], capsys: pytest.CaptureFixture[str]) -> None:
    doctor(calibrate=True, model=model(0.4))
    out = capsys.readouterr().out
    assert "Not stored, earlier figures stay. → Calibrate again on an idle machine" in out
    assert "--force" in out
    doctor(calibrate=True, force=True, model=model(0.4))
    assert "Stored all the same" in capsys.readouterr().out


def test_json_has_every_source(model: Callable[[float], str], capsys: pytest.CaptureFixture[str]) -> None:
    doctor(calibrate=True, model=model(0.061), json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["constants"]["eta_m"] == {"value": 0.8, "source": CPU.eta_m.source}
    assert document["subject"]["threads"] == 2
