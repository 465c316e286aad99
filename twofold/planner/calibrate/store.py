"""Calibrations as JSON in the cache folder: one file for a model, an instruction set and a number of threads.

A calibration is valid for the processor and the model file with which it was made."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from twofold.core.values import Arithmetic
from twofold.host.paths import write_whole
from twofold.planner.machines.machine import Cited, Machine, measured_machine
from twofold.planner.predict.constants import SHARES, TIMES, Constants

VERSION: Final = "twofold.calibration/1"


@dataclass(frozen=True, slots=True)
class CalibrationSubject:
    """The subject of a calibration. ``model`` identifies a file by its name, size and first bytes."""

    cpu: str
    isa: str
    threads: int
    model: str


@dataclass(frozen=True, slots=True)
class Calibration:
    """Constants of one model on this machine.

    working_set      bytes that a step reads, at whose speed ``bandwidth`` was measured
    bandwidth, peaks limits of the machine, in bytes and FLOPs a second, to which the shares apply
    steps, probes    numbers of measurements
    took_s           seconds it took
    """

    subject: CalibrationSubject
    constants: Constants
    working_set: int
    bandwidth: float
    peaks: Mapping[Arithmetic, float]
    steps: int
    probes: int
    took_s: float
    measured: str

    def machine(self, memory_bytes: int) -> Machine:
        """The machine as it was measured then."""
        source = f"measured {self.measured} with {self.subject.threads} threads ({self.subject.isa})"
        return measured_machine(memory_bytes, self.bandwidth, self.peaks, self.subject.cpu, source)


def save(calibration: Calibration, cache: Path) -> Path | None:
    """Writes the file whole or not at all; returns None if the folder cannot be written."""
    path = _path(calibration.subject, cache)
    document = {"version": VERSION, **asdict(calibration), "constants": write_constants(calibration.constants)}
    with contextlib.suppress(OSError):
        write_whole(path, json.dumps(document, indent=1).encode())
        return path
    return None


def load(subject: CalibrationSubject, cache: Path) -> Calibration | None:
    """Returns the calibration of a subject, or None if the file is missing or unreadable."""
    try:
        document = json.loads(_path(subject, cache).read_text("utf-8"))
        return _read(document, subject)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def write_constants(constants: Constants) -> dict[str, Any]:
    """Constants as JSON: each with its value and source."""
    values = {name: value.document() for name, value in constants.values().items()}
    error = None if constants.error is None else constants.error.document()
    return {**values, "overlap": constants.overlap, "error": error}


def read_constants(document: Mapping[str, Any]) -> Constants:
    """Constants from JSON. Raises KeyError, TypeError or ValueError for other documents."""
    error = document["error"]
    return Constants(
        **{name: _cited(document[name]) for name in (*SHARES, *TIMES)},
        overlap=bool(document["overlap"]),
        error=None if error is None else _cited(error),
    )


def _cited(entry: Mapping[str, Any]) -> Cited:
    return Cited(float(entry["value"]), str(entry["source"]))


def _read(document: dict[str, Any], subject: CalibrationSubject) -> Calibration | None:
    if document.pop("version") != VERSION or CalibrationSubject(**document.pop("subject")) != subject:
        return None
    return Calibration(subject=subject, constants=read_constants(document.pop("constants")), **document)


def _path(subject: CalibrationSubject, cache: Path) -> Path:
    return cache / "calibration" / f"{subject.isa}-{subject.threads}-{subject.model}.json"
