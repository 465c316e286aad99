"""Logs: one line for each request, without content, and without delays for callers."""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any, Literal

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.observe.served import failed, served
from twofold.core.errors import ParameterError
from twofold.observe.logs import LineWriter, LogSettings, ServerLog, redact

CANARY = "the canary sings"
KEY = "tf-c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"


def logged(path: Path, tell: Callable[[ServerLog], object], **changes: Any) -> list[str]:
    """The lines that were written."""
    with path.open("wb") as file, closing(ServerLog(file.fileno(), LogSettings(**changes))) as log:
        tell(log)
    return path.read_text().splitlines()


def events(path: Path, tell: Callable[[ServerLog], object], **changes: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in logged(path, tell, **changes)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log"


def test_a_request_is_one_line_of_json(path: Path) -> None:
    (line,) = events(path, lambda log: log.requests.on_served(served()))
    assert list(line)[:3] == ["time", "level", "event"]
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info", "event": "request", "request_id": "sha256:dfe7be6cee3b99ca",
        "endpoint": "/v1/chat/completions", "status": 200, "model": "small",
        "tenant": "acme", "key": "k1", "tier": "default", "stream": True, "ms": 750.0,
        "ttft_ms": 310.0, "tpot_ms": 20.0, "queue_ms": 100.0, "prompt_tokens": 20, "cached_tokens": 16,
        "output_tokens": 21, "preemptions": 1, "finish": "stop", "cost": 0.002, "currency": "USD",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("status", "level"),
    [(200, "info"), (400, "info"), (499, "info"), (500, "error"), (503, "warning"), (529, "warning")],
)
def test_levels_depend_on_the_status(path: Path, status: int, level: str) -> None:
    (line,) = events(path, lambda log: log.requests.on_served(failed(status, "word")))
    assert (line["level"], line["error"]) == (level, "word")


@pytest.mark.parametrize(("access", "statuses"), [("all", [200, 404]), ("errors", [404]), ("off", [])])
def test_access_lines_can_be_switched_off(path: Path, access: str, statuses: list[int]) -> None:
    def tell(log: ServerLog) -> None:
        log.requests.on_served(served())
        log.requests.on_served(failed(404, "not_found"))

    assert [line["status"] for line in events(path, tell, access=access)] == statuses


def test_the_callers_trace_is_named_if_it_is_one(path: Path) -> None:
    def tell(log: ServerLog) -> None:
        log.requests.on_served(served(traceparent=f"00-{'a' * 32}-{'b' * 16}-01"))
        log.requests.on_served(served(traceparent=CANARY))

    good, bad = events(path, tell)
    assert good["trace_id"] == "a" * 32
    assert "trace_id" not in bad


def test_fields_bound_to_a_task_are_in_its_lines(path: Path) -> None:
    def tell(log: ServerLog) -> None:
        with structlog.contextvars.bound_contextvars(request_id="req_7"):
            log.logger.warning("slow")

    assert events(path, tell)[0]["request_id"] == "req_7"


@pytest.mark.parametrize(("level", "count"), [("debug", 3), ("info", 2), ("error", 1)])
def test_lower_levels_are_not_logged(path: Path, level: str, count: int) -> None:
    def tell(log: ServerLog) -> None:
        log.logger.debug("a")
        log.logger.info("b")
        log.logger.error("c")

    assert len(events(path, tell, level=level)) == count


@pytest.mark.parametrize("form", ["json", "text"])
@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": CANARY},
        {"messages": [{"role": "user", "content": CANARY}]},
        {"detail": {"deep": {"content": CANARY}}},
        {"headers": {"Authorization": CANARY, "X-Api-Key": CANARY}},
        {"note": f"sent Bearer {CANARY.replace(' ', '-')}"},
        {"note": KEY.replace("c2Vj", "c2Vjcanary")},
        {"odd": object()},
        {"exc_info": ValueError(CANARY)},
        {"error": ValueError(CANARY)},
        {"deep": [[[[[[CANARY]]]]]]},
    ],
)
def test_content_is_not_in_a_line(path: Path, form: str, fields: dict[str, Any]) -> None:
    (line,) = logged(path, lambda log: log.logger.error("odd", **fields), format=form)
    assert "canary" not in line


def test_errors_are_logged_by_type_and_place(path: Path) -> None:
    def tell(log: ServerLog) -> None:
        try:
            raise ValueError(CANARY)
        except ValueError:
            log.logger.exception("broke")

    (line,) = events(path, tell)
    assert line["error"] == "ValueError"
    assert line["at"][0].startswith("tests.observe.test_logs.test_errors_are_logged_by_type_and_place")
    assert CANARY not in str(line)
    assert "/" not in str(line["at"])


ODD_NUMBERS = {
    "nan": float("nan"),
    "infinity": -float("inf"),
    "long": 10**5000,
    "deep": {1: float("nan")},
    "in a list": [1 << 64],
}


@pytest.mark.parametrize("odd", ODD_NUMBERS.values(), ids=ODD_NUMBERS)
def test_numbers_that_are_no_json_are_named_by_their_type(path: Path, odd: object) -> None:
    (line,) = logged(path, lambda log: log.logger.info("odd", value=odd))
    assert "<float>" in line or "<int>" in line


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.integers(10**25, 10**30),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text() | st.integers(), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.text(), anything, max_size=5))
def test_redacted_fields_are_json(fields: dict[str, Any]) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(word)

    json.loads(json.dumps(redact(None, "info", dict(fields)), allow_nan=False), parse_constant=refuse)


@pytest.mark.parametrize("form", ["json", "text"])
def test_control_characters_are_escaped_in_a_line(path: Path, form: str) -> None:
    nasty = "a\nlevel=error event=forged \x1b[2J\r\u2028\x85"
    (line,) = logged(path, lambda log: log.logger.info(nasty, model=nasty), format=form)
    assert line.isprintable()


def test_lines_of_the_text_format(path: Path) -> None:
    (line,) = logged(path, lambda log: log.logger.info("model ready", model="small", note="two words"), format="text")
    assert line[8:] == ' info     model ready model=small note="two words"'


def test_records_of_libraries_are_captured(path: Path) -> None:
    def tell(log: ServerLog) -> None:
        before = logging.getLogger().handlers[:]
        with log.capture():
            logging.getLogger("twofold.serve").info("loaded %s", "small")
            logging.getLogger("library").info("chatter")
            logging.getLogger("library").warning("a %d", "wrong")
            try:
                raise RuntimeError(CANARY)
            except RuntimeError:
                logging.getLogger("asyncio").exception("task failed")
            logging.getLogger("library").log(35, "between")
        assert logging.getLogger().handlers == before

    loaded, wrong, task, between = events(path, tell)
    assert (loaded["event"], loaded["logger"], loaded["level"]) == ("loaded small", "twofold.serve", "info")
    assert wrong["event"] == "a %d"
    assert task["error"] == "RuntimeError"
    assert between["level"] == "warning"


def test_unknown_settings_are_refused_with_the_nearest() -> None:
    level: Any = "warn"
    with pytest.raises(ParameterError, match="level must be debug, info, warning or error") as raised:
        LogSettings(level=level)
    assert raised.value.hint == "Did you mean 'warning'?"


@pytest.mark.parametrize("waits", [True, False])
def test_logging_does_not_wait_for_a_stuck_reader(waits: bool) -> None:
    source, sink = os.pipe()
    os.set_blocking(sink, waits)
    writer = LineWriter(sink, max_lines=1_000)
    began = time.perf_counter()
    for i in range(5_000):
        writer.write(f"{i} " + "x" * 200)
    assert time.perf_counter() - began < 10.0
    read = bytearray()
    reader = threading.Thread(target=_drain, args=(source, read))
    reader.start()
    while writer._lines.qsize():
        time.sleep(0.001)
    writer.write("after")
    writer.close()
    os.close(sink)
    reader.join()
    os.close(source)
    lines = read.decode().splitlines()
    kept = [line for line in lines if line.endswith("x")]
    told = [json.loads(line)["count"] for line in lines if line.startswith("{")]
    assert 0 < sum(told) == 5_000 - len(kept)
    assert "after" in lines


def test_a_reader_that_left_causes_no_error() -> None:
    source, sink = os.pipe()
    os.close(source)
    writer = LineWriter(sink)
    for i in range(100):
        writer.write(str(i))
    began = time.perf_counter()
    writer.close()
    assert time.perf_counter() - began < 10.0
    os.close(sink)


@pytest.mark.parametrize("end", ["closed", "late"])
def test_closing_writes_what_waits(path: Path, end: Literal["closed", "late"]) -> None:
    with path.open("wb") as file:
        writer = LineWriter(file.fileno())
        for i in range(2_000):
            writer.write(str(i))
        writer.close()
        if end == "late":
            writer.write("late")
    assert path.read_text().split() == [str(i) for i in range(2_000)]


def _drain(source: int, read: bytearray) -> None:
    while chunk := os.read(source, 65536):
        read += chunk
