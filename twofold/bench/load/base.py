"""The seam of loads: what is asked, and what a load must know of what became of it.

All times are seconds after the start of the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

Outcome: TypeAlias = Literal["ok", "refused", "failed", "broken", "late", "unfinished"]
"""What became of a request.

ok          all of the answer came
refused     the server had no room for it: 429, 503, 529
failed      the server answered with another error, at once or in the middle of an answer
broken      no connection, one that was cut, or bytes that are no HTTP or no answer
late        it took longer than a request may
unfinished  the run ended before it did, because someone stopped it or the time to drain was over
"""

FAILURES: Final[frozenset[Outcome]] = frozenset({"refused", "failed", "broken", "late"})
"""Outcomes that count as infinitely slow."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The next ``tokens`` tokens of a prompt are the same in all prompts that name ``key`` at that place."""

    key: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PromptMessage:
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a load.

    index          counts the requests of a run
    due_s          when it is to leave
    input_tokens   of the whole prompt, as the server counts it; in a later turn, of what is new in it
    output_tokens  of the answer
    shared         how the prompt begins, in order; at most ``input_tokens`` in all. The rest is its own
    messages       what is sent as it stands, where a trace gives it: ``input_tokens`` is then only what the trace says
    history        messages of the turns before
    session, turn  of a conversation; turns count from 0
    fields         what else the body shall say
    """

    index: int
    due_s: float
    input_tokens: int
    output_tokens: int
    shared: tuple[Shared, ...] = ()
    messages: tuple[PromptMessage, ...] | None = None
    history: tuple[PromptMessage, ...] = ()
    session: int | None = None
    turn: int = 0
    fields: Mapping[str, Any] = field(default_factory=dict)


class EndedRequest(Protocol):
    """A request that ended.

    ended_s  when the last of its reply came; None where nothing came
    text     the answer
    """

    @property
    def ask(self) -> Ask: ...

    @property
    def outcome(self) -> Outcome: ...

    @property
    def ended_s(self) -> float | None: ...

    @property
    def text(self) -> str: ...


class Load(Protocol):
    """Who is asked what, and when."""

    def describe(self) -> Mapping[str, Any]:
        """What the report says of it: ``kind`` and its parameters, plain data."""
        ...

    @property
    def max_open(self) -> int | None:
        """Most requests that may be open at once; None where there is no limit."""
        ...

    def begin(self) -> Iterator[Ask]:
        """The requests that are known from the start, ascending in ``due_s``; made one by one as they are taken."""
        ...

    def follow(self, ended: EndedRequest, now_s: float, /) -> Ask | None:
        """What the end of a request calls for: the next turn, or the next one of a closed loop."""
        ...
