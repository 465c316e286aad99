"""Times of a model's steps on this machine, measured before an engine runs.

Calibration writes the shapes of measured steps and their seconds to a file in the cache folder, for each model file,
processor, instruction set and number of threads. The step-time model starts with them and learns more from later steps.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Final, TypeAlias

from twofold.backends.base import Backend
from twofold.engine.scheduler.step_time import StepShape
from twofold.formats.identity import model_key, model_parts
from twofold.host.paths import write_whole

StepSample: TypeAlias = tuple[StepShape, float]
"""A step's shape, and the seconds that it took."""

VERSION: Final = "twofold.lessons/1"
MAX_SAMPLES: Final = 1_000


def read_step_samples(path: Path, backend: Backend, cache: Path) -> tuple[StepSample, ...]:
    """Samples of the model in the file ``path``; none if it was not calibrated, or the samples cannot be read."""
    try:
        document = json.loads(_file(path, backend, cache).read_text("utf-8"))
        if (document["version"], document["cpu"]) != (VERSION, backend.device):
            return ()
        return tuple(_sample(*entry) for entry in document["steps"][:MAX_SAMPLES])
    except (OSError, ValueError, TypeError, KeyError):
        return ()


def write_step_samples(samples: Iterable[StepSample], path: Path, backend: Backend, cache: Path) -> None:
    """Writes the file whole or not at all; an OSError, such as a missing permission, is ignored."""
    file = _file(path, backend, cache)
    steps = [[*shape, seconds] for shape, seconds in samples]
    with contextlib.suppress(OSError):
        write_whole(file, json.dumps({"version": VERSION, "cpu": backend.device, "steps": steps}).encode())


def _sample(rows: int, logit_rows: int, attended: int, read: int, seconds: float) -> StepSample:
    return StepShape(int(rows), int(logit_rows), int(attended), int(read)), float(seconds)


def _file(path: Path, backend: Backend, cache: Path) -> Path:
    return cache / "calibration" / f"lessons-{'-'.join(map(str, backend.variant))}-{model_key(model_parts(path))}.json"
