"""Renders Markdown on a terminal while it is generated.

Text is only appended: the cursor never moves back, so nothing flickers, and resizing the window or a character of
unexpected width cannot damage earlier output. A word is shown when it is complete, so that lines break between words;
tables and lines of code are shown when they are complete. Text that may still become a mark (of emphasis, code or a
link) is withheld until it is unambiguous. Line breaks of the model are kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from rich.cells import cell_len

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

MIN_WIDTH: Final = 20
MAX_FEED: Final = 4096
MAX_CODE_LINES: Final = 200
"""Maximum number of preceding lines of code that are used to highlight a line."""
MAX_ROWS: Final = 200
"""Maximum rows of a table; further rows are shown as text."""

UNDECIDED: Final = re.compile(
    r"#{1,6}|[-+]|\*{1,3}|_{1,3}|[-*_=](?: ?[-*_=])* ?|\d{1,9}[.)]?|(?:`{1,2}|~{1,2})|>[> ]*|"
)
"""Prefixes of a line that may still become the mark of a block."""
HEADING: Final = re.compile(r"(#{1,6}) +")
RULE: Final = re.compile(r"(?:(?:- ?){3,}|(?:\* ?){3,}|(?:_ ?){3,})")
FENCE: Final = re.compile(r"(`{3,}|~{3,})\s*([\w.+#-]*)")
ITEM: Final = re.compile(r"([-*+]|\d{1,9}[.)]) +")
QUOTE: Final = re.compile(r"> ?")
DIVIDER: Final = re.compile(r"\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*")

CODES: Final = {"bold": "1", "italic": "3", "strike": "9", "link": "4", "url": "2", "faint": "2", "underline": "4"}
COLOURS: Final = {"code": "36", "heading": "35", "marker": "33"}
WITHOUT_COLOUR: Final = {"heading": "1", "marker": ""}

LONGEST_SPAN: Final = 600
"""A mark that is not closed within this many characters is plain text."""
SPECIAL: Final = re.compile(r"[\\`*_~\[!]")
ESCAPABLE: Final = frozenset("\\`*_{}[]()#+-.!~|<>$")
LINK: Final = re.compile(r"!?\[(?P<text>[^\[\]\n]*)\]\((?P<url>[^\s()]*(?:\([^\s()]*\)[^\s()]*)*)(?: \"[^\"]*\")?\)")
OPEN_LINK: Final = re.compile(r"!?(?:\[[^\[\]\n]*(?:\](?:\([^\n)]*)?)?)?")
"""A prefix of a possible link."""


@dataclass(frozen=True, slots=True)
class StyledText:
    """Text with names of styles: bold, italic, strike, code, link, url."""

    text: str
    styles: frozenset[str] = frozenset()


_Found: TypeAlias = tuple[list[StyledText], int]
"""Styled text, and the position after its mark."""
PLAIN: Final[frozenset[str]] = frozenset()
MARKS: Final = {"**": "bold", "__": "bold", "~~": "strike", "*": "italic", "_": "italic"}


class MarkdownWriter:
    """Renders one completion into ``write``. ``width`` returns the current columns of the terminal."""

    def __init__(self, write: Callable[[str], None], width: Callable[[], int], *, colour: bool = True) -> None:
        self._write = write
        self._width = width
        self._colour = colour
        self._flow = _Flow(write, width, self._sgr)
        self._line = ""
        self._inside = False
        self._before = " "
        self._styles: frozenset[str] = frozenset()
        self._fence: str | None = None
        self._language = ""
        self._code: list[str] = []
        self._rows: list[str] = []

    def feed(self, text: str) -> None:
        """Adds text, and shows its unambiguous part."""
        for at in range(0, len(text), MAX_FEED):
            self._line += text[at : at + MAX_FEED]
            while "\n" in self._line:
                line, self._line = self._line.split("\n", 1)
                rest, self._line = self._line, line
                self._advance(final=True)
                self._line = rest
            if self._line:
                self._advance(final=False)
        self._flow.flush()

    def close(self) -> None:
        """Shows the remaining text and ends the line."""
        if self._line or self._inside:
            self._advance(final=True)
        self._end_table()
        self._flow.flush()

    def _advance(self, *, final: bool) -> None:
        """Consumes the unambiguous part of the line; all of it if ``final``."""
        if not self._inside and not self._begin(final):
            return
        found, taken = spans(self._line, final=final, before=self._before)
        for span in found:
            self._flow.put(StyledText(self._text(span), span.styles | self._styles))
        if taken:
            self._before = self._line[taken - 1]
        self._line = self._line[taken:]
        if final:
            self._end_line()

    def _begin(self, final: bool) -> bool:
        """Determines the kind of block. Returns whether inline text follows; else the line is consumed or ambiguous."""
        line = self._line
        body = line.lstrip(" ")
        indent = len(line) - len(body)
        if self._fence is not None:
            if final:
                self._code_line(line)
            return False
        if body.startswith(("```", "~~~", "|")) and not final:
            return False  # a fence or a table row, which needs the whole line
        if final and body.startswith("|") and len(self._rows) < MAX_ROWS:
            self._rows.append(line)
            return False
        if not final and UNDECIDED.fullmatch(body) is not None:
            return False
        self._end_table()
        return self._open(body, indent, final)

    def _open(self, body: str, indent: int, final: bool) -> bool:
        fence = FENCE.match(body)
        if fence is not None:
            self._fence, self._language, self._code = fence[1], fence[2], []
            self._flow.raw(self._sgr(body.rstrip(), frozenset({"faint"})) + "\n")
            return False
        if RULE.fullmatch(body.rstrip()) is not None:
            if not final:
                return False
            self._flow.raw(self._sgr("─" * min(self._columns, 40), frozenset({"faint"})) + "\n")
            return False
        self._inside, self._before = True, " "
        heading, item = HEADING.match(body), ITEM.match(body)
        prefix = " " * indent
        if heading is not None:
            self._styles = frozenset({"heading", "bold"} | ({"underline"} if len(heading[1]) == 1 else set()))
            self._line = body[heading.end() :]
            self._flow.start("", "")
        elif item is not None:
            marker = "•" if item[1] in "-*+" else item[1]
            self._line = body[item.end() :]
            hang = " " * (indent + len(marker) + 1)
            self._flow.start(prefix + self._sgr(marker, frozenset({"marker"})) + " ", hang)
        elif body.startswith(">"):
            depth = 0
            while (quote := QUOTE.match(body)) is not None:
                body, depth = body[quote.end() :], depth + 1
            self._line = body
            bar = self._sgr("│ " * depth, frozenset({"faint"}))
            self._flow.start(bar, bar, 2 * depth)
        else:
            self._line = body
            self._flow.start(prefix, prefix)
        return True

    def _end_line(self) -> None:
        self._flow.end()
        self._inside, self._styles, self._line = False, frozenset(), ""

    def _code_line(self, line: str) -> None:
        assert self._fence is not None
        stripped = line.strip()
        if stripped.startswith(self._fence) and not stripped.strip(self._fence[0]):
            self._fence = None
            self._flow.raw(self._sgr(stripped, frozenset({"faint"})) + "\n")
            return
        self._code.append(line)
        self._flow.raw(self._highlighted(line) + "\n")

    def _highlighted(self, line: str) -> str:
        if not self._colour or not self._language or not line.strip():
            return line
        from rich.syntax import Syntax  # noqa: PLC0415 - only code pays for it

        self._code = self._code[-MAX_CODE_LINES:]
        syntax = Syntax("", self._language, theme="ansi_dark", background_color="default")
        shown = syntax.highlight("\n".join(self._code)).split("\n", allow_blank=True)
        wanted = shown[len(self._code) - 1] if len(shown) >= len(self._code) else None
        return line if wanted is None or wanted.plain != line else self._printed(wanted).rstrip("\n")

    def _end_table(self) -> None:
        """Shows the collected rows as a table, or as text if they have no divider."""
        rows, self._rows = self._rows, []
        if len(rows) < 2 or DIVIDER.fullmatch(rows[1].strip()) is None:
            self._flow.raw("".join(row + "\n" for row in rows))
            return
        from rich import box  # noqa: PLC0415
        from rich.table import Table  # noqa: PLC0415

        head, marks, *body = map(_cells, rows)
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
        for index, cell in enumerate(head):
            mark = marks[index] if index < len(marks) else ""
            right, left = mark.endswith(":"), mark.startswith(":")
            table.add_column(self._cell(cell), justify="center" if right and left else "right" if right else "left")
        for row in body:
            table.add_row(*(self._cell(cell) for cell in row[: len(head)]))
        self._flow.raw(self._printed(table))

    def _cell(self, text: str) -> Text:
        from rich.text import Text  # noqa: PLC0415

        return Text.from_ansi("".join(self._sgr(self._text(span), span.styles) for span in spans(text, final=True)[0]))

    def _printed(self, shown: RenderableType) -> str:
        from rich.console import Console  # noqa: PLC0415

        colours: Literal["standard"] | None = "standard" if self._colour else None
        console = Console(force_terminal=True, width=self._columns, color_system=colours, legacy_windows=False)
        with console.capture() as captured:
            console.print(shown, soft_wrap=not hasattr(shown, "add_row"))
        return captured.get()

    @property
    def _columns(self) -> int:
        return max(MIN_WIDTH, self._width())

    def _text(self, span: StyledText) -> str:
        """The text of a span; code keeps its backticks if there are no colours."""
        return f"`{span.text}`" if "code" in span.styles and not self._colour else span.text

    def _sgr(self, text: str, styles: frozenset[str]) -> str:
        """The text between the escape sequences of its styles."""
        codes = [CODES[style] for style in sorted(styles & CODES.keys())]
        table = COLOURS if self._colour else WITHOUT_COLOUR
        codes += [table[style] for style in sorted(styles & table.keys()) if table[style]]
        if not codes or not text:
            return text
        return f"\x1b[{';'.join(dict.fromkeys(codes))}m{text}\x1b[0m"


def _cells(row: str) -> list[str]:
    return [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", row.strip().strip("|"))]


class _Flow:
    """Wraps words into lines. Continuation lines begin with ``hang``."""

    def __init__(
        self, write: Callable[[str], None], width: Callable[[], int], sgr: Callable[[str, frozenset[str]], str]
    ) -> None:
        self._write = write
        self._width = width
        self._sgr = sgr
        self._out: list[str] = []
        self._word: list[StyledText] = []
        self._spaces = ""
        self._space_styles: frozenset[str] = frozenset()
        self._column = 0
        self._hang, self._hang_width = "", 0
        self._columns = 0
        self._glued = False

    def start(self, first: str, hang: str, hang_width: int | None = None) -> None:
        """Begins a line with the prefix ``first``; ``hang_width`` is the width of both prefixes in columns."""
        self._hang = hang
        self._hang_width = cell_len(hang) if hang_width is None else hang_width
        self._columns = max(MIN_WIDTH, self._width())
        self._column = self._hang_width
        self._out.append(first)

    def put(self, span: StyledText) -> None:
        """Adds text to the line, split at spaces and around wide characters."""
        for piece in re.split(r"(\s+)", span.text):
            if not piece:
                continue
            if piece.isspace():
                self._end_word()
                self._glued = False
                self._spaces += piece.replace("\t", "    ")
                self._space_styles = span.styles
            else:
                self._letters(piece, span.styles)

    def end(self) -> None:
        """Ends the line."""
        self._end_word()
        self._spaces, self._glued = "", False
        self._out.append("\n")
        self._column = 0

    def raw(self, text: str) -> None:
        """Shows text without wrapping."""
        self._out.append(text)

    def flush(self) -> None:
        """Writes the collected output."""
        if self._out:
            self._write("".join(self._out))
            self._out = []

    def _letters(self, piece: str, styles: frozenset[str]) -> None:
        start = 0
        for at, letter in enumerate(piece):
            if ord(letter) > 0x2E7F and cell_len(letter) == 2:  # lines may break around wide characters
                self._add(piece[start:at], styles)
                self._end_word()
                self._add(letter, styles)
                self._end_word()
                start = at + 1
        self._add(piece[start:], styles)

    def _add(self, text: str, styles: frozenset[str]) -> None:
        """Adds text to the word."""
        if self._word and self._word[-1].styles == styles:
            text = self._word.pop().text + text
        if text:
            self._word.append(StyledText(text, styles))
        if sum(len(span.text) for span in self._word) > self._columns:  # too long for a line: not withheld
            self._end_word()
            self._glued = True

    def _end_word(self) -> None:
        if not self._word:
            return
        word, self._word = self._word, []
        glued, self._glued = self._glued, False
        size = sum(cell_len(span.text) for span in word)
        spaces, self._spaces = self._spaces, ""
        if self._column + len(spaces) + size > self._columns and self._column > self._hang_width and not glued:
            self._out.append("\n" + self._hang)
            self._column = self._hang_width
        elif spaces:
            self._out.append(self._sgr(spaces, self._space_styles & {"code", "strike", "link", "underline"}))
            self._column += len(spaces)
        self._out += [self._sgr(span.text, span.styles) for span in word]
        self._column = (self._column + size) if self._column + size <= self._columns else size % self._columns


def spans(text: str, *, final: bool, before: str = " ", styles: frozenset[str] = PLAIN) -> tuple[list[StyledText], int]:
    """The unambiguous spans at the start of ``text``, and the number of characters that they cover.

    final   whether the line is complete, and so unambiguous
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
    """The styled text of the mark at ``at``, and the position after the mark; None while it is ambiguous."""
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
