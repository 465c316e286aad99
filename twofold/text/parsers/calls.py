"""Tool calls in a completion: after marks, or as the whole of it. A reader knows how a single call is written.

Laws
    After a mark, all text that reads as a call is one, whatever its name. Without a mark, a call must begin the
    completion, perhaps in a code fence, and name one of the tools, because JSON is often data.
    Invalid text is content if its call has not been emitted, otherwise a part of the call's arguments, unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from twofold.text.parsers.base import MarkFinder, Piece, PieceWriter, State, skip

FENCE: Final = "```"
_FENCE_LINE: Final = re.compile(r"```[a-z_]{0,16}\s{0,8}(?=[{\[])")
_FENCE_BEGUN: Final = re.compile(r"`{1,2}|```[a-z_]{0,16}\s{0,8}")


class CallReader:
    """Reads one call, state by state, and emits it to ``out``.

    done     the call is complete
    broken   it is not a call, or its arguments are invalid
    emitted  its name has been emitted
    """

    def __init__(self, out: PieceWriter, state: State) -> None:
        self._out = out
        self._state = state
        self.done = self.broken = self.emitted = False

    def read(self, text: str, at: int) -> int:
        """Continues at ``text[at]``. Returns the position after the call, that of invalid text, or that of text to be
        read again together with more text."""
        while at < len(text) and not (self.done or self.broken):
            state = self._state
            place = state(text, at)
            if place == at and self._state == state:
                break
            at = place
        return at

    def end(self) -> None:
        """Emits the arguments read so far. Readers that emit whole calls have nothing to emit."""


MakeReader: TypeAlias = Callable[[PieceWriter, frozenset[str] | None], CallReader]
"""Makes a reader that emits to a writer. It accepts calls of these tools only; with None, of any."""


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """How calls are marked in a completion.

    marks   opening marks of one or more calls, with their closing marks ("" for none)
    begins  matches the start of a call
    bare    first characters of a completion that is a call without a mark
    reader  reads one call
    """

    marks: Mapping[str, str]
    begins: re.Pattern[str]
    bare: str
    reader: MakeReader


class CallParser:
    """``SectionParser`` of completions with calls. ``tools`` are the known names; unless ``parallel``, only one call is
    read. Text that a state does not consume is put before the next text."""

    def __init__(self, syntax: CallSyntax, tools: Iterable[str], *, parallel: bool) -> None:
        self._state: State = self._begin
        self._out = PieceWriter()
        self._left = ""
        self._syntax = syntax
        self._finder = MarkFinder(syntax.marks)
        self._tools = frozenset(tools)
        self._parallel = parallel
        self._seen: list[str] = []
        self._bare = self._in_list = False
        self._closes = ""
        self._closer = MarkFinder(())
        self._reader = syntax.reader(self._out, None)

    def push(self, text: str) -> Sequence[Piece]:
        text, at = self._left + text, 0
        while True:
            state = self._state
            place = state(text, at)
            if place == at and self._state == state:
                break
            at = place
        self._left = text[at:]
        return self._out.take()

    def flush(self) -> Sequence[Piece]:
        self._reader.end()
        if self._state == self._spill:
            self._out.arguments(self._left)
        elif self._state == self._opened or (self._state == self._in_call and not self._reader.emitted):
            self._out.content("".join(self._seen) + self._left)
        elif self._state not in (self._in_call, self._ignore, self._between):
            self._out.content(self._left)
        self._left, self._state = "", self._ignore
        self._out.end()
        return self._out.take()

    def _begin(self, text: str, at: int) -> int:
        """Space at the start of a completion, then content or a call without a mark."""
        end = skip(text, at)
        self._out.content(text[at:end])
        if end == len(text):
            return end
        place, mark = self._finder.find(text, end)
        if place == end and not mark:
            return end
        self._seen, self._in_list, self._closes = [], False, ""
        self._bare = text[end] in self._syntax.bare and place > end
        if text[end] == "`" and self._syntax.bare and place > end:
            self._state = self._fence
        else:
            self._state = self._opened if self._bare else self._content
        return end

    def _fence(self, text: str, at: int) -> int:
        """A code fence at the start of a completion. It is content unless JSON begins in it."""
        found = _FENCE_LINE.match(text, at)
        if found:
            self._seen, self._bare, self._closes = [found[0]], True, FENCE
            self._state = self._opened
            return found.end()
        if not _FENCE_BEGUN.fullmatch(text, at):
            self._state = self._content
        return at

    def _content(self, text: str, at: int) -> int:
        place, mark = self._finder.find(text, at)
        self._out.content(text[at:place])
        if mark:
            self._seen, self._bare, self._in_list, self._closes = [mark], False, False, self._syntax.marks[mark]
            self._state = self._opened
        return place + len(mark)

    def _opened(self, text: str, at: int) -> int:
        """Before the first call of a mark."""
        end = skip(text, at)
        self._seen.append(text[at:end])
        if end == len(text):
            return end
        if text[end] == "[" and not self._in_list:
            self._in_list = True
            self._seen.append("[")
            return end + 1
        if not self._syntax.begins.match(text, end):
            return self._not_a_call(end)
        self._reader = self._syntax.reader(self._out, self._tools if self._bare else None)
        self._state = self._in_call
        return end

    def _in_call(self, text: str, at: int) -> int:
        end = self._reader.read(text, at)
        if not self._reader.emitted:
            self._seen.append(text[at:end])
        if self._reader.done:
            self._seen = []
            self._state = self._between if self._parallel else self._ignore
        elif self._reader.broken:
            if not self._reader.emitted:
                return self._not_a_call(end)
            self._closer = MarkFinder((self._closes,) if self._closes else ())
            self._state = self._spill
        return end

    def _not_a_call(self, at: int) -> int:
        self._out.content("".join(self._seen))
        self._seen = []
        self._state = self._content
        return at

    def _between(self, text: str, at: int) -> int:
        """After a call: another one, the closing mark, or the end of the section."""
        end = skip(text, at)
        if end == len(text):
            self._out.content(text[at:end])
            return end
        closes = self._closes
        if closes and closes.startswith(text[end : end + len(closes)]):
            if len(text) - end < len(closes):
                return end
            self._state = self._begin if self._bare else self._content
            return end + len(closes)
        if text[end] == ("," if self._in_list else ";"):
            self._seen = [text[end]]
            self._state = self._opened
            return end + 1
        if text[end] == "]" and self._in_list:
            self._in_list = False
            return end + 1
        self._state = self._opened if self._syntax.begins.match(text, end) else self._content
        return end

    def _spill(self, text: str, at: int) -> int:
        """The rest of arguments that are not JSON."""
        place, mark = self._closer.find(text, at)
        self._out.arguments(text[at:place])
        if mark:
            self._state = self._content if self._parallel else self._ignore
        return place + len(mark)

    def _ignore(self, text: str, _: int) -> int:
        """After the single call that is allowed."""
        return len(text)
