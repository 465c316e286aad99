"""Markdown within a line (emphasis, code, links), parsed while the line is generated.

Text that may still become a mark is withheld until it is unambiguous, because shown text cannot be changed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

LONGEST_SPAN: Final = 600
"""A mark that is not closed within this many characters is plain text."""
SPECIAL: Final = re.compile(r"[\\`*_~\[!]")
ESCAPABLE: Final = frozenset("\\`*_{}[]()#+-.!~|<>$")
LINK: Final = re.compile(r"!?\[(?P<text>[^\[\]\n]*)\]\((?P<url>[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)(?: \"[^\"]*\")?\)")
OPEN_LINK: Final = re.compile(r"!?(?:\[[^\[\]\n]*(?:\](?:\([^\n)]*)?)?)?")
"""The prefix of a possible link."""


@dataclass(frozen=True, slots=True)
class StyledText:
    """Text with names of styles: bold, italic, strike, code, link, url."""

    text: str
    styles: frozenset[str] = frozenset()


_Found: TypeAlias = tuple[list[StyledText], int]
"""Text, and where its mark ends."""
PLAIN: Final[frozenset[str]] = frozenset()
MARKS: Final = {"**": "bold", "__": "bold", "~~": "strike", "*": "italic", "_": "italic"}


def spans(text: str, *, final: bool, before: str = " ", styles: frozenset[str] = PLAIN) -> tuple[list[StyledText], int]:
    """The unambiguous spans, and the number of characters in them.

    final   whether the line is complete: all of it is unambiguous then
    before  the character before ``text``
    """
    found: list[StyledText] = []
    at = 0
    while at < len(text):
        special = SPECIAL.search(text, at)
        stop = len(text) if special is None else special.start()
        if stop > at:
            found.append(StyledText(text[at:stop], styles))
            at = stop
            continue
        waits = not final and len(text) - at < LONGEST_SPAN
        previous = text[at - 1] if at else before
        taken = _special(text, at, previous, styles, waits)
        if taken is None:
            return found, at
        more, at = taken
        found += more
    return found, at


def _special(text: str, at: int, previous: str, styles: frozenset[str], waits: bool) -> _Found | None:
    """The styled text of the mark at ``at`` and its end; None while it is ambiguous."""
    letter = text[at]
    if letter == "\\":
        if at + 1 < len(text):
            escaped = text[at + 1] in ESCAPABLE
            return [StyledText(text[at + 1] if escaped else "\\", styles)], at + 1 + escaped
        return None if waits else ([StyledText("\\", styles)], at + 1)
    if letter == "`":
        return _code(text, at, styles, waits)
    if letter in "[!":
        return _link(text, at, styles, waits)
    return _emphasis(text, at, previous, styles, waits)


def _code(text: str, at: int, styles: frozenset[str], waits: bool) -> _Found | None:
    end = at
    while end < len(text) and text[end] == "`":
        end += 1
    ticks = text[at:end]
    close = re.compile(rf"(?<!`){ticks}(?!`)").search(text, end)
    if close is None or (waits and close.end() == len(text)):  # another tick may follow
        return None if waits else ([StyledText(ticks, styles)], end)
    inside = text[end : close.start()]
    if len(inside) > 2 and inside[0] == inside[-1] == " ":
        inside = inside[1:-1]
    return [StyledText(inside, styles | {"code"})], close.end()


def _link(text: str, at: int, styles: frozenset[str], waits: bool) -> _Found | None:
    link = LINK.match(text, at)
    if link is not None:
        label, _ = spans(link["text"], final=True, styles=styles | {"link"})
        shown = [StyledText(f" ({link['url']})", styles | {"url"})] if link["url"] not in ("", link["text"]) else []
        return [*label, *shown], link.end()
    opened = OPEN_LINK.match(text, at)
    if waits and opened is not None and opened.end() == len(text):
        return None
    return [StyledText(text[at], styles)], at + 1


def _emphasis(text: str, at: int, previous: str, styles: frozenset[str], waits: bool) -> _Found | None:
    letter = text[at]
    end = at
    while end < len(text) and text[end] == letter:
        end += 1
    if waits and end == len(text):
        return None
    run = min(end - at, 3)
    plain = [StyledText(text[at:end], styles)], end
    opens = end < len(text) and not text[end].isspace() and not (letter == "_" and previous.isalnum())
    if not opens or (letter == "~" and run != 2) or end - at > 3:
        return plain
    close = _closing(text, end, letter, run, waits)
    if close is None:
        return None if waits else plain
    kinds = {"bold", "italic"} if run == 3 else {MARKS[letter * run]}
    inner, _ = spans(text[end:close], final=True, before=letter, styles=styles | kinds)
    return inner, close + run


def _closing(text: str, start: int, letter: str, run: int, waits: bool) -> int | None:
    """The start of the closing run of an emphasis; code spans are skipped."""
    at = start
    while at < len(text):
        if text[at] == "\\":
            at += 2
            continue
        if text[at] == "`":
            code = _code(text, at, PLAIN, False)
            assert code is not None
            at = code[1]
            continue
        if text[at] != letter:
            at += 1
            continue
        end = at
        while end < len(text) and text[end] == letter:
            end += 1
        if waits and end == len(text) and end - at < 3 and end - at != run:
            return None
        before_word = letter == "_" and end < len(text) and text[end].isalnum()
        if end - at >= run and (end - at == run or run == 2) and not text[at - 1].isspace() and not before_word:
            return at + (end - at - run)
        at = end
    return None
