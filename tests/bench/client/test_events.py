"""Events do not depend on line ends, nor on how their bytes are split."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twofold.bench.client import response as module
from twofold.bench.client.response import Event, EventReader, ProtocolError

STREAM = (
    b": hi\n\ndata: one\n\nevent: named\ndata: two\ndata:  three\nid: 7\nretry: 9\n\n"
    b": a\n:b\ndata:four\n\nevent: bare\n\n"
)
EVENTS: list[Event] = [(None, b"one"), ("named", b"two\n three"), (None, b"four")]


def read(data: bytes, *cuts: int) -> tuple[list[Event], int]:
    reader = EventReader()
    edges = [0, *sorted(cuts), len(data)]
    events = [event for a, b in pairwise(edges) for event in reader.feed(data[a:b])]
    return events + reader.end(), reader.pings


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@given(cuts=st.lists(st.integers(0, 150), max_size=20))
@settings(max_examples=50, deadline=None)
def test_events_are_the_same_however_cut(end: bytes, cuts: list[int]) -> None:
    data = STREAM.replace(b"\n", end)
    assert read(data, *(cut for cut in cuts if cut < len(data))) == (EVENTS, 3)


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_events_are_returned_as_soon_as_they_are_complete(end: bytes) -> None:
    reader = EventReader()
    assert reader.feed(b"data: one" + end) == []
    assert reader.feed(end) == [(None, b"one")]
    assert reader.feed(b"data: two" + end + end) == [(None, b"two")]
    assert reader.feed(b"data: a" + 2 * end + b"data: b" + 2 * end) == [(None, b"a"), (None, b"b")]


def test_line_ends_may_change_within_a_stream() -> None:
    reader = EventReader()
    assert reader.feed(b"data: one\r\n\r") == [(None, b"one")]
    assert reader.feed(b"data: two\n\n") == [(None, b"two")]
    assert reader.feed(b"\ndata: three\n\n") == [(None, b"three")]


def test_the_last_event_may_lack_its_empty_line() -> None:
    assert read(b"data: one\n\ndata: [DONE]") == ([(None, b"one"), (None, b"[DONE]")], 0)
    assert read(b"data: one\n") == ([(None, b"one")], 0)


def test_a_byte_order_mark_is_no_part_of_the_first_event() -> None:
    assert read(b"\xef\xbb\xbfdata: one\n\n") == ([(None, b"one")], 0)


def test_an_event_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENT", 100)
    reader = EventReader()
    reader.feed(b"data: " + b"x" * 90)
    with pytest.raises(ProtocolError, match="longer than 100"):
        reader.feed(b"x" * 20)
