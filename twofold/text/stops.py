"""Stop strings over a stream of text: nothing that may be the start of one leaves too early.

Method: the failure function of Knuth, Morris & Pratt 1977, one automaton for each string.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from twofold.core.errors import ParameterError
from twofold.core.params import MAX_STOP_CHARS, MAX_STOPS


class StopStrings:
    """Cuts a stream as soon as one of ``stops`` is complete, however the stream comes in pieces.

    Of several that the same character completes, the longest counts. ``include`` leaves the stop string in the text.
    While the stream has not stopped, no more is held back than the longest start of a stop string it ends with.
    Raises ParameterError for an empty string, too many, or too long ones.
    """

    def __init__(self, stops: str | Iterable[str], *, include: bool = False) -> None:
        self._matchers = [_Matcher(stop) for stop in _checked(stops)]
        self._include = include
        self._held = ""
        self.stopped: str | None = None
        """The stop string that ended the stream."""

    def push(self, text: str) -> tuple[str, bool]:
        """Text that may leave now, and whether the stream has stopped; after that nothing leaves any more."""
        if self.stopped is not None:
            return "", True
        if not self._matchers:
            return text, False
        pending = self._held + text
        for position, character in enumerate(text, start=len(self._held)):
            if (found := self._advance(character)) is not None:
                return self._stop(pending, position + 1, found), True
        keep = max(matcher.matched for matcher in self._matchers)
        cut = len(pending) - keep
        self._held = pending[cut:]
        return pending[:cut], False

    def _advance(self, character: str) -> str | None:
        """Feeds all matchers; the longest of the strings that end here."""
        ended = [matcher.stop for matcher in self._matchers if matcher.advance(character)]
        return max(ended, key=len, default=None)

    def _stop(self, pending: str, end: int, found: str) -> str:
        self.stopped, self._held = found, ""
        return pending[: end if self._include else end - len(found)]

    def flush(self) -> str:
        """What was held back, when the stream ends without a stop string."""
        held, self._held = self._held, ""
        return held


@dataclass(slots=True)
class _Matcher:
    """How many characters of ``stop`` the stream ends with."""

    stop: str
    matched: int = 0
    _fallback: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self._fallback = _borders(self.stop)

    def advance(self, character: str) -> bool:
        """Whether the stream now ends with all of ``stop``."""
        while self.matched and self.stop[self.matched] != character:
            self.matched = self._fallback[self.matched - 1]
        if self.stop[self.matched] == character:
            self.matched += 1
        return self.matched == len(self.stop)


def _borders(text: str) -> list[int]:
    """For each prefix, the length of the longest proper prefix of it that it also ends with."""
    borders = [0] * len(text)
    length = 0
    for index in range(1, len(text)):
        while length and text[length] != text[index]:
            length = borders[length - 1]
        length += text[length] == text[index]
        borders[index] = length
    return borders


def _checked(stops: str | Iterable[str]) -> list[str]:
    unique = [stops] if isinstance(stops, str) else list(dict.fromkeys(stops))
    if len(unique) > MAX_STOPS:
        raise _refused(f"{len(unique)} stop strings are too many; at most {MAX_STOPS} are allowed.")
    for stop in unique:
        if not isinstance(stop, str) or not stop:
            raise _refused("A stop string must be a string of at least one character.")
        if len(stop) > MAX_STOP_CHARS:
            raise _refused(
                f"A stop string of {len(stop)} characters is too long; at most {MAX_STOP_CHARS} are allowed."
            )
    return unique


def _refused(message: str) -> ParameterError:
    return ParameterError(message, param="stop", hint="Give few, short stop strings.")
