"""Readers of traces: all formats are read, and errors name the line and the field."""

from __future__ import annotations

import contextlib
import gzip
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.load.player import ended
from twofold.bench.load.base import Ask, PromptMessage, Shared
from twofold.bench.load.trace import MAX_LINE_BYTES, Extra, LaterTurn, Trace, read_trace, write_trace
from twofold.core.errors import ParameterError, ResourceError, UsageError

HEAD = "TIMESTAMP,ContextTokens,GeneratedTokens"
SIZES = {"input_length": 9, "output_length": 5}
OWN_SIZES = {"input_tokens": 9, "output_tokens": 5}
Written = Callable[[str | bytes], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "trace"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


def lines(*values: dict[str, Any]) -> str:
    return "".join(orjson.dumps(value).decode() + "\n" for value in values)


def columns(trace: Trace) -> list[tuple[float, int, int]]:
    start = trace.at_s[0]
    return [
        (round(at_s - start, 4), tokens, output)
        for at_s, tokens, output in zip(trace.at_s, trace.input_tokens, trace.output_tokens, strict=True)
    ]


@pytest.mark.parametrize(
    "times",
    [
        ("2023-11-16 18:15:46.6805900", "2023-11-16 18:15:47.9307190"),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01.260059+00:00"),
        ("2024-05-10 23:59:59+00:00", "2024-05-11 00:00:00.250129+00:00"),
        ("2024-05-10T23:59:59Z", "2024-05-11 00:00:00.250129"),
        ("2024-05-10 23:59:59.000+02:00", "2024-05-10 22:00:00.250129Z"),
    ],
)
def test_azure_has_several_formats_of_times(written: Written, times: tuple[str, str]) -> None:
    trace = read_trace(written(f"{HEAD}\r\n{times[0]},374,44\r\n{times[1]},396,109"))
    assert trace.form == "azure"
    assert columns(trace) == [(0.0, 374, 44), (1.2501, 396, 109)]


def test_a_time_without_a_zone_is_utc(written: Written, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(f"{HEAD}\n2024-05-10 23:59:59,1,1\n2024-05-10 23:59:59.5+00:00,1,1")
    monkeypatch.setenv("TZ", "America/Lima")
    time.tzset()
    try:
        assert columns(read_trace(path)) == [(0.0, 1, 1), (0.5, 1, 1)]
    finally:
        monkeypatch.undo()
        time.tzset()


def test_columns_of_a_csv_may_have_any_order(written: Written) -> None:
    trace = read_trace(written("GeneratedTokens,Model,TIMESTAMP,ContextTokens\n5,x,2023-11-16 18:15:46,9\n"))
    assert columns(trace) == [(0.0, 9, 5)]
    assert trace.unused == {"Model"}


@pytest.mark.parametrize(
    ("head", "row"),
    [
        ('"TIMESTAMP","ContextTokens","GeneratedTokens"', '"2023-11-16 18:15:46",9,5'),
        ('"TIMESTAMP","ContextTokens","GeneratedTokens"', '"2023-11-16 18:15:46","9","5"'),
        ('"","TIMESTAMP","ContextTokens","GeneratedTokens"', '"1","2023-11-16 18:15:46",9,5'),
        (",TIMESTAMP,ContextTokens,GeneratedTokens", "0,2023-11-16 18:15:46,9.0,5.0"),
        ('TIMESTAMP,"a, ""b""",ContextTokens,GeneratedTokens', '2023-11-16 18:15:46,"x, y",9,5'),
        (" TIMESTAMP , ContextTokens , GeneratedTokens ", "2023-11-16 18:15:46 , 9 , 5 "),
    ],
)
def test_tools_for_tables_write_quotes_row_names_and_floats(written: Written, head: str, row: str) -> None:
    trace = read_trace(written(f"{head}\n{row}\n"))
    assert (trace.form, columns(trace)) == ("azure", [(0.0, 9, 5)])
    assert trace.unused <= {'a, "b"'}


MOONCAKE = lines(
    {"timestamp": 500, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]},
    {"timestamp": 1750.5, "input_length": 1024, "output_length": 6, "hash_ids": [0, 2**64 - 1], "type": "chat"},
    {"timestamp": 3000, "input_length": 10, "output_length": 7},
)


def test_mooncake_has_ids_of_blocks_of_which_the_last_is_partial(written: Written) -> None:
    trace = read_trace(written(MOONCAKE))
    assert trace.form == "mooncake"
    assert columns(trace) == [(0.0, 1100, 5), (1.2505, 1024, 6), (2.5, 10, 7)]
    assert trace.pieces(0) == (Shared(0, 512), Shared(1, 512), Shared(2, 76))
    assert trace.pieces(1) == (Shared(0, 512), Shared(2**64 - 1, 512))
    assert trace.pieces(2) == ()
    assert trace.unused == {"type"}


def test_a_trace_may_have_smaller_blocks_and_fewer_than_fill_the_prompt(written: Written) -> None:
    line = {"timestamp": 0, "input_length": 60, "output_length": 5, "hash_ids": [8, 9]}
    assert read_trace(written(lines(line)), block_tokens=16).pieces(0) == (Shared(8, 16), Shared(9, 16))


@pytest.mark.parametrize("form", [float, str, "{:.1f}".format, " {} ".format, "{:.1e}".format])
def test_numbers_may_be_written_as_floats_and_as_texts(written: Written, form: Callable[[int], object]) -> None:
    sizes = {"timestamp": 0, "input_length": 600, "output_length": 5}
    mooncake = {name: form(value) for name, value in sizes.items()} | {"hash_ids": [form(7), 8]}
    assert columns(trace := read_trace(written(lines(mooncake)))) == [(0.0, 600, 5)]
    assert trace.pieces(0) == (Shared(7, 512), Shared(8, 88))
    sizes = {"at_s": 0, "input_tokens": 600, "output_tokens": 5, "session": 1, "turn": 0}
    own = {name: form(value) for name, value in sizes.items()} | {"shared": [[form(7), form(9)]]}
    assert columns(trace := read_trace(written(lines(own)))) == [(0.0, 600, 5)]
    assert trace.pieces(0) == (Shared(7, 9),)


@pytest.mark.parametrize("epoch", [1_732_300_000, 1_732_300_000.25])
def test_times_may_count_from_1970(written: Written, epoch: float) -> None:
    azure = "2024-11-22 18:26:40,9,5\n2024-11-22 18:26:41.5,9,5"
    mooncake = lines(*({"timestamp": (epoch + at) * 1000, **SIZES} for at in (0, 1.5)))
    own = lines(*({"at_s": epoch + at, **OWN_SIZES} for at in (0, 1.5)))
    for text in (f"{HEAD}\n{azure}", mooncake, own):
        assert columns(read_trace(written(text))) == [(0.0, 9, 5), (1.5, 9, 5)]


def test_a_time_in_another_unit_is_refused_with_the_right_one(written: Written) -> None:
    own, mooncake = {"at_s": 1_732_300_000_000, **OWN_SIZES}, {"timestamp": 1_732_300_000_000_000_000, **SIZES}
    for line, unit in ((own, "counts seconds"), (mooncake, "counts milliseconds")):
        with pytest.raises(ParameterError, match="not from 0 to") as caught:
            read_trace(written(lines(line)))
        assert unit in str(caught.value.hint)
    mixed = lines({"timestamp": 0, **SIZES}, {"timestamp": 1_732_300_000_000, **SIZES})
    with pytest.raises(ParameterError, match="trace:2: timestamp is more than 10,000,000 s after the first request"):
        read_trace(written(mixed))


def test_gzip_is_known_by_its_content(written: Written) -> None:
    assert columns(read_trace(written(gzip.compress(MOONCAKE.encode()))))[1] == (1.2505, 1024, 6)


def test_blank_lines_a_byte_order_mark_and_no_last_end(written: Written) -> None:
    trace = read_trace(written(f"\ufeff{HEAD}\n\n2023-11-16 18:15:46,374,44\n  \n2023-11-16 18:15:47,375,45"))
    assert columns(trace) == [(0.0, 374, 44), (1.0, 375, 45)]


OWN = (
    {"at_s": 0.0, "input_tokens": 512, "output_tokens": 128},
    {"at_s": 0.4, "input_tokens": 900, "output_tokens": 64, "shared": [[7, 400], [12, 200]]},
    {"at_s": 1.5, "prompt": "Why?", "output_tokens": 100, "fields": {"top_p": 0.5}},
    {"at_s": 2.0, "session": 3, "input_tokens": 300, "output_tokens": 50},
    {"after_s": 4.0, "session": 3, "turn": 1, "input_tokens": 40, "output_tokens": 51},
    {"at_s": 2.5, "messages": [{"role": "system", "content": "Be brief."}], "output_tokens": 9, "input_tokens": 4},
)


def test_our_own_format(written: Written) -> None:
    trace = read_trace(written(lines(*OWN)))
    assert trace.form == "twofold"
    assert columns(trace) == [(0.0, 512, 128), (0.4, 900, 64), (1.5, 0, 100), (2.0, 300, 50), (2.5, 4, 9)]
    assert trace.pieces(1) == (Shared(7, 400), Shared(12, 200))
    assert trace.extras == {
        2: Extra(messages=(PromptMessage("user", "Why?"),), fields={"top_p": 0.5}),
        3: Extra(3),
        4: Extra(messages=(PromptMessage("system", "Be brief."),)),
    }
    assert trace.later == {3: [LaterTurn(1, 4.0, 40, 51, Extra(3))]}


CSV_HOLES = [
    ("2023-11-16 18:15:46,374", "has 2 fields, but the header has 3"),
    ("2023-11-16 18:15:46,374,44,1", "has 4 fields"),
    (",374,44", "TIMESTAMP is missing"),
    ("soon,374,44", "TIMESTAMP is 'soon', not a time"),
    ("2023-11-16 18:15:46,,44", "ContextTokens is missing"),
    ("2023-11-16 18:15:46,-4,44", "ContextTokens is -4, not from 1"),
    ("2023-11-16 18:15:46,nan,44", "ContextTokens is 'nan', not a whole number"),
    ("2023-11-16 18:15:46,374,0", "GeneratedTokens is 0, not from 1"),
    ("2023-11-16 18:15:46,374,1e999", "GeneratedTokens is '1e999'"),
    ("2023-11-16 18:15:46,374," + "9" * 5000, "GeneratedTokens is '9999"),
    ("2023-11-16 18:15:44,374,44", "TIMESTAMP is earlier than in the line before"),
    ("2023-11-16 18:15:46,\xff,44", "ContextTokens is "),
    ("2023-11-16 18:15:46,374.5,44", "ContextTokens is 374.5, not a whole number"),
    ('2023-11-16 18:15:46,"374,44', "is not CSV"),
]


@pytest.mark.parametrize(("line", "problem"), CSV_HOLES)
def test_invalid_lines_of_a_csv(written: Written, line: str, problem: str) -> None:
    good = "2023-11-16 18:15:45,374,44", "2023-11-16 18:15:47,375,45"
    path = written("\n".join((HEAD, good[0], line, good[1])).encode("latin-1"))
    with pytest.raises(ParameterError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"trace:3: {problem}")
    assert "--skip-bad" in str(caught.value.hint)
    trace = read_trace(path, skip_bad=True)
    assert columns(trace) == [(0.0, 374, 44), (2.0, 375, 45)]
    assert trace.skipped == 1
    assert trace.first_skipped.startswith(f"trace:3: {problem}")


MOONCAKE_HOLES = [
    ("{", "is not JSON"),
    ('{"timestamp": NaN, "input_length": 9, "output_length": 9}', "is not JSON"),
    ("[]", "is not a JSON object"),
    ('{"input_length": 9, "output_length": 9}', "timestamp is missing"),
    ('{"timestamp": "soon", "input_length": 9, "output_length": 9}', "timestamp is 'soon', not a number"),
    ('{"timestamp": 10, "input_length": "9_0", "output_length": 9}', "input_length is '9_0', not a whole number"),
    ('{"timestamp": true, "input_length": 9, "output_length": 9}', "timestamp is True, not a number"),
    ('{"timestamp": -5, "input_length": 9, "output_length": 9}', "timestamp is -5, not from 0"),
    ('{"timestamp": 1e300, "input_length": 9, "output_length": 9}', "timestamp is 1e+300, not from 0"),
    ('{"timestamp": 10, "input_length": 9, "output_length": 9}', "timestamp is earlier"),
    ('{"timestamp": 2000, "input_length": 9.5, "output_length": 9}', "input_length is 9.5, not a whole number"),
    ('{"timestamp": 2000, "input_length": 9}', "output_length is missing"),
    ('{"timestamp": 2000, "input_length": 9, "output_length": 9, "hash_ids": 5}', "hash_ids is not a list"),
    ('{"timestamp": 2000, "input_length": 9, "output_length": 9, "hash_ids": [-1]}', "hash_ids contains -1"),
    ('{"timestamp": 2000, "input_length": 9, "output_length": 9, "hash_ids": [1, 2]}', "hash_ids has 2 blocks, but 9"),
]


@pytest.mark.parametrize(("line", "problem"), MOONCAKE_HOLES)
def test_invalid_lines_of_a_mooncake_trace(written: Written, line: str, problem: str) -> None:
    first, _, last = MOONCAKE.splitlines()
    path = written("\n".join((first, line, last)))
    with pytest.raises(ParameterError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"trace:2: {problem}")
    assert len(read_trace(path, skip_bad=True)) == 2


OWN_HOLES = [
    ('{"at_s": 1, "input_token": 5, "output_tokens": 5}', "input_token is not a field of a trace"),
    ('{"input_tokens": 5, "output_tokens": 5}', "at_s is missing"),
    ('{"at_s": 1, "output_tokens": 5}', "input_tokens is missing"),
    ('{"at_s": 1, "input_tokens": 5}', "output_tokens is missing"),
    ('{"at_s": 1, "input_tokens": 5, "output_tokens": 5, "turn": 1}', "session is missing"),
    ('{"after_s": 1, "input_tokens": 5, "output_tokens": 5}', "after_s is for later turns"),
    ('{"after_s": 1, "input_tokens": 5, "output_tokens": 5, "session": 3, "turn": 2}', "turn is 2, but the next turn"),
    ('{"at_s": 1, "input_tokens": 5, "output_tokens": 5, "session": 3, "turn": 1}', "at_s is for first turns only"),
    ('{"at_s": 1, "input_tokens": 5, "output_tokens": 5, "session": null}', "session is missing"),
    ('{"at_s": 1, "input_tokens": 5, "output_tokens": 5, "shared": [[1, 6]]}', "shared has more tokens than the 5"),
    (
        '{"at_s": 1, "input_tokens": 5, "output_tokens": 5, "shared": [[1]]}',
        "shared contains an entry that is not a pair",
    ),
    ('{"at_s": 1, "input_tokens": 5, "output_tokens": 5, "shared": {}}', "shared is not a list"),
    ('{"at_s": 1, "prompt": "", "output_tokens": 5}', "prompt must be a text"),
    ('{"at_s": 1, "prompt": "a", "messages": [], "output_tokens": 5}', "prompt is given together with messages"),
    ('{"at_s": 1, "prompt": "a", "shared": [[1, 2]], "output_tokens": 5}', "shared is given together with the text"),
    ('{"at_s": 1, "messages": [], "output_tokens": 5}', "messages is not a list of messages"),
    ('{"at_s": 1, "messages": [{"role": "user"}], "output_tokens": 5}', "messages contains an entry that is not"),
    ('{"at_s": 1, "messages": [{"role": "user", "content": 5}], "output_tokens": 5}', "messages must be a text"),
    ('{"at_s": 1, "input_tokens": 5, "output_tokens": 5, "fields": []}', "fields is not a JSON object"),
]


@pytest.mark.parametrize(("line", "problem"), OWN_HOLES)
def test_invalid_lines_of_our_own_format(written: Written, line: str, problem: str) -> None:
    session = {"at_s": 0.5, "session": 3, "input_tokens": 1, "output_tokens": 1}
    path = written(lines(session) + line)
    with pytest.raises(ParameterError) as caught:
        read_trace(path)
    assert str(caught.value).startswith(f"trace:2: {problem}")
    assert len(read_trace(path, skip_bad=True)) == 1


def test_for_an_unknown_field_the_closest_is_suggested(written: Written) -> None:
    with pytest.raises(ParameterError) as caught:
        read_trace(written('{"at_s": 1, "input_token": 5, "output_tokens": 5}'))
    assert caught.value.hint == "Did you mean 'input_tokens'?"


def test_files_that_are_not_traces(written: Written, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_trace(tmp_path / "none")
    with pytest.raises(ParameterError, match="is not a trace in a known format"):
        read_trace(written("a,b\n1,2\n"))
    with pytest.raises(ParameterError, match="is not a trace in a known format"):
        read_trace(written(""))
    with pytest.raises(ParameterError, match="trace has no requests"):
        read_trace(written(HEAD))
    with pytest.raises(ParameterError, match="has no requests: 1 line skipped, first trace:2"):
        read_trace(written(f"{HEAD}\n5"), skip_bad=True)
    with pytest.raises(ParameterError, match="ContextTokens is not in the header"):
        read_trace(written("TIMESTAMP,GeneratedTokens\n"))
    with pytest.raises(ResourceError, match="cannot be unpacked"):
        read_trace(written(gzip.compress(MOONCAKE.encode())[:-20]))
    with pytest.raises(ParameterError, match=r"trace:1: the line is longer than 16 MiB"):
        read_trace(written(b"{" + b" " * MAX_LINE_BYTES + b"}"), form="twofold")


def test_for_an_unknown_format_the_closest_is_suggested(written: Written) -> None:
    with pytest.raises(ParameterError) as caught:
        read_trace(written(HEAD), form="azur")  # type: ignore[arg-type]
    assert caught.value.hint == "Did you mean 'azure'?"


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=60), st.sampled_from(("azure", "mooncake", "twofold")))
def test_any_bytes_are_a_trace_or_a_parameter_error(
    tmp_path_factory: pytest.TempPathFactory, rest: bytes, form: Any
) -> None:
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(HEAD.encode() + b"\n" + rest)
    for skip_bad in (False, True):
        with contextlib.suppress(ParameterError, ResourceError):
            read_trace(path, form=form, skip_bad=skip_bad)


def test_written_requests_can_be_read_again(tmp_path: Path) -> None:
    said = (PromptMessage("user", "Why?"),)
    asks = [
        Ask(0, 0.5, 100, 5, (Shared(3, 40),), session=0),
        Ask(1, 1.5, 0, 6, messages=said, fields={"seed": 4}),
        Ask(2, 4.0, 10, 7, history=said, session=0, turn=1),
        Ask(3, 9.0, 10, 8, history=said, session=0, turn=2),
    ]
    path = tmp_path / "own.jsonl"
    write_trace(path, [ended(ask, ask.due_s + 2.0) for ask in reversed(asks)])
    trace = read_trace(path)
    assert trace.at_s.tolist() == [0.5, 1.5]
    assert trace.pieces(0) == (Shared(3, 40),)
    assert trace.extras == {0: Extra(0), 1: Extra(messages=said, fields={"seed": 4})}
    assert trace.later == {0: [LaterTurn(1, 1.5, 10, 7, Extra(0)), LaterTurn(2, 3.0, 10, 8, Extra(0))]}
    with pytest.raises(ResourceError, match="cannot be written"):
        write_trace(tmp_path, [])


@pytest.mark.data
def test_the_real_azure_trace(test_data: Path) -> None:
    trace = read_trace(test_data / "traces" / "azure_conv_2023.csv")
    assert (trace.form, len(trace), trace.skipped) == ("azure", 19_366, 0)
    assert trace.at_s[-1] - trace.at_s[0] == pytest.approx(3501.72, abs=0.01)
    assert (min(trace.input_tokens), min(trace.output_tokens)) == (2, 7)


@pytest.mark.data
def test_the_real_mooncake_trace(test_data: Path) -> None:
    trace = read_trace(test_data / "traces" / "mooncake_conversation.jsonl.gz")
    assert (trace.form, len(trace), len(trace.keys)) == ("mooncake", 12_031, 288_500)
    assert sum(trace.piece_tokens) == sum(trace.input_tokens)
    assert trace.unused == set()
