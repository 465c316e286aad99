"""The reports that are kept."""

from __future__ import annotations

from dataclasses import replace

from tests.observe.test_trace import STEP, request
from twofold.observe.log import RequestLog


def test_the_last_ones_are_kept() -> None:
    log = RequestLog(most=2)
    reports = [replace(request(), request_id=name) for name in "abc"]
    for report in reports:
        log.on_request(report)
        log.on_step(STEP)
    assert (log.get("a"), log.get("b"), log.get("c")) == (None, *reports[1:])
    assert len(log) == 2


def test_the_last_of_one_name_counts() -> None:
    log = RequestLog(most=2)
    first, second = request(), request(output_tokens=99)
    other = replace(first, request_id="other")
    for report in (first, other, second, replace(first, request_id="third")):
        log.on_request(report)
    assert log.get("chat-7") is second
    assert log.get("other") is None
