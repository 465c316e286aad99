"""Time from the start of the process to the first token: first and later starts, file in the page cache or not."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.compare import ROOT
from benchmarks.setting import Setting
from twofold.bench.phases.cases import Decode

COMMAND = (sys.executable, "-m", "twofold", "run", "Hello", "--max-tokens", "1", "--model")
LATER_STARTS = 5
FIRST_STARTS = 2
PIECE: Final = 8 << 20
"""Bytes of a read; a longer one reads no faster."""


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds from the start of the process to the first byte of its output and to its end."""

    first_token: float
    end: float


def run(setting: Setting) -> dict[str, Any]:
    """The medians of all four cases, kernel compilation, and Python's share of a decode step."""
    path, results = setting.path, dict[str, Any]()
    _forget(path)
    size = path.stat().st_size
    read = size / _read(path)
    memory_s = 2 * size / setting.ceilings.machine.reads[-1].bytes_per_s
    results["disk_bytes_per_s"] = read
    print(
        f"\nstart     limits: {size / read:.2f} s to read the file from the disk ({read / 1e9:.2f} GB/s),"
        f" {memory_s:.2f} s to read and write it in memory",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as kept:
        results["compile_s"] = _report(path, kept)["timing"]["compile_s"]
        for case, starts in (("first", FIRST_STARTS), ("later", LATER_STARTS)):
            for pages in ("cold", "warm"):
                found = [_start(path, kept if case == "later" else None, cold=pages == "cold") for _ in range(starts)]
                first, end = (
                    statistics.median(getattr(start, name) for start in found) for name in ("first_token", "end")
                )
                results[f"{case}_{pages}"] = {"first_token_s": first, "end_s": end}
                print(
                    f"          {case}, {pages} pages: first token after {first:.2f} s, end after {end:.2f} s",
                    flush=True,
                )
    print(f"          kernels compile in {results['compile_s']:.2f} s")
    (decode,) = setting.measure([Decode(1, 64, 200)], 1)
    results["python_share_of_decode"] = decode.step.outside
    print(
        f"Python    {results['python_share_of_decode']:.1%} of a decode step beside the model, sampling included",
        flush=True,
    )
    return results


def _forget(path: Path) -> None:
    """Drops the file from the page cache, as far as no process has it mapped."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read(path: Path) -> float:
    """Reads the file once. Returns the seconds."""
    began = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(PIECE):
            pass
    return time.perf_counter() - began


def _environment(cache: str) -> dict[str, str]:
    """With compiled Python modules, as after an installation: they are not written where a variable forbids it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "TWOFOLD_CACHE": cache}


def _report(path: Path, cache: str) -> dict[str, Any]:
    """The JSON of a start that fills the folder ``cache``, and writes compiled Python modules."""
    done = subprocess.run(
        [*COMMAND, str(path), "--json"],
        env=_environment(cache),
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT.parent,
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def _start(path: Path, cache: str | None, *, cold: bool) -> Start:
    """One start with the folder ``cache``, or with an empty one. ``cold``: the file is not in the page cache."""
    with tempfile.TemporaryDirectory() as empty:
        if cold:
            _forget(path)
        else:
            _read(path)
        began = time.perf_counter()
        with subprocess.Popen(
            [*COMMAND, str(path)],
            env=_environment(cache or empty),
            cwd=ROOT.parent,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        ) as process:
            assert process.stdout is not None
            process.stdout.read(1)
            first = time.perf_counter() - began
            process.stdout.read()
        end = time.perf_counter() - began
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
        return Start(first, end)
