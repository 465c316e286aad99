"""The files of a batch: lines and their keys, and an output that survives a kill at any byte."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.clock import VirtualClock
from twofold.api.batch import journal as journals
from twofold.api.batch.journal import Journal
from twofold.api.batch.lines import ENDPOINTS, BatchReader, InputLine, LineCall, decode_line, read_body, read_lines
from twofold.api.fields import FieldError
from twofold.core.errors import ResourceError, UsageError

RECORD = {"custom_id": "a", "response": {"status_code": 200, "body": {"model": "m"}}, "error": None}
FAILED = {"custom_id": "a", "response": None, "error": {"code": "c", "message": "m"}}


def read(path: Path, data: bytes, most: int = 1 << 20) -> list[InputLine]:
    path.write_bytes(data)
    return list(read_lines(path, most))


def test_blank_lines_are_passed_over_and_the_others_numbered(tmp_path: Path) -> None:
    found = read(tmp_path / "in", b"\xef\xbb\xbf{}\n\n  \r\n {1}\r\nlast")
    assert [(line.number, line.data) for line in found] == [(1, b"{}"), (4, b"{1}"), (5, b"last")]


def test_an_empty_file_has_no_lines(tmp_path: Path) -> None:
    assert read(tmp_path / "in", b"") == read(tmp_path / "in", b"\n \n") == []


def test_keys_stay_when_other_lines_come_between(tmp_path: Path) -> None:
    one, two, again = (line.key for line in read(tmp_path / "in", b"1\n2\n1\n"))
    assert len({one, two, again}) == 3
    later = [line.key for line in read(tmp_path / "in", b"0\n2 \n\n1\r\n1")]
    assert later[1:] == [two, one, again]


@pytest.mark.parametrize("size", [7, 8, 9, 40])
def test_a_line_that_is_too_long_is_known_and_left_out(tmp_path: Path, size: int) -> None:
    data = b"x" * size
    long, after = read(tmp_path / "in", data + b"\nnext\n", 8)
    assert long.data == (data if size <= 8 else None)
    assert (after.number, after.data) == (2, b"next")
    (other,) = read(tmp_path / "in", data[:-1] + b"y", 8)
    assert other.key != long.key


def test_a_first_line_with_a_mark_may_be_too_long(tmp_path: Path) -> None:
    long, after = read(tmp_path / "in", b"\xef\xbb\xbf" + b"x" * 9 + b"\nnext\n", 8)
    assert (long.number, long.data) == (1, None)
    assert (after.number, after.data) == (2, b"next")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"{", "not JSON"),
        (b"nonsense", "column 1"),
        (b"[]", "not a JSON object"),
        (b"{} {}", "Extra data"),
        (b'{"a": NaN}', "NaN is not a number"),
        (b'{"a": 1, "a": 2}', "'a' occurs twice"),
        (b'{"a": "\xff"}', "not UTF-8 at byte 7"),
        (b'{"a":' * 100_000, "nested too deeply"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not JSON"),
        (None, "longer than 32 MiB"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_lines_that_are_no_requests(data: bytes | None, said: str) -> None:
    with pytest.raises(FieldError) as caught:
        decode_line(InputLine(3, "k", data))
    assert caught.value.code == "invalid_json_line"
    assert said in str(caught.value)


def envelope(**changes: Any) -> bytes:
    whole = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}} | changes
    return json.dumps({name: value for name, value in whole.items() if value is not ...}).encode()


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"custom_id": ...}, "missing_required_parameter", "custom_id"),
        ({"custom_id": None}, "missing_required_parameter", "custom_id"),
        ({"custom_id": 5}, "invalid_value", "text of 1"),
        ({"custom_id": ""}, "invalid_value", "text of 1"),
        ({"custom_id": "x" * 513}, "invalid_value", "512"),
        ({"method": ...}, "missing_required_parameter", "method"),
        ({"method": "GET"}, "invalid_value", "POST"),
        ({"url": ...}, "missing_required_parameter", "url"),
        ({"url": "/v1/responses"}, "invalid_url", "Use /v1/chat/completions, /v1/completions or /v1/embeddings."),
        ({"url": ["x"]}, "invalid_url", "Use"),
        ({"body": ...}, "missing_required_parameter", "body"),
        ({"bdoy": {}}, "unknown_parameter", "'body'"),
    ],
    ids=str,
)
def test_envelopes_that_are_refused(changes: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(FieldError) as caught:
        BatchReader(ENDPOINTS).read(InputLine(1, "k", envelope(**changes)))
    assert caught.value.code == code
    assert said in f"{caught.value} {caught.value.hint}"


def test_an_envelope() -> None:
    call = BatchReader(ENDPOINTS).read(InputLine(1, "k", envelope()))
    assert (call.line_key, call.custom_id) == ("k", "a")
    assert read_body(call).model is None


@pytest.mark.parametrize("body", [{"stream": True}, {"service_tier": "flex"}, {"service_tier": "priority"}], ids=str)
def test_what_no_line_can_have(body: dict[str, Any]) -> None:
    with pytest.raises(FieldError) as caught:
        read_body(LineCall("k", "a", "/v1/completions", {"prompt": "a"} | body))
    assert (caught.value.param, caught.value.code) == (next(iter(body)), "unsupported_parameter")


def test_a_journal_remembers(tmp_path: Path) -> None:
    path = tmp_path / "out"
    with Journal(path, VirtualClock()) as journal:
        journal.write("1", RECORD)
        journal.write("2", FAILED)
    with Journal(path, VirtualClock()) as journal:
        assert journal.finished == {"1", "2"}
        assert journal.tally.failed == 1
        assert journal.models == {"m"}
        assert journal.check(["2", "1", "3"]) == 3
        journal.check_model("m")
        journal.write("3", RECORD)
    assert [json.loads(line)["id"] for line in path.read_text().splitlines()] == [f"batch_req_{n}" for n in (1, 2, 3)]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_anywhere_is_taken_up(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.mktemp("cut") / "out"
    texts = data.draw(st.lists(st.text(max_size=6), min_size=1, max_size=4))
    with Journal(path, VirtualClock()) as journal:
        for number, text in enumerate(texts):
            journal.write(str(number), {**FAILED, "custom_id": text})
    whole = path.read_bytes()
    kept = whole[: data.draw(st.integers(0, len(whole)))]
    path.write_bytes(kept + b"\0" * data.draw(st.integers(0, 3)))
    with Journal(path, VirtualClock()) as journal:
        left = [number for number in range(len(texts)) if str(number) not in journal.finished]
        assert len(texts) - len(left) == kept.count(b"\n")
        for number in left:
            journal.write(str(number), {**FAILED, "custom_id": texts[number]})
    if left:
        assert path.read_bytes() == whole


def test_text_that_is_not_unicode_is_escaped(tmp_path: Path) -> None:
    with Journal(tmp_path / "out", VirtualClock()) as journal:
        journal.write("1", {**FAILED, "custom_id": "\ud800"})
        journal.write("2", {**FAILED, "custom_id": "ü\u2028"})
    found = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert [line["custom_id"] for line in found] == ["\ud800", "ü\u2028"]


@pytest.mark.parametrize(
    "content",
    ["notes", "notes\n", "{}\n", '{"id": 5, "error": 1}\n', '{"id":"batch_req_1"}\n', '{"id":"x","error":1}\n'],
)
def test_a_file_that_no_batch_wrote_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "out"
    path.write_text(content)
    with pytest.raises(UsageError, match="is not a batch result") as caught:
        Journal(path, VirtualClock())
    assert "--overwrite" in str(caught.value.hint)
    assert path.read_text() == content
    with Journal(path, VirtualClock(), overwrite=True) as journal:
        journal.write("1", RECORD)
    assert len(path.read_text().splitlines()) == 1


def test_the_output_of_another_input(tmp_path: Path) -> None:
    with Journal(tmp_path / "out", VirtualClock()) as journal:
        journal.write("1", RECORD)
    with Journal(tmp_path / "out", VirtualClock()) as journal:
        with pytest.raises(UsageError, match="has 1 lines that match no request"):
            journal.check(["2", "3"])
        with pytest.raises(UsageError, match="'m', not of 'other'"):
            journal.check_model("other")


def test_one_process_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path / "out", VirtualClock()), pytest.raises(UsageError, match="Another process"):
        Journal(tmp_path / "out", VirtualClock())
    Journal(tmp_path / "out", VirtualClock()).close()


def test_places_where_nothing_can_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="not a regular file"):
        Journal(tmp_path, VirtualClock())
    with pytest.raises(ResourceError, match="cannot be opened"):
        Journal(tmp_path / "no" / "out", VirtualClock())


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out"

    def partly(file: Any, data: bytes) -> None:
        file.write(data[:10])
        raise OSError(28, "No space left on device")

    with Journal(path, VirtualClock()) as journal:
        journal.write("1", RECORD)
        whole = path.read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr(journals, "_write_all", partly)
            with pytest.raises(ResourceError, match="No space left"):
                journal.write("2", RECORD)
        assert path.read_bytes() == whole
        journal.write("2", RECORD)
    assert len(path.read_bytes().splitlines()) == 2


def test_results_are_synced_to_the_disk_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    monkeypatch.setattr("os.fsync", synced.append)
    clock = VirtualClock()
    with Journal(tmp_path / "out", clock) as journal:
        journal.write("1", RECORD)
        assert not synced
        clock.advance(journals.SYNC_SECONDS)
        journal.write("2", RECORD)
        journal.write("3", RECORD)
        assert len(synced) == 1
    assert len(synced) == 2
