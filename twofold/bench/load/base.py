"""Loads and their requests, and checks of their parameters. All times are seconds after the start of the run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol, TypeAlias

from twofold.core.errors import ParameterError, describe

MAX_REQUESTS: Final = 10_000_000
MAX_TOKENS: Final = 10_000_000
MAX_SECONDS: Final = 1e7
MAX_RATE: Final = 1e6

Outcome: TypeAlias = Literal["ok", "refused", "failed", "broken", "late", "unfinished"]
"""How a request ended.

ok          the whole completion arrived
refused     the server was overloaded: 429, 503, 529
failed      the server responded with another error, at once or in the middle of a completion
broken      no connection, a lost connection, or bytes that are not HTTP or do not match the API
late        it took longer than the request timeout
unfinished  the run ended first: it was stopped, or the drain period was over
"""

FAILURES: Final[frozenset[Outcome]] = frozenset({"refused", "failed", "broken", "late"})
"""Outcomes that count as infinitely slow."""


@dataclass(frozen=True, slots=True)
class Shared:
    """The next ``tokens`` tokens of a prompt are equal in all prompts with ``key`` at that position."""

    key: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PromptMessage:
    role: str
    text: str


@dataclass(frozen=True, slots=True)
class Ask:
    """One request of a load.

    index          number of the request in its run
    due_s          when to send it
    input_tokens   tokens of the prompt, as the server counts them; in a later turn, of the new message
    output_tokens  maximum tokens of the completion
    shared         prefix of the prompt that other prompts share, in order; at most ``input_tokens`` in all
    messages       texts of a trace, sent unchanged; ``input_tokens`` is then that of the trace
    history        messages of the turns before
    session, turn  of a conversation; turns count from 0
    fields         additional fields of the request body
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


Prompt: TypeAlias = Callable[[Ask], tuple[PromptMessage, ...]]
"""All messages of a request, with its history first. The function must be deterministic."""


class EndedRequest(Protocol):
    """A request that ended.

    ended_s  when the last byte of the response arrived; None without a response
    text     the completion
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
    """Requests and their times."""

    def describe(self) -> Mapping[str, Any]:
        """The kind of load and its parameters for the report, plain data."""

    @property
    def max_open(self) -> int | None:
        """Maximum of open requests; None for no limit."""

    def begin(self) -> Iterator[Ask]:
        """The requests that do not follow another one, ascending in ``due_s``; made one by one as they are taken."""

    def follow(self, ended: EndedRequest, now_s: float, /) -> Ask | None:
        """The request that follows an ended one: the next turn, or the next request of a closed loop."""


def can_continue(ended: EndedRequest) -> bool:
    """Whether another turn can follow: some APIs reject a history with an empty message of the assistant."""
    return ended.outcome == "ok" and bool(ended.text)


def history_after(ended: EndedRequest, prompt: Prompt) -> tuple[PromptMessage, ...]:
    """The messages before the next turn; the last one is the completion."""
    return (*prompt(ended.ask), PromptMessage("assistant", ended.text))


def ended_s(ended: EndedRequest, now_s: float) -> float:
    """When the response ended, and so the pause before the next turn starts; ``now_s`` without a response."""
    return now_s if ended.ended_s is None else ended.ended_s


def check_number(name: str, value: float, low: float, high: float) -> float:
    """``value`` if it is from ``low`` to ``high``. Raises ParameterError with ``name``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
        raise ParameterError(f"{name} must be a number from {low:g} to {high:g}, not {describe(value)}.", param=name)
    return value


def check_positive(name: str, value: float, high: float) -> float:
    """``value`` if it is above 0 and at most ``high``. Raises ParameterError with ``name``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= high:
        raise ParameterError(f"{name} must be a number above 0 and up to {high:g}, not {describe(value)}.", param=name)
    return value


def check_whole(name: str, value: int, low: int, high: int) -> int:
    """``value`` if it is a whole number from ``low`` to ``high``. Raises ParameterError with ``name``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ParameterError(f"{name} must be a whole number from {low} to {high}, not {describe(value)}.", param=name)
    return value


def check_end(duration_s: float | None, number: int | None, what: str, counted: str = "requests") -> None:
    """Raises ParameterError if the load ``what`` has an invalid limit, or neither limit."""
    if duration_s is None and number is None:
        message = f"{what} needs an end: a duration, a number of {counted} or both."
        raise ParameterError(message, param="duration", hint=f"Give --duration SECONDS or --{counted} N.")
    if duration_s is not None:
        check_positive("duration", duration_s, MAX_SECONDS)
    if number is not None:
        check_whole(counted, number, 1, MAX_REQUESTS)


def is_before_end(moment_s: float, duration_s: float | None) -> bool:
    """Whether ``moment_s`` is within the duration; None has no end."""
    return moment_s < (math.inf if duration_s is None else duration_s)
