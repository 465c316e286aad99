"""Scripts as bytes: the framing loses nothing, and the marks are where chunks end."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.bench.stub.script import Script, Step, at
from tests.bench.stub.voices import VOICES, Voice
from tests.bench.stub.wire import Asked, Write, writes

ASKED: Final = Asked(8, 4, stream=True)
CHAT: Final = VOICES["/v1/chat/completions"]

each_voice = pytest.mark.parametrize("voice", VOICES.values(), ids=VOICES)


def plan(script: Script, voice: Voice = CHAT) -> list[Write]:
    return list(writes(script, voice, ASKED))


def body(written: list[Write]) -> bytes:
    """The body that a client reads from a chunked response."""
    _, _, rest = b"".join(write.data for write in written).partition(b"\r\n\r\n")
    told = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        told += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    return told


@each_voice
def test_a_plain_response_has_a_write_for_each_token_and_one_for_its_end(voice: Voice) -> None:
    written = plan(Script(first_s=0.5, gap_s=0.25), voice)
    assert [(write.at_s, write.ends) for write in written] == [(0.5, 1), (0.75, 1), (1.0, 1), (1.25, 1), (1.25, 0)]
    assert body(written).count(b'" w"') == 4


@each_voice
def test_framing_and_pieces_change_no_byte_of_the_body(voice: Voice) -> None:
    plain = body(plan(Script(), voice))
    assert body(plan(Script(chunk_bytes=7, piece_bytes=11), voice)) == plain
    assert body(plan(Script(newline="\r\n"), voice)) == plain.replace(b"\n", b"\r\n")


@settings(max_examples=60, deadline=None)
@given(chunk=st.integers(1, 400), piece=st.integers(1, 900), newline=st.sampled_from(["\n", "\r\n"]))
def test_a_chunk_ends_in_the_piece_that_holds_its_last_byte(chunk: int, piece: int, newline: str) -> None:
    script = Script(steps=at(0.1, 0.1, 0.2), newline=newline, chunk_bytes=chunk, done=False, usage=False)
    one, two = (list(writes(each, CHAT, ASKED)) for each in (script, replace(script, piece_bytes=piece)))
    assert b"".join(write.data for write in one) == b"".join(write.data for write in two)
    places = chunk_ends(b"".join(write.data for write in one), 2 * newline.encode())
    seen = 0
    for write in two:
        assert write.ends == sum(seen < place <= seen + len(write.data) for place in places)
        seen += len(write.data)


def chunk_ends(wire: bytes, blank: bytes) -> list[int]:
    """The ends of events with output in these bytes, found by an independent reader, byte by byte."""
    place = wire.index(b"\r\n\r\n") + 4
    event, ends = b"", []
    while size := int(wire[place : (start := wire.index(b"\r\n", place) + 2) - 2], 16):
        for place in range(start, start + size):
            event += wire[place : place + 1]
            if event.endswith(blank):
                ends += [place + 1] if b'" w"' in event else []
                event = b""
        place += 3
    return ends


def test_pieces_keep_their_distance_and_what_follows_waits() -> None:
    written = plan(Script(steps=at(0.0, 0.001), piece_bytes=100, piece_gap_s=0.01))
    assert [write.at_s for write in written] == pytest.approx([0.01 * index for index in range(len(written))])


def test_steps_of_one_moment_leave_together() -> None:
    steps = (Step(0.1), Step(0.1, "ping"), Step(0.1, "empty"), Step(0.1, tokens=3))
    first, end = plan(Script(steps=steps))
    assert (first.ends, end.ends) == (2, 0)
    assert b": keep-alive" in first.data
    assert b'" w w w"' in first.data


def test_a_cut_before_anything_sends_nothing() -> None:
    assert plan(Script(steps=(Step(0.2, "cut"),))) == [Write(0.2, b"", 0, "cut")]


def test_a_cut_in_the_middle_keeps_the_bytes_before() -> None:
    one, end = plan(Script(steps=(Step(0.1), Step(0.2, "reset"))))
    assert (one.ends, one.close) == (1, None)
    assert (end.data, end.close) == (b"", "reset")


def test_tokens_are_reported_by_ids_and_by_running_usage() -> None:
    assert body(plan(Script(told="ids", tokens=2))).count(b'"token_ids":[7,7]') == 2
    counts = re.findall(rb'"completion_tokens":(\d)', body(plan(Script(told="usage", usage=False))))
    assert counts == [b"1", b"2", b"3", b"4"]


def test_scripts_survive_the_way_through_a_body() -> None:
    script = Script(id="x", steps=(Step(0.1), Step(0.2, "error", text="no")), tail_s=0.5, framing="close")
    assert Script.of(script.fields["stub"]) == script
    assert Script().fields == {"stub": {}}
