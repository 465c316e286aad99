"""Bodies as plain data: which are refused, with which errors, and at what cost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.datastructures import Headers
from starlette.types import Message

from twofold.core.errors import ParameterError, SlowClientError, TooLargeError, TwofoldError
from twofold.server.edge.body import ClientGoneError, check_json_type, decode_json, read_body
from twofold.server.edge.limits import MIB, BodyLimits
from twofold.text.templates.messages import MAX_DEPTH

SMALL = BodyLimits(bytes=100, seconds=0.05, depth=4, containers=10, values=20)


def read(messages: Iterable[Message], limits: BodyLimits = SMALL, **headers: str) -> Any:
    waiting = list(messages)

    async def receive() -> Message:
        if not waiting:
            await asyncio.sleep(1)
        return waiting.pop(0)

    given = Headers({name.replace("_", "-"): value for name, value in headers.items()})
    check_json_type(given)
    return decode_json(asyncio.run(read_body(given, receive, limits)), limits)


def part(body: bytes, more: bool = False) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


def test_a_body_is_joined_from_its_parts() -> None:
    assert read([part(b'{"a"', True), part(b"", True), part(b":1}")]) == {"a": 1}


def test_a_body_is_bounded_whatever_its_announced_length() -> None:
    with pytest.raises(TooLargeError, match="100 bytes"):
        read([], content_length="101")
    with pytest.raises(TooLargeError):
        read([], content_length="9" * 30)
    with pytest.raises(TooLargeError):
        read([part(b" " * 60, True), part(b" " * 60, True)], content_length="5")
    with pytest.raises(TooLargeError):
        read([part(b" " * 101)])


def test_a_body_must_arrive_in_time() -> None:
    with pytest.raises(SlowClientError, match=r"0\.05 s"):
        read([part(b"{", True)])


def test_a_disconnect_while_a_body_is_read_is_an_error() -> None:
    with pytest.raises(ClientGoneError):
        read([part(b"{", True), {"type": "http.disconnect"}])


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", None])
def test_json_is_read(kind: str | None) -> None:
    check_json_type(Headers({} if kind is None else {"content-type": kind}))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("content-type", "text/plain"),
        ("content-type", "multipart/form-data; boundary=x"),
        ("content-type", "application/x-www-form-urlencoded"),
        ("content-encoding", "gzip"),
        ("content-encoding", "br, zstd"),
    ],
)
def test_other_types_and_packings_are_refused_by_name(name: str, value: str) -> None:
    with pytest.raises(ParameterError, match="body") as refusal:
        check_json_type(Headers({name: value}))
    assert refusal.value.param == name


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"", "empty"),
        (b" \n", "empty"),
        (b'{"a": NaN}', "line 1, column 7"),
        (b'{"a": Infinity}', "line 1, column 7"),
        (b'{"a": 1e999}', "infinity"),
        (b'{\n "a": 1,}', "line 2"),
        (b'{"a": 1} x', "line 1, column 10"),
        (b'{"a": "\xff"}', "UTF-8"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"a": "\x01"}', "JSON"),
        (b"{'a': 1}", "JSON"),
        (b"[" * 1500, "JSON"),
    ],
)
def test_errors_of_json_have_a_position(body: bytes, message: str) -> None:
    with pytest.raises(ParameterError, match=message) as refusal:
        decode_json(body, BodyLimits())
    assert refusal.value.param == "body"
    assert len(str(refusal.value)) < 200
    assert refusal.value.__cause__ is None
    assert refusal.value.__suppress_context__


def test_errors_of_json_do_not_quote_the_body() -> None:
    with pytest.raises(ParameterError) as refusal:
        decode_json(b'{"secret-canary": canary}', BodyLimits())
    assert "canary" not in str(refusal.value)


def test_depth_is_bounded() -> None:
    assert decode_json(b"[[[[]]]]", SMALL) == [[[[]]]]
    assert decode_json(b'{"a":[{"b":[1, 2]}]}', SMALL)
    for deep in (b"[[[[[]]]]]", b'{"a":[{"b":[{}]}]}', b"[" * 900 + b"]" * 900):
        with pytest.raises(TwofoldError):
            decode_json(deep, SMALL)
    with pytest.raises(ParameterError, match=f"{MAX_DEPTH} levels"):
        decode_json(b"[" * 900 + b"]" * 900, BodyLimits())


def test_brackets_and_commas_in_strings_are_not_counted() -> None:
    text = orjson.dumps([",[{" * 50 + '\\"' * 30, '"', "\\"])
    assert decode_json(text, SMALL)[1:] == ['"', "\\"]
    for many in (b"[" + b"1," * 21 + b"1]", b"[" + b"[]," * 10 + b"1]", b'["",' + b'",",' * 21 + b"1]"):
        with pytest.raises(TooLargeError, match="values"):
            decode_json(many, SMALL)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=50, deadline=None)
@given(JSON)
def test_any_json_is_read_as_it_is(value: object) -> None:
    assert decode_json(orjson.dumps(value), BodyLimits()) == value


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | st.text(alphabet='{}[]",:\\ue1-.ntf ', max_size=60).map(str.encode))
def test_any_bytes_are_data_or_an_error(body: bytes) -> None:
    with suppress(ParameterError, TooLargeError):
        decode_json(body, SMALL)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * 1_390_000 + b"1]",
        b"[" + b'{"":1},' * 590_000 + b"1]",
        b"[" + b"1," * 2_090_000 + b"1]",
        b'"' * 4 * MIB,
    ],
    ids=["lists", "objects", "numbers", "quotes"],
)
def test_bombs_are_refused_before_they_are_decoded(body: bytes) -> None:
    before = time.thread_time()
    with pytest.raises(TwofoldError):
        decode_json(body, BodyLimits())
    assert time.thread_time() - before < 0.25  # decoding the first takes 0.5 s


def test_a_byte_order_mark_before_a_body_is_ignored() -> None:
    """PowerShell and .NET write it."""
    assert decode_json('\ufeff{"a": 1}'.encode(), BodyLimits()) == {"a": 1}
