"""A text as spans that can be dropped one by one, for prompt compression.

    text = gap span gap span … gap          gaps are white space or empty
    kept text = the spans that are kept, each after the strongest gap since the span before it

Spans are sentences, items of lists and rows of tables; a longer one is cut at MAX_SPAN_CHARS. Protected ranges are
spans that must be kept: those of the caller, fenced code, JSON objects, JSON arrays of objects or texts, and sections
in tags of tools. Offsets count characters (code points).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, TypeAlias

from twofold.core.errors import ParameterError, describe, quoted

MAX_CHARS: Final = 2 << 20
MAX_SPAN_CHARS: Final = 600
MAX_BINARY: Final = 0.05
"""Maximum share of characters that no text has: control characters, and the replacement of undecodable bytes."""
MAX_SCANS: Final = 16
"""How often a text is searched to its end for the end of JSON that is never closed."""

Range: TypeAlias = tuple[int, int]
"""Start and end of a part of a text, in characters; the end is exclusive."""

_BINARY: Final = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\ufffd]")
_FENCE: Final = re.compile(r" {0,3}(`{3,}|~{3,})")
_JSON: Final = re.compile(r'\{\s*"|\[\s*[{"]')
_JSON_PART: Final = re.compile(r'"(?:[^"\\]|\\.)*(?:"|\Z)|[{}\[\]]', re.DOTALL)
_TOOLS: Final = re.compile(r"<(tools|tool|tool_call|tool_response|functions|function)\b[^<>]*>")
_SENTENCE_END: Final = re.compile(
    r"(?<![.!?…])[.!?…]++[\"'”’)\]]*+(?=\s)|[。！？]+[”’」』）]*|\n[ \t]*(?=\n)|(?<=[:;.!?。！？|])[ \t]*\n"
    r"|\n(?=[ \t]*(?:\d|[^\w\s(\"'“‘]))"
)
"""Where a span may end: a mark of punctuation before white space; a blank line; the end of a line after punctuation, or
before a line that begins with a digit or a mark, as those of lists, tables and headings do."""
_ABBREVIATION: Final = re.compile(
    r"(?:^|[\s(])(?:[A-Z]|Dr|Mrs?|Ms|Prof|St|No|Nos|Fig|vs|cf|pp?|e\.g|i\.e|[Aa]pprox)\.$"
)
_LETTER: Final = re.compile(r"[^\W\d_]")
_WORD: Final = re.compile(r"\S")


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A part of a text. ``gap`` is where the white space before it begins."""

    gap: int
    start: int
    end: int
    protected: bool = False


def cut(text: str, protect: Iterable[Range | str] = ()) -> tuple[TextSpan, ...]:
    """The spans of a text, in order. ``protect`` has ranges, and texts of which each occurrence is protected.

    Raises ParameterError for a text that is empty, binary or too long, and for a range that lies outside the text,
    overlaps another one, or is a text that does not occur.
    """
    check_text(text)
    spans: list[TextSpan] = []
    gap = at = 0
    for start, end in protected_ranges(text, protect):
        gap = _add_sentences(text, gap, at, start, spans)
        spans.append(TextSpan(gap, start, end, protected=True))
        gap = at = end
    _add_sentences(text, gap, at, len(text), spans)
    return tuple(spans)


def joined(text: str, spans: Sequence[TextSpan], kept: Iterable[int]) -> tuple[Range, ...]:
    """The ranges of ``text`` that make the shorter text, if the spans with these ascending indices are kept."""
    ranges: list[Range] = []
    last = -1
    for index in kept:
        gaps = [(spans[i].gap, spans[i].start) for i in range(last + 1, index + 1)] if ranges or not index else []
        for start, end in (*_strongest(text, gaps), (spans[index].start, spans[index].end)):
            if ranges and ranges[-1][1] == start:
                ranges[-1] = (ranges[-1][0], end)
            elif start < end:
                ranges.append((start, end))
        last = index
    if spans and last == len(spans) - 1 and spans[-1].end < len(text):
        ranges[-1] = (ranges[-1][0], len(text))
    return tuple(ranges)


def check_text(text: object) -> None:
    """Raises ParameterError for a text that cannot be compressed."""
    if not isinstance(text, str) or not text.strip():
        what = "is empty" if isinstance(text, str) else f"is {describe(text)}"
        raise ParameterError(f"The text to compress {what}.", param="text", hint="Give a text of several sentences.")
    if len(text) > MAX_CHARS:
        raise ParameterError(
            f"The text has {len(text):,} characters; at most {MAX_CHARS:,} are compressed at once.",
            param="text",
            hint="Compress it in parts.",
        )
    share = len(_BINARY.findall(text)) / len(text)
    if share > MAX_BINARY:
        raise ParameterError(
            f"The text is binary: {share:.0%} of its characters are control characters or undecodable bytes.",
            param="text",
            hint="Extract its text first.",
        )


def protected_ranges(text: str, given: Iterable[Range | str] = ()) -> list[Range]:
    """The protected ranges of a text, ascending and apart from each other. Raises ParameterError as ``cut``."""
    found = [*_given(text, given), *_fences(text), *_json(text), *_tools(text)]
    merged: list[Range] = []
    for start, end in sorted(found):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _given(text: str, given: Iterable[Range | str]) -> list[Range]:
    ranges: list[Range] = []
    for each in given:
        if isinstance(each, str):
            ranges += _occurrences(text, each)
            continue
        pair = isinstance(each, Sequence) and len(each) == 2 and all(type(offset) is int for offset in each)
        if not pair or not 0 <= each[0] < each[1] <= len(text):
            raise ParameterError(
                f"protect contains {each!r:.60}, which is no range of the text's {len(text):,} characters.",
                param="protect",
                hint="Give [start, end] with 0 ≤ start < end, in characters, or a part of the text.",
            )
        ranges.append((each[0], each[1]))
    ranges.sort()
    for one, other in pairwise(ranges):
        if other[0] < one[1]:
            raise ParameterError(
                f"protect has the ranges {list(one)} and {list(other)}, which overlap.",
                param="protect",
                hint="Join them into one.",
            )
    return ranges


def _occurrences(text: str, part: str) -> Iterator[Range]:
    at = text.find(part) if part else -1
    if at < 0:
        raise ParameterError(
            f"protect contains {quoted(part)}, which does not occur in the text.",
            param="protect",
            hint="Give a part of the text as it is written there, or its offsets.",
        )
    while at >= 0:
        yield at, at + len(part)
        at = text.find(part, at + len(part))


def _fences(text: str) -> Iterator[Range]:
    """Fenced code, as in CommonMark: a fence without an end reaches to the end of the text."""
    at, begin, mark = 0, 0, ""
    for line in text.splitlines(keepends=True):
        fence = _FENCE.match(line)
        if fence is not None and not mark:
            begin, mark = at, fence[1]
        elif fence is not None and fence[1].startswith(mark) and not line[fence.end() :].strip():
            yield begin, at + len(line.rstrip())
            mark = ""
        at += len(line)
    if mark:
        yield begin, len(text)


def _json(text: str) -> Iterator[Range]:
    """JSON objects and arrays, also inside of lines; of one that is never closed, its first line."""
    at, left = 0, MAX_SCANS * len(text)
    while (opening := _JSON.search(text, at)) is not None:
        start = opening.start()
        end = _closing(text, start) if left > 0 else None
        if end is None:
            left -= len(text) - start
            line = text.find("\n", start)
            end = len(text) if line < 0 else line
        yield start, end
        at = end


def _closing(text: str, start: int) -> int | None:
    """Where the bracket at ``start`` is closed; None if it is not."""
    depth = 0
    for part in _JSON_PART.finditer(text, start):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(part[0], 0)
        if not depth:
            return part.end()
    return None


def _tools(text: str) -> Iterator[Range]:
    """Sections in tags of tools, such as <tools>…</tools>."""
    open_tags: set[str] = set()
    at = 0
    while (opening := _TOOLS.search(text, at)) is not None:
        at, closing = opening.end(), f"</{opening[1]}>"
        if closing not in open_tags:
            end = text.find(closing, at)
            if end < 0:
                open_tags.add(closing)  # nor is there one after a later tag
            else:
                at = end + len(closing)
                yield opening.start(), at


def _add_sentences(text: str, gap: int, start: int, end: int, spans: list[TextSpan]) -> int:
    """Adds the spans of text[start:end], which has no protected range; returns where the gap after them begins."""
    for stop in (*_ends(text, start, end), end):
        piece = text[start:stop]
        stripped = piece.strip()
        if stripped:
            first = start + len(piece) - len(piece.lstrip())
            gap = _add_pieces(text, gap, first, first + len(stripped), spans)
        start = stop
    return gap


def _add_pieces(text: str, gap: int, start: int, end: int, spans: list[TextSpan]) -> int:
    """Adds a sentence, in pieces of at most MAX_SPAN_CHARS that end between words if there are any."""
    while end - start > MAX_SPAN_CHARS:
        stop = text.rfind(" ", start + 1, start + MAX_SPAN_CHARS)
        stop = start + MAX_SPAN_CHARS if stop < 0 else stop
        body = text[start:stop].rstrip()
        spans.append(TextSpan(gap, start, start + len(body)))
        gap = start + len(body)
        word = _WORD.search(text, gap, end)
        assert word is not None, "a sentence ends with a word"
        start = word.start()
    spans.append(TextSpan(gap, start, end))
    return end


def _ends(text: str, start: int, end: int) -> Iterator[int]:
    """Where sentences end in text[start:end]; numbers and marks alone are no sentence."""
    for mark in _SENTENCE_END.finditer(text, start, end):
        if mark[0][0] in ".!?…":
            before = text[max(start, mark.start() - 8) : mark.start() + 1]
            follower = text[mark.end() : mark.end() + 8].lstrip()[:1]
            if follower.islower() or (mark[0] == "." and _ABBREVIATION.search(before)):
                continue
        if _LETTER.search(text, start, mark.end()):
            yield mark.end()
        start = mark.end()


def _strongest(text: str, gaps: Sequence[Range]) -> tuple[Range, ...]:
    """The gap with the most line feeds, else the longest; none where there are no gaps."""
    best = max(gaps, key=lambda gap: (text.count("\n", *gap), gap[1] - gap[0]), default=None)
    return () if best is None else (best,)
