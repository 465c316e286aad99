"""A response does not depend on how its bytes are split, and invalid responses are refused."""

from __future__ import annotations

import contextlib
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.client.support import LAST, STREAM, chunk, streamed, whole
from twofold.bench.client.response import MAX_HEAD, MAX_LINE, MAX_TRAILERS, ProtocolError, ResponseReader


def read(data: bytes, *cuts: int) -> tuple[ResponseReader, bytes]:
    """Reads ``data`` in the pieces between ``cuts``."""
    reader = ResponseReader()
    edges = [0, *sorted(cuts), len(data)]
    body = b"".join(reader.feed(data[a:b]) for a, b in pairwise(edges) if a < b)
    return reader, body


RESPONSES = {
    "length": (whole(200, b"hello"), b"hello"),
    "nothing": (whole(200, b""), b""),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    "chunks": (STREAM + chunk(b"one") + chunk(b"two" * 99) + LAST, b"one" + b"two" * 99),
    "extensions": (STREAM + b"3;a=b\r\none\r\n3 \r\ntwo\r\n000\r\nx: y\r\n\r\n", b"onetwo"),
    "interim": (b"HTTP/1.1 103 Early\r\nlink: a\r\n\r\nHTTP/1.1 100 Go on\r\n\r\n" + whole(200, b"hello"), b"hello"),
    "line feeds": (b"HTTP/1.1 200 OK\ncontent-length: 5\n\nhello", b"hello"),
    "no reason": (b"HTTP/1.1 200\r\ncontent-length: 5\r\n\r\nhello", b"hello"),
}


@pytest.mark.parametrize("name", RESPONSES)
def test_every_cut_in_two_reads_alike(name: str) -> None:
    data, expected = RESPONSES[name]
    for cut in range(len(data)):
        reader, body = read(data, cut)
        assert (body, reader.complete, reader.keep_alive) == (expected, True, True)


@given(st.lists(st.binary(max_size=40).filter(bool), max_size=6), st.lists(st.integers(0, 400), max_size=12))
@settings(max_examples=60, deadline=None)
def test_chunks_come_out_whole_however_they_are_cut(parts: list[bytes], cuts: list[int]) -> None:
    data = STREAM + b"".join(map(chunk, parts)) + LAST
    reader, body = read(data, *(cut for cut in cuts if cut < len(data)))
    assert body == b"".join(parts)
    assert reader.complete


def test_a_body_is_handed_on_as_it_comes() -> None:
    reader = ResponseReader()
    assert reader.feed(STREAM + b"a\r\n012") == b"012"
    assert reader.feed(b"34567") == b"34567"
    assert reader.feed(b"89\r") == b"89"
    assert not reader.complete
    assert reader.feed(b"\n" + chunk(b"next")) == b"next"


def test_a_body_without_length_lasts_until_the_connection_ends() -> None:
    reader, body = read(b"HTTP/1.1 200 OK\r\n\r\nhello")
    assert (body, reader.complete, reader.keep_alive) == (b"hello", False, False)
    reader.end()
    assert reader.complete


@pytest.mark.parametrize("data", [b"", b"HTTP/1.1 20", whole(200, b"hello")[:-1], streamed("a")[:-1]])
def test_a_connection_that_ends_too_early_is_an_error(data: bytes) -> None:
    reader, _ = read(data)
    with pytest.raises(ProtocolError, match="ended before the response"):
        reader.end()


@pytest.mark.parametrize(
    ("head", "keep"),
    [
        (b"HTTP/1.1 200 OK\r\nConnection: Close", False),
        (b"HTTP/1.1 200 OK\r\nConnection: a, close", False),
        (b"HTTP/1.0 200 OK", False),
        (b"HTTP/1.0 200 OK\r\nConnection: keep-alive", True),
        (b"HTTP/1.1 200 OK", True),
    ],
)
def test_whether_a_connection_may_be_used_again(head: bytes, keep: bool) -> None:
    reader, _ = read(head + b"\r\nContent-Length: 0\r\n\r\n")
    assert reader.keep_alive is keep


@pytest.mark.parametrize("response", [whole(200, b"hello"), whole(200, b""), streamed("a")])
def test_a_connection_with_bytes_behind_the_response_is_not_used_again(response: bytes) -> None:
    reader, _ = read(response + b"HTTP/1.1 408 Late\r\n\r\n")
    assert reader.complete
    assert not reader.keep_alive


def test_headers_are_found_in_any_case_and_joined() -> None:
    reader, _ = read(b"HTTP/1.1 429 No\r\nRetry-After:  7 \r\nA: 1\r\nA: 2\r\ncontent-length: 0, 0\r\n\r\n")
    assert reader.status == 429
    assert reader.headers["retry-after"] == "7"
    assert reader.headers["a"] == "1, 2"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        b"HTTP/2 200\r\n\r\n",
        b"HTTP/1.1 600 Odd\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
        b"HTTP/1.1 200 OK\r\na : b\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 1, 2\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
        STREAM + b"-5\r\nabc",
        STREAM + b"0x3\r\nabc\r\n",
        STREAM + b"\r\nabc",
        STREAM + b"3\r\nabcd",
        STREAM + b"1" * (MAX_LINE + 1),
        b"HTTP/1.1 200 OK\r\na: " + b"b" * MAX_HEAD,
        STREAM + b"0\r\n" + b"a: b\r\n" * (MAX_TRAILERS // 3),
    ],
)
def test_invalid_responses_are_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        read(data)


@given(st.binary(max_size=200), st.booleans())
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_read_or_refused(data: bytes, behind: bool) -> None:
    with contextlib.suppress(ProtocolError):
        read(STREAM + data if behind else b"HTTP/1.1 " + data)
