"""Sentences about a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from tests.bench.report.runs import document, mixed
from twofold.bench.report import words
from twofold.bench.report.document import Run

CLOSED = {"kind": "closed", "concurrency": 4}
HELD = {"kind": "sessions", "concurrency": 4, "ramp_s": 0.0}
OPEN = {"kind": "open", "arrivals": {"kind": "poisson", "rate": 4.0}}
OPENED = {"kind": "sessions", "arrivals": {"kind": "poisson", "rate": 4.0}}


def run_with(load: Mapping[str, Any]) -> Run:
    (run,) = document(mixed()).runs
    return msgspec.structs.replace(run, load=load)


@pytest.mark.parametrize(("load", "asked"), [(CLOSED, False), (HELD, False), (OPEN, True), (OPENED, True)])
def test_only_open_loops_have_a_requested_rate(load: Mapping[str, Any], asked: bool) -> None:
    run = run_with(load)
    assert ("requested" in words.rates(run)) == asked
    assert ("offered" in [title for title, *_ in words.rate_rows(run)]) == asked


def test_the_requested_rate_is_shown_with_the_sampled_one() -> None:
    run = run_with({"kind": "open", "arrivals": {"kind": "poisson", "rate": 3.5}})
    assert " of 3.5 requested (4 sampled), " in words.rates(run)
    assert words.rates(run_with(OPEN)).count("drawn") == 0
    assert " of 4 offered, " in words.rates(run_with({"kind": "trace"}))
