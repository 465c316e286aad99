"""The commands that README and docs show, and what they are said to print."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PAGES = (REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md")))
PROGRAMS = ("twofold", "make", "curl")
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\S*)[^\n]*\n(?P<body>.*?)^(?P=indent)```", re.MULTILINE | re.DOTALL
)
_NUMBER = re.compile(r"\d[\d,.]*(?:e[+-]?\d+)?")
_BARS = re.compile("[▁-█│┤·⠀-⣿]+")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True)
class Command:
    """A command line, without its comment, and the lines that follow it as its output."""

    block: Block
    line: str
    output: str

    @property
    def words(self) -> list[str]:
        return shlex.split(self.line, comments=True)


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text("utf-8")
        for found in _FENCE.finditer(text):
            line = text.count("\n", 0, found.start()) + 1
            yield Block(page.name, line, found["language"], found["body"])


def commands() -> Iterator[Command]:
    """Behind ``$`` with their output, or a list of them with a remark behind each after two spaces."""
    for block in blocks():
        if block.language not in ("", "sh", "bash", "console", "shell"):
            continue
        text = re.sub(r"\s*\\\n\s*", " ", block.text)
        if "$ " in text[:2] or "\n$ " in text:
            for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
                line, _, output = part.partition("\n")
                if line.count("'") % 2:  # a quoted body of several lines
                    rest, quote, output = output.partition("'\n")
                    line += rest + quote
                yield Command(block, " ".join(line.split()), output)
        else:
            for line in text.splitlines():
                if line.split(" ", 1)[0] in PROGRAMS:
                    yield Command(block, _without_remark(line), "")


def _without_remark(line: str) -> str:
    """Up to two spaces outside of quotes, or a ``#``."""
    quoted = False
    for at, sign in enumerate(line):
        quoted ^= sign == '"'
        if not quoted and (line.startswith("  ", at) or line.startswith(" #", at)):
            return line[:at]
    # a remark behind one space follows a quoted last argument
    return re.sub(r'("[^"]*") [a-z].*$', r"\1", line)


def shape(text: str) -> list[str]:
    """Its words, without bars and with every number alike: however lines are folded."""
    return _NUMBER.sub("0", _BARS.sub(" ", text)).replace("−", "-").split()


def loosely(text: str) -> str:
    """A sentence without what differs from run to run: numbers, units of time, remarks in brackets, and whether a
    prediction was too long."""
    text = re.sub(r" ?\([^()]*\)", "", text.replace("at the measured", "0% of the"))
    text = re.sub(r"\d[\d,.]*%?(?: (?:ms|µs|s)\b)?", "0", text).replace("too short", "too long")
    return " ".join(_BARS.sub(" ", text).split())


def cells(line: str) -> list[str]:
    """The label of a row of a table, and its other cells."""
    return re.split(r" {2,}", line.strip())


def holds(shown: str, printed: str) -> str:
    """Empty where what is shown is printed, up to numbers; else the first words that are not. A line of ``…`` stands
    for any lines."""
    found = " ".join(shape(printed)) + " "
    at = 0
    for part in re.split(r"^\s*…\s*$", shown, flags=re.MULTILINE):
        wanted = shape(part)
        if not wanted:
            continue
        place = found.find(" ".join(wanted) + " ", at)
        if place < 0:
            return _first_difference(wanted, found[at:].split())
        at = place + 1
    return ""


def _first_difference(wanted: list[str], found: list[str]) -> str:
    begin = next((at for at in range(len(found)) if found[at : at + 3] == wanted[:3]), None)
    if begin is None:
        return f"nothing begins with {' '.join(wanted[:8])!r}"
    for at, (left, right) in enumerate(zip(wanted, found[begin:], strict=False)):
        if left != right:
            return f"{' '.join(wanted[max(0, at - 4) : at + 4])!r} is shown, {right!r} printed"
    return f"{' '.join(wanted[-6:])!r} is cut off"
