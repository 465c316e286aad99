"""Reads regular expressions, as in JSON schemas and in Rust, into expressions over bytes (``automaton``).

What cannot be expressed raises UnsupportedRegexError: look-around, back-references, word boundaries, Unicode
properties, anchors inside. In JSON, ``\\w`` and ``\\d`` are ASCII, as in JavaScript.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from typing import Final, TypeAlias
from unicodedata import category

from twofold.engine.grammar.automaton import ByteExpression, Expressions

Ranges: TypeAlias = list[tuple[int, int]]
"""Characters, as ranges of code points."""

MAX_REPEAT: Final = 100_000
_LAST: Final = 0x10FFFF
_ANY: Final[Ranges] = [(0, _LAST)]
_DIGITS: Final[Ranges] = [(48, 57)]
_WORD: Final[Ranges] = [(48, 57), (65, 90), (95, 95), (97, 122)]
_SPACE: Final[Ranges] = [
    *((9, 13), (32, 32), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A)),
    *((0x2028, 0x2029), (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000)),
]
_LETTERS: Final = ("L", "M", "Nd", "Nl", "Pc")
"""Unicode's categories of the characters of words."""
_ASSIGNED: Final = 0x323B0
"""No letters, marks or digits follow, besides _VARIANTS."""
_VARIANTS: Final = range(0xE0100, 0xE01F0)
_OTHER_WORD: Final[Ranges] = [
    *((0x200C, 0x200D), (0x24B6, 0x24E9), (0x1F130, 0x1F149), (0x1F150, 0x1F169), (0x1F170, 0x1F189))
]
"""Characters of words of other categories: joiners and letters in circles and squares."""
_CONTROL: Final = {"n": 10, "r": 13, "t": 9, "f": 12, "v": 11, "a": 7}
_ESCAPES: Final = {8: "b", 9: "t", 10: "n", 12: "f", 13: "r", 34: '"', 92: "\\"}
_COUNT: Final = re.compile(r"\{(\d+)(,?)(\d*)\}")
_HEX: Final = re.compile(r"x([0-9A-Fa-f]{2})|[xu]\{([0-9A-Fa-f]{1,6})\}|u([0-9A-Fa-f]{4})")
_GROUP: Final = re.compile(r"\?(?:P?<[A-Za-z_][A-Za-z0-9_]*>|([is]*)(:|\)))")
_PLAIN_UNICODE: Final = (
    r"\\u([0-9a-ce-fA-CE-F][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}"
    r"|[dD][89aAbB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
"""An escaped code point in JSON, with both halves of a surrogate pair."""


class UnsupportedRegexError(ValueError):
    """The regex cannot be expressed."""


@cache
def unicode_ranges(*categories: str) -> Ranges:
    """The characters beyond ASCII in some categories of Unicode."""
    found: Ranges = []
    for code in (*range(128, _ASSIGNED), *_VARIANTS):
        if category(chr(code)).startswith(categories):
            if found and found[-1][1] == code - 1:
                found[-1] = (found[-1][0], code)
            else:
                found.append((code, code))
    return found


def compiled_regex(make: Expressions, regex: str, *, search: bool = False) -> ByteExpression:
    """The texts that match a whole regex; with ``search``, those that contain a match."""
    return _RegexReader(make, regex, quoted=False, search=search).read()


def json_string(
    make: Expressions, patterns: Sequence[str], least: int = 0, most: int | None = None, *, escapes: bool = False
) -> ByteExpression:
    """The rest of a JSON string after its opening quote: with a match of each pattern in it, and ``least`` to ``most``
    characters. ``escapes``: any character may be escaped by its number, which patterns do not allow."""
    character = _quoted(make, _ANY)
    if escapes:
        character = make.alt([character, compiled_regex(make, _PLAIN_UNICODE)])
    text = make.repeat(character, least, most)
    for place, pattern in enumerate(patterns):
        matching = _RegexReader(make, pattern, quoted=True, search=True).read()
        text = matching if (least, most, place) == (0, None, 0) else make.both(matching, text)
    return make.cat(text, make.literal(b'"'))


class _RegexReader:
    def __init__(self, make: Expressions, text: str, *, quoted: bool, search: bool) -> None:
        self._make, self._text, self._quotes, self._search = make, text, quoted, search
        self._at = 0
        self._depth = 0
        self._flags = ""

    def read(self) -> ByteExpression:
        try:
            node = self._alternatives()
        except RecursionError as error:
            raise UnsupportedRegexError("deep nesting") from error
        if self._at < len(self._text):
            raise UnsupportedRegexError("a closing bracket")
        return node

    def _peek(self, count: int = 1) -> str:
        return self._text[self._at : self._at + count]

    def _takes(self, text: str) -> bool:
        found = self._text.startswith(text, self._at)
        self._at += len(text) * found
        return found

    def _alternatives(self) -> ByteExpression:
        flags = self._flags
        parts = [self._sequence()]
        while self._takes("|"):
            parts.append(self._sequence())
        self._flags = flags
        return self._make.alt(parts)

    def _sequence(self) -> ByteExpression:
        """One alternative. Anchors count at the ends of those of the whole regex."""
        make, outer = self._make, self._depth == 0
        anything = make.repeat(self._set(_ANY))
        parts = [] if not (outer and self._search) or self._anchor("^", "\\A") else [anything]
        while self._anchor("^", "\\A") and outer and not self._search:
            pass
        while self._peek() not in ("", "|", ")"):
            if self._anchor("$", "\\z", "\\Z"):
                if not outer or self._peek() not in ("", "|"):
                    raise UnsupportedRegexError("an anchor inside")
                return make.cat(*parts)
            parts.append(self._counted(self._atom()))
        return make.cat(*parts, *([anything] if outer and self._search else []))

    def _anchor(self, *texts: str) -> bool:
        return any(map(self._takes, texts))

    def _counted(self, node: ByteExpression) -> ByteExpression:
        while True:
            found = _COUNT.match(self._text, self._at)
            sign = self._peek()
            if found is not None:
                self._at = found.end()
                least = int(found[1])
                most = int(found[3]) if found[3] else None if found[2] else least
                if max(least, most or 0) > MAX_REPEAT:
                    raise UnsupportedRegexError("a large count")
            elif sign and sign in "*+?":
                self._at += 1
                least, most = int(sign == "+"), 1 if sign == "?" else None
            else:
                return node
            self._takes("?")
            node = self._make.repeat(node, least, most) if most is None or least <= most else self._make.nothing

    def _atom(self) -> ByteExpression:
        if self._takes("("):
            return self._group()
        if self._peek() == "[":
            return self._set(self._class())
        if self._takes("."):
            return self._set(_ANY if "s" in self._flags else _without([(10, 10)]))
        if self._takes("\\"):
            return self._set(self._escape())
        if self._peek() in "^$*+?":
            raise UnsupportedRegexError("an anchor or a count inside")
        self._at += 1
        return self._set([(code := ord(self._text[self._at - 1]), code)])

    def _group(self) -> ByteExpression:
        flags = self._flags
        if self._peek() == "?":
            found = _GROUP.match(self._text, self._at)
            if found is None:
                raise UnsupportedRegexError("look-around or a flag")
            self._at = found.end()
            self._flags += found[1] or ""
            if found[2] == ")":
                return self._make.empty
        self._depth += 1
        node = self._alternatives()
        self._depth -= 1
        self._flags = flags
        if not self._takes(")"):
            raise UnsupportedRegexError("an open group")
        return node

    def _class(self) -> Ranges:
        self._at += 1
        negated = self._takes("^")
        ranges: Ranges = []
        first = True
        while first or self._peek() != "]":
            if self._peek() in ("", "[") or self._peek(2) in ("&&", "--", "~~"):
                raise UnsupportedRegexError("a set in a set")
            first = False
            low = self._class_item()
            if self._peek() == "-" and self._peek(2) != "-]" and len(low) == 1 and low[0][0] == low[0][1]:
                self._at += 1
                high = self._class_item()
                low = [(low[0][0], high[0][1])]
            ranges += low
        self._at += 1
        if "i" in self._flags:
            ranges += _other_case(ranges)
        return _without(ranges) if negated else ranges

    def _class_item(self) -> Ranges:
        if self._takes("\\"):
            return self._escape(inside=True)
        self._at += 1
        code = ord(self._text[self._at - 1])
        return [(code, code)]

    def _escape(self, *, inside: bool = False) -> Ranges:
        found = _HEX.match(self._text, self._at)
        if found is not None:
            self._at = found.end()
            code = int(found[1] or found[2] or found[3], 16)
            return [(code, code)]
        letter = self._peek()
        self._at += 1
        sets = {"d": _DIGITS, "w": _WORD, "s": _SPACE}
        if letter.lower() in sets:
            ranges = sets[letter.lower()]
            if letter.lower() != "s" and not self._quotes:
                ranges = [*ranges, *(unicode_ranges("Nd") if letter in "dD" else unicode_ranges(*_LETTERS))]
                ranges += [] if letter in "dD" else _OTHER_WORD
            return ranges if letter.islower() else _without(ranges)
        code = _CONTROL.get(letter, 8 if letter == "b" and inside else 0)
        if code == 0 and (letter == "" or letter.isalnum()):
            raise UnsupportedRegexError(f"\\{letter}")
        return [(code or ord(letter),) * 2]

    def _set(self, ranges: Ranges) -> ByteExpression:
        if "i" in self._flags:
            ranges = [*ranges, *_other_case(ranges)]
        return _quoted(self._make, ranges) if self._quotes else _encoded(self._make, ranges)


def _without(ranges: Ranges) -> Ranges:
    """All other characters."""
    found, at = [], 0
    for low, high in sorted(ranges):
        if low > at:
            found.append((at, low - 1))
        at = max(at, high + 1)
    return [*found, (at, _LAST)] if at <= _LAST else found


def _other_case(ranges: Ranges) -> Ranges:
    codes = (code for low, high in ranges for code in range(low, min(high, 127) + 1))
    return [(ord(chr(code).swapcase()),) * 2 for code in codes if chr(code).isalpha()]


def _encoded(make: Expressions, ranges: Ranges) -> ByteExpression:
    """UTF-8 of one of the characters."""
    bits, parts = 0, []
    for low, high in ranges:
        for first, last in ((0, 0x7F), (0x80, 0x7FF), (0x800, 0xD7FF), (0xE000, 0xFFFF), (0x10000, _LAST)):
            begin, end = max(low, first), min(high, last)
            if begin <= end < 0x80:
                bits |= (1 << end + 1) - (1 << begin)
            elif begin <= end:
                parts.append(_between(make, chr(begin).encode(), chr(end).encode()))
    return make.alt([make.one_of(bits), *parts])


def _between(make: Expressions, low: bytes, high: bytes) -> ByteExpression:
    """The encoded characters between two of equal length."""
    if len(low) == 1:
        return make.one_of((1 << high[0] + 1) - (1 << low[0]))
    if low[0] == high[0]:
        return make.cat(make.one_of(1 << low[0]), _between(make, low[1:], high[1:]))
    least, most = b"\x80" * (len(low) - 1), b"\xbf" * (len(low) - 1)
    first, last, parts = low[0], high[0], []
    if low[1:] != least:
        parts.append(make.cat(make.one_of(1 << first), _between(make, low[1:], most)))
        first += 1
    if high[1:] != most:
        parts.append(make.cat(make.one_of(1 << last), _between(make, least, high[1:])))
        last -= 1
    if first <= last:
        parts.append(make.cat(make.one_of((1 << last + 1) - (1 << first)), _between(make, least, most)))
    return make.alt(parts)


def _quoted(make: Expressions, ranges: Ranges) -> ByteExpression:
    """One of the characters as in a JSON string."""
    escaped = "".join(letter for code, letter in _ESCAPES.items() if any(low <= code <= high for low, high in ranges))
    bits = sum(1 << ord(letter) for letter in escaped)
    escapes = make.cat(make.one_of(1 << 92), make.one_of(bits))
    plain = _without([*_without(ranges), (0, 31), (34, 34), (92, 92), (127, 127)])
    return make.alt([_encoded(make, plain), escapes])
