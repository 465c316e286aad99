"""Markdown on a terminal: its look does not depend on how the text is split."""

from __future__ import annotations

import random
import re
from typing import Final

import pytest
from rich.cells import cell_len

from twofold.cli.chat.markdown import MarkdownWriter, spans
from twofold.cli.console import printable

PAGE: Final = """\
# A *fine* title

Some **bold words** in a paragraph with `code` that is wrapped, and [a link](http://example.org).
Next line.

- an item that is long enough to be wrapped over the edge of a narrow line
  - nested *item*
1. one
12) twelve
---
> quoted text which is also long enough to be wrapped

```python
def f(x):
    return "**not bold**"
```
| name | value |
|------|------:|
| **a** | 1 |
| b | `22` |

| no table
日本語のテキストはとても長いので、端で折り返す必要があります。
**kwargs, 2 * 3 and snake_case stay; so does \\*this\\*.
An end without a line end"""


def shown(text: str, *, width: int = 40, colour: bool = True, pieces: random.Random | None = None) -> str:
    out: list[str] = []
    writer = MarkdownWriter(out.append, lambda: width, colour=colour)
    at = 0
    while at < len(text):
        size = len(text) if pieces is None else pieces.randint(1, 5)
        writer.feed(text[at : at + size])
        at += size
    writer.close()
    return "".join(out)


def plain(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


@pytest.mark.parametrize("seed", range(20))
def test_a_page_looks_the_same_however_it_arrives(seed: int) -> None:
    assert shown(PAGE, pieces=random.Random(seed)) == shown(PAGE)


def test_the_page() -> None:
    lines = plain(shown(PAGE)).splitlines()
    assert lines[0] == "A fine title"
    assert "• an item that is long enough to be" in lines
    assert "  wrapped over the edge of a narrow line" in lines
    assert "  • nested item" in lines
    assert "12) twelve" in lines
    assert "│ quoted text which is also long enough" in lines
    assert "│ to be wrapped" in lines
    assert '    return "**not bold**"' in lines
    assert [" ".join(line.split()) for line in lines if line.startswith(("name", "a ", "b "))] == [
        "name value",
        "a 1",
        "b 22",
    ]
    assert "| no table" in lines
    assert "**kwargs, 2 * 3 and snake_case stay; so" in lines
    assert lines[-1] == "An end without a line end"
    assert max(map(cell_len, lines)) <= 40


def test_the_cursor_never_moves_back() -> None:
    assert set(re.findall(r"\x1b\[[\d;]*([A-Za-z])", shown(PAGE))) == {"m"}
    assert "\r" not in shown(PAGE)


def test_without_colour_only_shapes_remain() -> None:
    text = shown(PAGE, colour=False)
    codes = {code for group in re.findall(r"\x1b\[([\d;]*)m", text) for code in group.split(";")}
    assert codes <= {"0", "1", "2", "3", "4", "9"}
    assert "`code`" in plain(text)


def test_text_appears_while_its_line_is_written() -> None:
    out: list[str] = []
    writer = MarkdownWriter(out.append, lambda: 40)
    writer.feed("One two three")
    assert "".join(out) == "One two"
    writer.feed(" **fo")
    assert "".join(out) == "One two three"
    writer.feed("ur** five ")
    assert plain("".join(out)) == "One two three four five"


@pytest.mark.parametrize(
    ("text", "styled"),
    [
        ("***x***", {"x": {"bold", "italic"}}),
        ("**a *b* c**", {"b": {"bold", "italic"}, "a ": {"bold"}, " c": {"bold"}}),
        ("`a*b`*c*", {"a*b": {"code"}, "c": {"italic"}}),
        ("~~x~~", {"x": {"strike"}}),
        ("[t](u)", {"t": {"link"}, " (u)": {"url"}}),
        ("a_b_c *d", {}),
        ("**open `code**`", {"code**": {"code"}}),
    ],
)
def test_marks_within_a_line(text: str, styled: dict[str, set[str]]) -> None:
    found = {span.text: set(span.styles) for span in spans(text, final=True)[0] if span.styles}
    assert found == styled


def test_an_unclosed_mark_does_not_withhold_the_text() -> None:
    out: list[str] = []
    writer = MarkdownWriter(out.append, lambda: 80)
    writer.feed("**open " + "word " * 300)
    assert "".join(out).count("word") > 100


def test_a_long_word_does_not_wait_for_its_end_and_is_not_broken() -> None:
    out: list[str] = []
    writer = MarkdownWriter(out.append, lambda: 40)
    for _ in range(30):
        writer.feed("x" * 10)
    assert "".join(out).count("x") > 200
    writer.close()
    assert "".join(out) == "x" * 300 + "\n"


def test_control_characters_of_a_model_are_removed() -> None:
    assert printable("a\x1b]0;title\x07b\x9b2Jc\td\r\ne") == "a]0;titleb2Jc\td\ne"
