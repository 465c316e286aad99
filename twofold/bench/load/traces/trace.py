"""The requests of a trace, in columns: a million of them in some 20 MB, prompts apart."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from twofold.bench.load.base import PromptMessage, Shared
from twofold.bench.load.checks import MAX_REQUESTS
from twofold.bench.load.traces.lines import SkippedLines, TraceLineError, ascending

Format: TypeAlias = Literal["azure", "mooncake", "twofold"]

MAX_KEY: Final = 2**64 - 1
"""A piece that prompts share is named by a number of up to 64 bits."""


@dataclass(frozen=True, slots=True)
class Extra:
    """What only our own format can say of a request."""

    session: int | None = None
    messages: tuple[PromptMessage, ...] | None = None
    fields: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Later:
    """A turn of a session after its first: it is due ``after_s`` seconds after the answer to the one before."""

    turn: int
    after_s: float
    input_tokens: int
    output_tokens: int
    extra: Extra


class Trace:
    """Requests that arrive by themselves, ascending in ``at_s``, and the later turns of their sessions.

    at_s                   (n,) when each arrives, on the trace's own clock
    input_tokens, output_tokens   (n,)
    keys, piece_tokens     how prompts begin, all after another; ``ends`` (n,) says where those of each request end
    extras                 by the number of the request, where there is something
    later                  by session, in the order of their turns
    unused                 fields of the file that say nothing to us
    """

    def __init__(self, path: Path, form: Format) -> None:
        self.path, self.form = path, form
        self.at_s = array("d")
        self.input_tokens = array("i")
        self.output_tokens = array("i")
        self.keys = array("Q")
        self.piece_tokens = array("i")
        self.ends = array("q")
        self.extras: dict[int, Extra] = {}
        self.later: dict[int, list[Later]] = {}
        self.unused: set[str] = set()
        self.skipped = SkippedLines()
        self.sha256 = ""

    def __len__(self) -> int:
        return len(self.at_s)

    def add(self, moment_field: str, at_s: float, input_tokens: int, output_tokens: int) -> int:
        """Adds a request without shared pieces and returns its number. LineError where it is out of order."""
        number = len(self.at_s)
        if number:
            ascending(moment_field, at_s, self.at_s[-1])
        if number == MAX_REQUESTS:
            raise TraceLineError("", f"is one more than the {MAX_REQUESTS:,} requests that a trace may have")
        self.at_s.append(at_s)
        self.input_tokens.append(input_tokens)
        self.output_tokens.append(output_tokens)
        self.ends.append(len(self.keys))
        return number

    def share(self, keys: Iterable[int], tokens: Iterable[int]) -> None:
        """Says how the prompt of the request that was added last begins."""
        self.keys.extend(keys)
        self.piece_tokens.extend(tokens)
        self.ends[-1] = len(self.keys)

    def start(self, number: int) -> int:
        """Where the pieces of request ``number`` begin."""
        return self.ends[number - 1] if number else 0

    def pieces(self, number: int) -> tuple[Shared, ...]:
        """How the prompt of request ``number`` begins."""
        places = range(self.start(number), self.ends[number])
        return tuple(Shared(self.keys[place], self.piece_tokens[place]) for place in places)
