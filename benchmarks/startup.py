"""Time of the first start, which compiles kernels, and of later ones; Python's share of a decode step."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.compare import ROOT
from benchmarks.setting import Setting
from twofold.bench.phases.cases import Decode

COMMAND = (sys.executable, "-m", "twofold", "run", "Hello", "--max-tokens", "1", "--json")
LATER_STARTS = 5


def run(setting: Setting) -> dict[str, float]:
    """Seconds of the first start, of kernel compilation and of later starts; Python's share of a decode step."""
    with tempfile.TemporaryDirectory() as cache:
        first, report = _start(setting.path, cache)
        compile_s = report["timing"]["compile_s"]
        later = [_start(setting.path, cache)[0] for _ in range(LATER_STARTS)]
    results = {"first_start_s": first, "compile_s": compile_s, "later_start_s": statistics.median(later)}
    later_s = results["later_start_s"]
    print(f"\nstart     first {first:.2f} s (kernels {compile_s:.2f} s), later {later_s:.2f} s to the end")
    (decode,) = setting.measure([Decode(1, 64, 200)], 1)
    results["python_share_of_decode"] = decode.step.outside
    print(
        f"Python    {results['python_share_of_decode']:.1%} of a decode step beside the model, sampling included",
        flush=True,
    )
    return results


def _start(path: Path, cache: str) -> tuple[float, dict[str, Any]]:
    environment = {**os.environ, "TWOFOLD_CACHE": cache}
    began = time.perf_counter()
    done = subprocess.run(
        [*COMMAND, "--model", str(path)], env=environment, capture_output=True, text=True, check=True, cwd=ROOT.parent
    )
    return time.perf_counter() - began, json.loads(done.stdout)
