"""The page's comparison of two results is that of ``twofold bench compare``."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from tests.bench.compare.documents import document, run, served
from tests.structure.sources import ROOT
from twofold.bench.compare import compare
from twofold.bench.metrics.goodput import Objectives
from twofold.bench.metrics.requests import MeasurementRule
from twofold.bench.report.document import Document, Run

STRICT: Final = Objectives(ttft=0.2, itl=0.05)
CLOSED: Final = {"kind": "closed", "concurrency": 4}
TRACE: Final = {"kind": "trace", "rate": 10 / 3}
CASES: Final = {
    "another seed": (document(run(served(1))), document(run(served(2), objectives=STRICT))),
    "slower": (document(run(served(1, 60), objectives=STRICT)), document(run(served(2, 60, slower=1.5)))),
    "failures": (document(run(served(1, 350))), document(run(served(3, 350, failing=0.3)))),
    "all fail": (document(run(served(1, 40, failing=1.0))), document(run(served(2, 40)))),
    "few": (document(run(served(1, 10))), document(run(served(2, 33)))),
    "no chunks": (document(run(served(1, 40), chunks=False)), document(run(served(2, 40)))),
    "warm-up": (
        document(run(served(1), rule=MeasurementRule(warmup_s=20, cooldown_s=10))),
        document(run(served(2), interrupted=True)),
    ),
    "traces": (
        document(run(served(1, 40), TRACE), run(served(2, 40))),
        document(run(served(3, 40), TRACE), run(served(4, 40))),
    ),
    "two loads": (
        document(run(served(1, 90)), run(served(2, 90), CLOSED), run(served(3, 90))),
        document(run(served(4, 90), CLOSED), run(served(5, 90)), run(served(6, 90), {**CLOSED, "concurrency": 9})),
    ),
    "other loads": (document(run(served(1, 50), CLOSED)), document(run(served(2, 50)))),
}


def _in_the_page(a: Document, b: Document, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = [folder / "a.json", folder / "b.json"]
    for each, path in zip((a, b), paths, strict=True):
        each.write(path)
    deno = Path(sys.executable).with_name("deno")
    command: list[str | Path] = [deno, "run", "--no-remote", "--allow-read", "tests/web/intervals.js", *paths]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=300)


def _close(found: Any, wanted: Any) -> bool:
    """Sums are rounded in another order."""
    if isinstance(wanted, float) and isinstance(found, int | float):
        return math.isclose(found, wanted, rel_tol=1e-9)
    if isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(_close(found[name], wanted[name]) for name in wanted)
    return bool(found == wanted)


def _words(point: list[tuple[str, float]]) -> str:
    return " and ".join(f"{name} {value:g}" for name, value in point)


@pytest.mark.parametrize("case", CASES)
def test_the_page_and_the_command_find_the_same_intervals(case: str, tmp_path: Path) -> None:
    a, b = CASES[case]
    done = _in_the_page(a, b, tmp_path)
    assert done.returncode == 0, done.stderr
    found, wanted = json.loads(done.stdout), compare(a, b).to_json()
    assert [each["point"] for each in found["pairs"]] == [_words(each["point"]) for each in wanted["pairs"]]
    assert found["alone"] == [_words(each) for each in wanted["alone"]]
    for one, other in zip(found["pairs"], wanted["pairs"], strict=True):
        assert len(one["rows"]) == len(other["rows"])
        assert [row for row in zip(one["rows"], other["rows"], strict=True) if not _close(*row)] == []


@pytest.mark.parametrize(
    ("a", "b", "says"),
    [
        ([run(served(1, 9))], [run(served(2, 40))], "9 measured requests"),
        ([run(served(1, 40))], [run(served(2, 9))], "The second result has 9"),
        ([run(served(1, 40)), run(served(2, 40), {"rate": 8})], [run(served(3, 40), CLOSED)], "no rate or concurrency"),
    ],
)
def test_the_reason_of_no_intervals_is_said(a: list[Run], b: list[Run], says: str, tmp_path: Path) -> None:
    assert says in _in_the_page(document(*a), document(*b), tmp_path).stderr
