"""A script as bytes: which bytes are written when, and in which writes chunks with output end."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Final, NamedTuple, TypeAlias

from tests.bench.stub.script import Script, Step
from tests.bench.stub.voices import Counts, Voice

WORD: Final = " w"
"""The text of one token."""

REASONS: Final = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}

Event: TypeAlias = tuple[bytes, bool]
"""Its bytes, and whether it is a chunk with output."""


class Write(NamedTuple):
    """Bytes that leave at ``at_s``, in which ``ends`` chunks of output end; ``close`` is how the connection ends."""

    at_s: float
    data: bytes
    ends: int = 0
    close: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """The properties of a request that determine its response."""

    prompt_tokens: int
    output_tokens: int
    stream: bool


def writes(script: Script, voice: Voice, asked: Asked) -> Iterator[Write]:
    """All writes of a response, made one by one."""
    stream = asked.stream if script.stream is None else script.stream
    if script.status != 200:
        whole = _refusal(script, voice)
    elif stream:
        whole = _streamed(script, voice, asked)
    else:
        whole = _at_once(script, voice, asked)
    return _in_pieces(script, whole)


def head(status: int, kind: str, *more: str) -> bytes:
    """Of a response."""
    lines = [f"HTTP/1.1 {status} {REASONS.get(status, 'Error')}", f"Content-Type: {kind}", *more, "", ""]
    return "\r\n".join(lines).encode()


Marked: TypeAlias = tuple[float, bytes, list[int], str | None]
"""A write before it is cut in pieces: where in its bytes chunks with output end, and how it closes."""


def _refusal(script: Script, voice: Voice) -> Iterator[Marked]:
    body = script.body.encode() if script.body is not None else voice.error(script.status, "as the script says")
    yield from _document(script, script.first_s, script.status, body, [])


def _at_once(script: Script, voice: Voice, asked: Asked) -> Iterator[Marked]:
    """A completion without a stream, sent after the last step."""
    steps = list(script.each(asked.output_tokens))
    texts = [WORD * step.tokens for step in steps if step.what == "text"]
    usage = Counts(asked.prompt_tokens, _tokens(steps)) if script.usage else None
    body = voice.whole("".join(texts), usage)
    yield from _document(script, steps[-1].at_s + script.tail_s, 200, body, [len(body)])


def _document(script: Script, at_s: float, status: int, body: bytes, ends: list[int]) -> Iterator[Marked]:
    close = script.framing == "close"
    top = head(status, "application/json", "Connection: close" if close else f"Content-Length: {len(body)}")
    if script.early_hints:
        top = b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n" + top
    if script.head_s is not None:
        yield script.head_s, top, [], None
        top = b""
    yield at_s, top + body, [len(top) + end for end in ends], "cut" if close or script.hang_up else None


def _streamed(script: Script, voice: Voice, asked: Asked) -> Iterator[Marked]:
    framed = _Frame(script)
    top = framed.head()
    opening = [(event, False) for event in voice.opening(Counts(asked.prompt_tokens))]
    if script.head_s is not None:
        data, _ = framed.body(opening)
        yield script.head_s, top + data, [], None
        top, opening = b"", []
    told, last_s = 0, 0.0
    for at_s, together in groupby(script.each(asked.output_tokens), key=attrgetter("at_s")):
        events, last_s = list(opening), at_s
        for step in together:
            if step.what in ("cut", "reset"):
                if top and len(events) == len(opening):  # before anything: then the client sees no response at all
                    yield at_s, b"", [], step.what
                    return
                data, ends = framed.body(events)
                yield at_s, top + data, [len(top) + end for end in ends], step.what
                return
            told += step.tokens if step.what == "text" else 0
            events.append(_event(script, voice, step, Counts(asked.prompt_tokens, told)))
        data, ends = framed.body(events)
        yield at_s, top + data, [len(top) + end for end in ends], None
        top, opening = b"", []
    usage = Counts(asked.prompt_tokens, told) if script.usage else None
    data, _ = framed.body([(event, False) for event in voice.closing(usage, script.done)])
    yield last_s + script.tail_s, data + framed.end(), [], framed.close()


class _Frame:
    """The framing of a stream's body."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._chunked = script.framing == "chunked"

    def head(self) -> bytes:
        framing = "Transfer-Encoding: chunked" if self._chunked else "Connection: close"
        hints = b"HTTP/1.1 103 Early Hints\r\nLink: </>\r\n\r\n" if self._script.early_hints else b""
        return hints + head(200, "text/event-stream; charset=utf-8", "Cache-Control: no-cache", framing)

    def body(self, events: Iterable[Event]) -> tuple[bytes, list[int]]:
        """Their bytes, and where in them the chunks with output end."""
        payload, ends = bytearray(), []
        for event, output in events:
            payload += event if self._script.newline == "\n" else event.replace(b"\n", self._script.newline.encode())
            if output:
                ends.append(len(payload))
        if not self._chunked or not payload:
            return bytes(payload), ends
        most = self._script.chunk_bytes
        if most is None:
            top = b"%x\r\n" % len(payload)
            return top + payload + b"\r\n", [len(top) + end for end in ends]
        chunks = [bytes(payload[start : start + most]) for start in range(0, len(payload), most)]
        framed = [b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks]
        return b"".join(framed), [_place(end, most, framed) for end in ends]

    def end(self) -> bytes:
        return b"0\r\n\r\n" if self._chunked else b""

    def close(self) -> str | None:
        return None if self._chunked and not self._script.hang_up else "cut"


def _place(end: int, most: int, framed: list[bytes]) -> int:
    """Where a payload's first ``end`` bytes end once it is framed in chunks of ``most`` bytes."""
    index, within = divmod(end - 1, most)
    chunk = framed[index]
    return sum(map(len, framed[:index])) + chunk.index(b"\r\n") + 2 + within + 1


def _event(script: Script, voice: Voice, step: Step, counts: Counts) -> Event:
    match step.what:
        case "text":
            ids = (7,) * step.tokens if script.told == "ids" else None
            return voice.text(WORD * step.tokens, ids, counts if script.told == "usage" else None), True
        case "empty":
            return voice.text("", () if script.told == "ids" else None, None), False
        case "ping":
            return voice.ping(), False
        case "error":
            return voice.failure(step.text), False
        case _:
            return step.text.encode(), step.tokens > 0


def _tokens(steps: Iterable[Step]) -> int:
    return sum(step.tokens for step in steps if step.what == "text")


def _in_pieces(script: Script, whole: Iterator[Marked]) -> Iterator[Write]:
    """Writes of at most ``piece_bytes``. A later write waits for the pieces of those before it."""
    free_s = 0.0
    for at_s, data, ends, close in whole:
        if script.piece_bytes is None:
            yield Write(at_s, data, len(ends), close)
            continue
        most = script.piece_bytes
        starts = range(0, len(data), most) or range(1)
        at = max(at_s, free_s)
        for start in starts:
            within = sum(start < end <= start + most for end in ends)
            yield Write(at, data[start : start + most], within, close if start == starts[-1] else None)
            at += script.piece_gap_s
        free_s = at if len(starts) > 1 else free_s
